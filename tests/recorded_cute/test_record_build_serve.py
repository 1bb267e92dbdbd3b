"""Recorded, built without a device, served to the unchanged program: the same, with no compile."""

import json
from pathlib import Path

import pytest

from .conftest import ARCH, DEVICE, GUARD, Workshop
from .programs import HOSTS, IMPORTS, KERNELS

CALL = """
if __name__ == "__main__":
    call_hosts()
    call_closures(-1 if "reversed" in sys.argv else 1)
"""

RUN = "import runpy\nrunpy.run_path({!r}, run_name='__main__')\n"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A workshop where a program of host functions is recorded and built."""
    workshop = Workshop(tmp_path_factory.mktemp("hosts"))
    script = workshop.write("hosts.py", IMPORTS, HOSTS, CALL)
    recording = workshop.record(script)
    assert recording["refused"] == [] and recording["unused"] == 0
    report = workshop.build("hosts")
    assert (report["failed"], report["reused"]) == ([], 0) and report["compiled"] == len(recording["programs"])
    return workshop


def launches(recording: dict) -> dict[str, int]:
    counted: dict[str, int] = {}
    for program in recording["programs"]:
        function = program["payload"]["function"].partition(":")[2]
        counted[function] = counted.get(function, 0) + program["launches"]
    return counted


def test_a_recording_counts_what_was_called_by_function_and_variant(hosts: Workshop) -> None:
    recording = json.loads((hosts.folder / "hosts.json").read_text())
    assert recording["archs"] == [ARCH] and recording["source_roots"] == ["."]
    assert launches(recording) == {
        "Scale.__call__": 5,
        "Scale.method": 2,
        "close.<locals>.closed": 4,
        "hello": 4,
        "inner": 6,
        "named": 2,
        "outer": 1,
        "pair": 1,
        "several": 2,
    }
    # Two values of a constant, instances of four kinds however often traced, four closures, three ways of options.
    variants = [program["payload"]["function"].partition(":")[2] for program in recording["programs"]]
    assert {name: variants.count(name) for name in variants} == {
        "Scale.__call__": 4,
        "Scale.method": 2,
        "close.<locals>.closed": 4,
        "hello": 2,
        "inner": 3,
        "named": 2,
        "outer": 1,
        "pair": 1,
        "several": 2,
    }


def test_two_runs_of_one_program_give_equal_recordings(hosts: Workshop) -> None:
    first = (hosts.folder / "hosts.json").read_text()
    hosts.record(hosts.folder / "hosts.py", PYTHONHASHSEED="7")
    assert (hosts.folder / "hosts.json").read_text() == first


@pytest.mark.parametrize("order", ["", "reversed"])
def test_a_served_program_does_what_it_did_and_compiles_nothing(hosts: Workshop, order: str) -> None:
    script = hosts.folder / "hosts.py"
    plain = hosts.run(script, order)
    guarded = hosts.write("guarded.py", GUARD, RUN.format(script.name))
    served = hosts.run(guarded, order, environment=hosts.served_environment("hosts"))
    assert served == plain + "attempts 0\n" and "closed 222" in plain


def test_every_planned_program_is_noted_as_used(hosts: Workshop) -> None:
    (hosts.folder / "served.jsonl").unlink(missing_ok=True)
    hosts.serve(hosts.folder / "hosts.py")
    used = {json.loads(line)["payload"] for line in (hosts.folder / "served.jsonl").read_text().splitlines()}
    recording = json.loads((hosts.folder / "hosts.json").read_text())
    assert len(used) == len(recording["programs"])


def test_a_served_call_traces_nothing_and_reads_no_source(hosts: Workshop) -> None:
    script = hosts.write(
        "untraced.py",
        "import hosts\nfrom hosts import *\n",
        """
        from cutlass.base_dsl.dsl import BaseDSL
        def refuse(*arguments, **options): raise AssertionError("traced")
        BaseDSL._preprocess_and_replace_code = staticmethod(refuse)
        BaseDSL.generate_mlir = refuse
        scale = Scale(3, Shape(4, 8))
        scale(2)
        assert not hasattr(scale, "seen")
        """,
    )
    said = hosts.run(script, environment=hosts.served_environment("hosts"))
    assert said.splitlines()[-1] == "scale 6 of 4"


def test_a_build_is_the_same_with_other_workers_and_in_another_folder(hosts: Workshop, tmp_path: Path) -> None:
    first = hosts.build("hosts")
    (again,) = {hosts.build("hosts", "--jobs", "1", store=str(tmp_path / "store"))["plans"][0]["root"]}
    assert first["compiled"] == 0 and first["plans"][0]["root"] == again


CASES = {
    "hello(3, 5)": f"hosts-{ARCH} holds hosts:hello otherwise; planned -> asked: limit: 4 -> 5. Run: planfreeze record",
    "Scale(3, Shape(7, 8))(2)": "self.shape: hosts:Shape(extents=(4, 8)) -> hosts:Shape(extents=(7, 8))",
    "close(3, (10,), None)(1)": "captured number: 1 -> 3",
    "several(1, 2, 3, 4)": "*numbers: int, int, int -> int, int, int, int",
    "several(1, 2.0)": "*numbers: int, int, int -> int, float",
    "cute.compile[cute.OptLevel(0)](inner, 0)": "option OptLevel: 1 -> 0",
    "cute.compile(unplanned, 0)": f"hosts-{ARCH} holds no program of unplanned:unplanned",
    "unplanned(3)": f"hosts-{ARCH} holds no program of unplanned:unplanned",
    "hello(3, object())": "No plan can hold it: limit = <object",
}


def test_an_unplanned_call_is_refused_before_tracing_with_the_nearest_planned_one(hosts: Workshop) -> None:
    unplanned = """
