"""Files that reach a program's bytes past its text: their content is in the key, or the program is refused."""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from planfreeze.compilers import CompiledProgram
from planfreeze.errors import CompileFailed
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.plans import Plan
from planfreeze.target import target
from planfreeze.workers import Task, Worker

SM_90A = target("sm_90a")
numbers = count()

FAMILIES = """
    import json
    from pathlib import Path
    from typing import ClassVar
    from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family, pointer, scalar
    from planfreeze.payload import Payload

    AMOUNT = json.loads(Path(__file__).with_name("amount.json").read_text())

    class ReadingPayload(Payload):
        family_name: ClassVar[str] = "NAME_reading"
        kernel: str

    @family(ReadingPayload, version=1)
    def reading(payload, target):
        if payload.kernel == "cute":
            source = CuteSource(kernel="NAME.cute:Sine", constants=(), launch=LaunchInfo(block=(32, 1, 1)))
        else:
            source = TritonSource(kernel=f"NAME.{payload.kernel}:kernel", constants=(("amount", AMOUNT),))
        return Definition(
            arguments=(pointer("out", "f32", lambda scalars: 1), scalar("count")),
            source=source,
            grid=lambda scalars, resident_blocks: (1, 1, 1),
        )
    """
TRITON = """
    import triton
    import triton.language as tl
    IMPORTS

    @triton.jit
    def kernel(out, count, amount: tl.constexpr):
        value = tl.inline_asm_elementwise(ASSEMBLY, "=r,r", [count], dtype=tl.int32, is_pure=True, pack=1)
        tl.store(out, value + amount)
    """
READ = """
    from pathlib import Path
    ASSEMBLY = tl.constexpr(Path(__file__).with_name("assembly.ptx").read_text())
    """
CUTE = """
    from cutlass import Float32, Int32, Int64, cute

    class Sine:
        def __init__(self, *, launch):
            pass

        @cute.jit
        def __call__(self, out: Int64, count: Int32, stream):
            self.device(out, count).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

        @cute.kernel
        def device(self, out: Int64, count: Int32):
            sine = cute.ffi(name="__nv_sinf", params_types=[Float32], return_type=Float32SOURCE)
            pointer = cute.make_ptr(Float32, out, cute.AddressSpace.gmem, assumed_align=4)
            cute.make_tensor(pointer, cute.make_layout(1))[0] = sine(Float32(count))
    """


def libdevice() -> Path:
    """NVIDIA's library of bitcode, as Triton ships it."""
    found = find_spec("triton")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"


@pytest.fixture
def package(make_package: Callable[..., Path]) -> Path:
    """A package whose families and kernels name and read files."""
    assembly = 'ASSEMBLY = tl.constexpr("shl.b32 $0, $1, 1;")\n'
    folder = make_package(
        f"reading{next(numbers)}",
        families=FAMILIES,
        stated=TRITON.replace("    IMPORTS", f"    {assembly}"),
        read=TRITON.replace("    IMPORTS", READ),
        cute=CUTE.replace("SOURCE", f', source="{libdevice()}"'),
    )
    (folder / "amount.json").write_text("3")
    (folder / "assembly.ptx").write_text("shl.b32 $0, $1, 1;")
    return folder


def key(package: Path, toolchains: Path, **fields: str) -> KeyedProgram:
    """Key one program of a package."""
    payload: Any = importlib.import_module(f"{package.name}.families").ReadingPayload(**fields)
    (program,) = key_plan(Plan(model="reading", tp=1, target=SM_90A, payloads=(payload,)), toolchains)
    assert isinstance(program, KeyedProgram), program
    return program


def compile_program(program: KeyedProgram) -> CompiledProgram:
    """Compile a program in a fresh process."""
    with Worker(SM_90A) as worker:
        return worker.compile(Task(program.family.reference, program.payload, SM_90A, program.sources))


def test_assembly_that_is_stated_is_in_the_key_and_assembly_that_was_read_is_refused(
    package: Path, toolchains: Path
) -> None:
    stated = key(package, toolchains, kernel="stated")
    assert b"shl.b32" not in compile_program(stated).cubin, "it is machine code by now"
    path = package / "stated.py"
    path.write_text(path.read_text().replace("$1, 1;", "$1, 2;"))
    assert key(package, toolchains, kernel="stated").key.digest != stated.key.digest
    with pytest.raises(CompileFailed, match=r"uses ASSEMBLY: .*Path comes from pathlib, which is not in the key"):
        compile_program(key(package, toolchains, kernel="read"))


def test_bitcode_that_a_cute_kernel_links_is_refused_by_its_path(package: Path, toolchains: Path) -> None:
    with pytest.raises(CompileFailed, match=rf"it links \"{libdevice()}\", whose content is no part of its key"):
        compile_program(key(package, toolchains, kernel="cute"))


def test_what_a_family_reads_from_a_file_is_in_the_key(package: Path, toolchains: Path, interpreter: Any) -> None:
    script = f"""
        from pathlib import Path
        from planfreeze.keyed import key_plan
        from planfreeze.plans import Plan
        from planfreeze.target import target
        from {package.name}.families import ReadingPayload
        plan = Plan(model="reading", tp=1, target=target("sm_90a"), payloads=(ReadingPayload(kernel="stated"),))
        print(key_plan(plan, Path({str(toolchains)!r}))[0].key.digest)
        """
    before = key(package, toolchains, kernel="stated").key.digest
    path = ":".join(map(str, (package.parent, *interpreter.folders)))
    assert interpreter.run(script, PYTHONPATH=path).strip() == before
    (package / "amount.json").write_text("4")
    assert interpreter.run(script, PYTHONPATH=path).strip() != before
