"""Diagnoses: what the doctor finds on machines in various states, and the status it ends with."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planfreeze.doctor.diagnosis import Diagnosis, Finding, diagnose, guarded
from planfreeze.doctor.knobs import COSTLY, HINDERING, find_differing, find_hindering
from planfreeze.doctor.machine import Machine, find_machine
from planfreeze.guard.unseen import UNSEEN

ROOT = Path(__file__).resolve().parents[2]

# Makes a process, and those it starts, one in which only planfreeze and what it depends on is installed.
BARE = """
import importlib.metadata, sys
HIDDEN = ("torch", "triton", "cutlass", "cuda")
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
found = importlib.metadata.distribution
def distribution(name):
    if name in ("torch", "triton", "nvidia-cutlass-dsl", "cuda-core", "cuda-bindings"):
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.distribution = distribution
"""
# A driver with one device of compute capability 9.0.
DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Stand-in", size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
"""
NO_MACHINE = Machine(versions=(), driver=None, cuda=None, gpus=(), tools=())


@pytest.fixture
def doctor(small_interpreter) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run ``planfreeze doctor --json``; return its status and what it printed."""

    def run(*arguments: object, folders: tuple[Path, ...] = (), **environment: str) -> tuple[int, dict[str, Any]]:
        environment.setdefault("PYTHONPATH", os.pathsep.join(map(str, (*folders, *small_interpreter.folders))))
        started = small_interpreter.start("-m", "planfreeze", "doctor", "--json", *map(str, arguments), **environment)
        output, errors = started.communicate(timeout=120)
        assert errors.startswith("error: frozen serving does not work here") if started.returncode else errors == ""
        return started.returncode, json.loads(output)

    return run


def told(findings: list[dict[str, str]], words: str) -> bool:
    return any(words in finding["what"] for finding in findings)


def test_a_bare_installation_is_told_what_to_install(doctor, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(BARE)
    status, found = doctor(folders=(bare,))
    assert status == 6
    assert found["versions"]["planfreeze"] and found["versions"]["python"]
    assert {found["versions"][name] for name in ("torch", "triton", "nvidia-cutlass-dsl", "cuda-core")} == {None}
    assert {found["roads"][road] for road in ("triton", "cute")} == {"not installed"}
    assert {problem["advice"] for problem in found["problems"]} >= {'pip install "planfreeze[serve]"'}


def test_a_machine_without_a_device_lacks_something_and_its_roads_are_watched(doctor, interpreter) -> None:
    path = os.pathsep.join(map(str, interpreter.folders))
    status, found = doctor(CUDA_VISIBLE_DEVICES="", PYTHONPATH=path)
    assert (status, found["status"]) == (6, 6)
    assert found["devices"] == []
    assert told(found["problems"], "nowhere to load programs")
    assert (found["roads"]["triton"], found["roads"]["cute"]) == ("awake", "awake")
    assert set(found["roads"].values()) <= {"awake", "not installed"}
    assert [entry["name"] for entry in found["unseen"]] == [entry.name for entry in UNSEEN]
    assert told(found["notes"], "triton, launching by itself") and told(found["notes"], "torch.compile")
    assert told(found["notes"], "checked launches take the tensors of a call in one go")


def test_an_installation_without_its_extension_is_told_what_it_misses(interpreter, tmp_path: Path, doctor) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['planfreeze._tensors'] = None")
    path = os.pathsep.join(map(str, (tmp_path, *interpreter.folders)))
    _, found = doctor(CUDA_VISIBLE_DEVICES="", PYTHONPATH=path)
    (note,) = [note for note in found["notes"] if "checked launches" in note["what"]]
    assert "one by one" in note["what"] and "the extension is not installed" in note["what"]
    assert "wheel" in note["advice"] and "C compiler" in note["advice"]


def test_text_for_people_says_the_same(small_interpreter) -> None:
    started = small_interpreter.start("-m", "planfreeze", "doctor", CUDA_VISIBLE_DEVICES="")
    output, errors = started.communicate(timeout=120)
    assert started.returncode == 6 and errors.startswith("error: frozen serving does not work here")
    for words in ("triton", "awake", "no CUDA device", "frozen serving does not work here", UNSEEN[0].name):
        assert words in output


def test_a_driver_is_asked_for_its_version_and_devices_without_any_binding(doctor, interpreter, tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "this test needs a C compiler"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    path = os.pathsep.join(map(str, interpreter.folders))
    status, found = doctor(LD_LIBRARY_PATH=str(tmp_path), PYTHONPATH=path)
    assert (found["cuda"], found["devices"]) == ("13.2", [{"name": "Stand-in", "capability": [9, 0]}])
    assert not told(found["problems"], "nowhere to load programs")
    # A session would ask torch, and this torch cannot use it.
    assert (status, told(found["problems"], "torch sees none")) == (6, True)


@pytest.mark.parametrize(("name", "effect", "advice"), HINDERING)
def test_a_variable_that_hinders_serving_is_a_problem(name: str, effect: str, advice: str) -> None:
    (setting,), others = find_hindering({name: "1"})
    assert (setting.name, setting.value, setting.effect, setting.advice, others) == (name, "1", effect, advice, ())
    assert find_hindering({name: "0"}) == find_hindering({name: ""}) == ((), ())


def test_a_variable_that_hinders_serving_ends_with_1_and_one_that_costs_is_noted(doctor) -> None:
    status, found = doctor(TRITON_ALWAYS_COMPILE="1", CUDA_CACHE_DISABLE="1")
    assert status == 1
    assert told(found["problems"], "TRITON_ALWAYS_COMPILE=1") and told(found["notes"], "CUDA_CACHE_DISABLE=1")
    assert [name for name, _, _ in COSTLY if told(found["problems"], name)] == []


def test_code_that_a_compiler_would_make_differently_here_is_named() -> None:
    same = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1", "HOME": "/"}
    assert find_differing(same) == ()
    (fusion,) = find_differing({**same, "TRITON_DEFAULT_FP_FUSION": "0"})
    assert (fusion.name, fusion.value) == ("TRITON_DEFAULT_FP_FUSION", "0")
    assert "TRITON_DEFAULT_FP_FUSION" in fusion.advice and "made with 1" in fusion.effect
    line, options = find_differing({"CUTE_DSL_COMPILER_OPT": "-O0"})  # Triton fuses where nothing is said
    assert (line.name, line.value, options.value) == ("TRITON_DISABLE_LINE_INFO", "unset", "-O0")


def test_the_store_says_what_its_programs_were_made_with(doctor, built, tmp_path: Path) -> None:
    pinned = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    _, found = doctor("--store", built.store.path, **pinned)
    root = built.report.plans[0].root
    assert found["plans"] == [f"toys-tp1-sm_90a@sha256:{root}"]
    assert not told(found["notes"], "other code")
    store = built.copy(tmp_path / "store")
    for note in (store.path / "notes").glob("*/*"):
        note.chmod(0o644)
        note.write_text(note.read_text().replace('"TRITON_DEFAULT_FP_FUSION": "1"', '"TRITON_DEFAULT_FP_FUSION": "0"'))
    _, found = doctor("--store", store.path, **pinned)
    assert told(found["notes"], "TRITON_DEFAULT_FP_FUSION=1: the store's programs were made with 0")


def test_a_note_that_is_no_note_is_passed_over(doctor, built, tmp_path: Path) -> None:
    store = built.copy(tmp_path / "store")
    for note, text in zip((store.path / "notes").glob("*/*"), ("not json", "[1]"), strict=True):
        note.chmod(0o644)
        note.write_text(text)
    status, found = doctor("--store", store.path, CUDA_VISIBLE_DEVICES="")
    assert (status, len(found["plans"])) == (6, 1)


def test_a_store_that_others_can_write_is_a_problem_unless_it_is_trusted(doctor, built, tmp_path: Path) -> None:
    store = built.copy(tmp_path / "store")
    store.path.chmod(0o777)
    status, found = doctor("--store", store.path, CUDA_VISIBLE_DEVICES="")
    assert status == 1
    assert told(found["problems"], str(store.path))
    assert doctor("--store", store.path, "--trust-store", CUDA_VISIBLE_DEVICES="")[0] == 6


def test_a_damaged_plan_and_a_missing_one_are_problems(doctor, built, tmp_path: Path) -> None:
    store = built.copy(tmp_path / "store")
    (plan,) = (path for path in (store.path / "plans").rglob("*") if path.is_file())
    plan.chmod(0o644)
    plan.write_bytes(plan.read_bytes()[:-1])
    status, found = doctor("--store", store.path, CUDA_VISIBLE_DEVICES="")
    assert (status, told(found["problems"], built.report.plans[0].root)) == (1, True)
    status, found = doctor("--store", built.store.path, "--plan", "other-tp1-sm_90a", CUDA_VISIBLE_DEVICES="")
    assert (status, told(found["problems"], "other-tp1-sm_90a")) == (1, True)


def test_a_missing_store_is_a_problem_only_where_one_was_named(doctor, tmp_path: Path) -> None:
    status, found = doctor("--store", tmp_path / "nowhere", CUDA_VISIBLE_DEVICES="")
    assert (status, told(found["problems"], "nowhere")) == (1, True)
    status, found = doctor(CUDA_VISIBLE_DEVICES="")
    assert (status, told(found["notes"], found["store"])) == (6, True)


def test_kernels_that_are_not_those_of_the_plan_are_a_problem(doctor, built, toys, tmp_path: Path) -> None:
    shutil.copytree(toys.folder / "toys", tmp_path / "changed" / "toys")
    (tmp_path / "changed" / "toys" / "shared.py").write_text("AMOUNT = 8\n")
    status, found = doctor("--store", built.store.path, folders=(tmp_path / "changed",), CUDA_VISIBLE_DEVICES="")
    assert (status, told(found["problems"], "toys.shared")) == (1, True)


def test_a_check_that_fails_is_a_finding() -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("odd")

    (finding,) = guarded(broken)
    assert (finding.level, finding.exit_code) == ("problem", 1)
    assert "ZeroDivisionError: odd" in finding.what


def test_metadata_without_a_version_are_unknown(tmp_path: Path, interpreter) -> None:
    broken = tmp_path / "broken" / "triton-0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Name: triton\n")
    script = "from planfreeze.doctor.machine import find_version; print(find_version('triton'))"
    path = os.pathsep.join(map(str, (broken.parent, ROOT)))
    assert interpreter.run(script, PYTHONPATH=path).strip() == "unknown"


def test_this_machine_has_the_python_that_runs() -> None:
    assert dict(find_machine().versions)["python"] == sys.version.split()[0]


@pytest.mark.parametrize(
    ("codes", "status"), [((), 0), ((6,), 6), ((6, 6), 6), ((6, 4), 1), ((3,), 1), ((5,), 1), ((1,), 1)]
)
def test_the_status_is_6_where_the_machine_lacks_something_and_nothing_else_is_wrong(
    codes: tuple[int, ...], status: int
) -> None:
    problems = tuple(Finding(level="problem", what="", exit_code=code) for code in codes)
    findings = (*problems, Finding(level="note", what=""))
    made = Diagnosis(machine=NO_MACHINE, roads={}, unseen=UNSEEN, store="", plans=(), findings=findings)
    assert made.status == status


@pytest.mark.usefixtures("hide_frameworks")
def test_problems_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = diagnose(tmp_path, is_store_named=True, is_trusted=False)
    levels = [finding.level for finding in found.findings]
    assert levels == sorted(levels, reverse=True) and set(levels) == {"problem", "note"}


def test_kernels_in_a_folder_of_their_own_are_found_where_it_is_named(doctor, built, toys, small_interpreter) -> None:
    path = os.pathsep.join(str(folder) for folder in small_interpreter.folders if folder != toys.folder)
    asked = ("--store", built.store.path)
    _, without = doctor(*asked, PYTHONPATH=path)
    assert told(without["problems"], "toys.families")
    _, found = doctor(*asked, "--source-root", toys.folder, PYTHONPATH=path)
    assert not told(found["problems"], "toys.families")