from hosts import *
from planfreeze.errors import CompilationForbidden
@cute.jit
def unplanned(n: cutlass.Int32): raise AssertionError("traced")
"""
    cases = "".join(
        f"try: {call}\n"
        f"except CompilationForbidden as error: assert {said!r} in str(error), error\n"
        f"else: raise AssertionError({call!r})\n"
        for call, said in CASES.items()
    )
    script = hosts.write("unplanned.py", GUARD, unplanned, cases)
    assert hosts.run(script, environment=hosts.served_environment("hosts")) == f"attempts {len(CASES)}\n"


@pytest.mark.parametrize("is_armed_first", [True, False])
def test_a_guard_may_be_armed_before_or_after_the_hooks_and_counts_a_miss_once(hosts: Workshop, is_armed_first) -> None:
    counting = GUARD.replace("Guard()", "Guard(mode='count')")
    imports = "from hosts import *\n"
    calls = "hello(3, 4)\nassert not guard.attempts\nhello(3, 5)\ncute.compile(hello, 1, 5)(3)\n"
    parts = (counting, imports) if is_armed_first else (imports, counting)
    script = hosts.write(f"armed{is_armed_first}.py", *parts, calls)
    said = hosts.run(script, environment=hosts.served_environment("hosts"))
    assert said == "hello 3 of 4\nhello 3 of 5\nhello 3 of 5\nattempts 2\n"


@pytest.mark.parametrize("mode", ["raise", "count"])
def test_a_function_whose_text_has_changed_is_never_served(hosts: Workshop, tmp_path: Path, mode: str) -> None:
    text = (hosts.folder / "hosts.py").read_text()
    changed = text.replace('cute.printf("hello %d of %d", n, limit)', 'cute.printf("changed %d", n)')
    assert changed != text
    guard = GUARD.replace("Guard()", f"Guard(mode={mode!r})")
    moved = Workshop(tmp_path)
    moved.write("hosts.py", changed)
    script = moved.write("later.py", guard, "from hosts import *\nhello(3, 4)\n")
    said = moved.run(script, status=int(mode == "raise"), environment=hosts.served_environment("hosts"))
    if mode == "count":
        assert said == "changed 3\nattempts 1\n"
    else:
        assert f"hosts-{ARCH} holds hosts:hello as it was: the text of hosts has changed since" in said


def test_a_compile_that_is_never_called_is_counted_and_left_out(workshop: Workshop) -> None:
    script = workshop.write("idle.py", IMPORTS, HOSTS, "hello(1, 2)\ncute.compile(inner, 0)\n")
    recording = workshop.record(script)
    assert recording["unused"] == 1 and launches(recording) == {"hello": 1}


def test_kernels_launch_as_the_dsl_launches_them(workshop: Workshop, runtime: Path) -> None:
    script = workshop.write("kernels.py", DEVICE, IMPORTS, KERNELS, "if __name__ == '__main__': call_kernels()\n")
    stub = {"CUTE_DSL_LIBS": str(runtime)}
    recording = workshop.record(script, STUB_LOG=str(workshop.folder / "recorded.log"), **stub)
    assert launches(recording) == {"fill": 6, "fill_and_add": 1, "launch_if": 2}
    report = workshop.build("kernels", "--arch", ARCH, "--arch", "sm_120a")
    assert report["failed"] == [] and len(report["plans"]) == 2
    guarded = workshop.write("guarded.py", GUARD, RUN.format(script.name))
    environment = workshop.served_environment("kernels", STUB_LOG=str(workshop.folder / "served.log"), **stub)
    assert workshop.run(guarded, environment=environment) == "attempts 0\n"
    recorded, served = ((workshop.folder / f"{name}.log").read_text().splitlines() for name in ("recorded", "served"))
    assert served == recorded and len(recorded) == 9
    values = [line.rpartition(" ")[2] for line in served if "value" in line]
    assert values == ["2.5", "3.5", "4.5", "5.5", "6.5", "7.5", "1", "2"]
    assert sum("stream 0x100" in line for line in served) == 2


def test_the_examples_are_recorded_built_and_served(workshop: Workshop, runtime: Path) -> None:
    script = workshop.write(
        "examples.py",
        DEVICE,
        """
        import cute_elementwise, cute_gemm
        cute_elementwise.run(array(1000), array(1000), array(1000), 0x70)
        cute_gemm.run(array(200, 64), array(64, 130), array(200, 130))
        cute_gemm.run(array(33, 16), array(16, 40), array(33, 40))
        """,
    )
    recording = workshop.record(script, CUTE_DSL_LIBS=str(runtime), STUB_LOG=str(workshop.folder / "recorded.log"))
    assert launches(recording) == {"Add.__call__": 1, "Gemm.__call__": 2, "scale": 1}
    assert workshop.build("examples")["failed"] == []
    workshop.serve(script, CUTE_DSL_LIBS=str(runtime), STUB_LOG=str(workshop.folder / "served.log"))
    assert (workshop.folder / "served.log").read_text() == (workshop.folder / "recorded.log").read_text()
    assert len((workshop.folder / "served.jsonl").read_text().splitlines()) == 4
