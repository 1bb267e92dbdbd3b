"""What a recording cannot hold is refused by name, with the argument, attribute, captured value or option."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import DEVICE, GUARD, Workshop
from .programs import HOSTS, IMPORTS

SETUP = """
import dataclasses, functools
@cute.jit
def anything(x): pass
@cute.jit
def constant(x: cutlass.Constexpr): cute.printf("constant")
@cute.jit
def answers(n: cutlass.Int32): return 42
@dataclasses.dataclass
class Pair:
    a: cutlass.Int32
    b: cutlass.Int32
class Holder:
    def __init__(self, held): self.held = held
    @cute.jit
    def __call__(self, n: cutlass.Int32): cute.printf("held %d", n)
def local():
    class Hidden:
        @cute.jit
        def __call__(self, n: cutlass.Int32): cute.printf("hidden %d", n)
    return Hidden()
scope = dict(cute=cute, cutlass=cutlass)
loop = Holder(None)
loop.held = loop
"""

# A call, and what the refusal says of it.
CALLS = {
    "an instance that holds itself": ("loop(1)", "self.held = Holder: it holds itself"),
    "an open file": ("Holder(open(__file__))(1)", "self.held = <_io.TextIOWrapper"),
    "a lambda as attribute": ("Holder([1, lambda: 2])(1)", "self.held[1] = "),
    "a lock inside": ("Holder({'a': __import__('threading').Lock()})(1)", "self.held['a'] = <unlocked"),
    "a partial": ("constant(functools.partial(print, 1))", "x = functools.partial("),
    "a class in a function": (
        "local()(1)",
        "type(self) = <class '__main__.local.<locals>.Hidden'>: it is no named object",
    ),
    "a lambda that is decorated": ("cute.jit(lambda n: cute.printf('lambda'))(1)", "function = refused:<lambda>"),
    "a dataclass of run-time values": ("anything(Pair(1, 2))", "x = __main__.Pair: its type has no description"),
    "a result made by tracing": ("answers(1)", "it returns int that it makes while it is traced"),
    "another architecture": (
        "cute.compile(inner, 0, options='--gpu-arch sm_100a')(1)",
        "option GPUArch = sm_100a: it is not the architecture of the process",
    ),
    "the staged frontend": (
        "cute.compile[cute.FrontendNext](inner, 0)(1)",
        "option EnablePYIR = True: the DSL checks what it specialised on in every call",
    ),
    "MLIR for later": ("cute.compile.to_precompiled_mlir(inner, 0)", "compile_to_precompiled_mlir=..."),
}


LINKING = """
from cutlass.cute.runtime import from_dlpack
@cute.kernel
def sine_kernel(x: cute.Tensor):
    sine = cute.ffi(name="__nv_sinf", params_types=[cutlass.Float32], return_type=cutlass.Float32, source="LIBRARY")
    x[0] = sine(x[0])
@cute.jit
def sine(x: cute.Tensor):
    sine_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
if __name__ == "__main__":
    sine(from_dlpack(array(64)))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workshop, list[dict[str, str]]]:
    """What the recording of all calls refuses, one attempt at each; the run itself must not notice."""
    workshop = Workshop(tmp_path_factory.mktemp("refused"))
    body = "".join(f"    {call}\n" for call, _ in CALLS.values())
    body += "    open('done', 'w').close()\n"
    script = workshop.write("refused.py", IMPORTS, HOSTS, SETUP, f"if __name__ == '__main__':\n    hello(1, 2)\n{body}")
    recording = workshop.record(script, status=1)
    assert (workshop.folder / "done").exists()
    return workshop, recording["refused"]


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_with_its_reason(refused: tuple[Workshop, list[dict[str, str]]], name: str) -> None:
    _, found = refused
    reasons = [f"{line['kernel']} {line['reason']}" for line in found]
    assert sum(CALLS[name][1] in reason for reason in reasons) == 1, reasons


def test_everything_refused_is_listed_once(refused: tuple[Workshop, list[dict[str, str]]]) -> None:
    _, found = refused
    assert len(found) == len(CALLS)


def test_the_rest_is_built_and_served(refused: tuple[Workshop, list[dict[str, str]]]) -> None:
    workshop, _ = refused
    assert workshop.build("refused")["failed"] == []
    script = workshop.write("rest.py", GUARD, "from refused import *\nhello(7, 2)\n")
    assert workshop.run(script, environment=workshop.served_environment("refused")) == "hello 7 of 2\nattempts 0\n"


def test_a_function_compiled_before_the_recording_is_refused(workshop: Workshop) -> None:
    script = workshop.write(
        "early.py",
        IMPORTS,
        HOSTS,
        """
        import planfreeze
        early = cute.compile(inner, 0)
        with planfreeze.recording("early.json"):
            early(1)
            hello(1, 2)
        late = early
        late(2)
        """,
    )
    workshop.run(script)
    recording = json.loads((workshop.folder / "early.json").read_text())
    assert [line["reason"] for line in recording["refused"]] == ["it was compiled before the recording"]
    assert [program["launches"] for program in recording["programs"]] == [1]


def test_options_of_the_environment_are_part_of_a_program_or_refused(workshop: Workshop) -> None:
    script = workshop.write("options.py", IMPORTS, HOSTS, "if __name__ == '__main__': hello(1, 2)\n")
    recording = workshop.record(script, CUTE_DSL_LINEINFO="1", CUTE_DSL_ENABLE_ASSERTIONS="1", CUTE_DSL_KEEP_PTX="1")
    (program,) = recording["programs"]
    assert program["payload"]["options"] == [["EnableAssertions", True], ["GenerateLineInfo", True]]
    assert workshop.build("options")["failed"] == []
    recording = workshop.record(script, status=1, CUTE_DSL_COMPILER_OPT="debug{launch-check}")
    assert [line["reason"] for line in recording["refused"]] == ["option debug = launch-check: it checks launches"]
    assert recording["programs"] == []


def test_bitcode_that_a_recorded_kernel_links_is_refused_by_the_build(workshop: Workshop, runtime: Path) -> None:
    library = Path(str(find_spec("triton").origin)).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    script = workshop.write("linking.py", DEVICE, IMPORTS, LINKING.replace("LIBRARY", str(library)))
    stub = {"CUTE_DSL_LIBS": str(runtime), "STUB_LOG": str(workshop.folder / "recorded.log")}
    assert workshop.record(script, **stub)["refused"] == []
    said = workshop.build("linking", status=1)["said"]
    assert f'it links "{library}", whose content is no part of its key' in said
