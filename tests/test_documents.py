"""The documents' worked examples of families of one's own, built as they stand."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from planfreeze.doctor.diagnosis import Diagnosis
from planfreeze.doctor.knobs import HINDERING
from planfreeze.doctor.machine import Machine
from planfreeze.doctor.reports import diagnosis_json
from planfreeze.guard import Attempt
from planfreeze.guard.unseen import UNSEEN
from planfreeze.runs.guarded import RUN_MODES, CountedAttempt, Run
from planfreeze.runs.reports import run_json

# A replay proves the roads of every framework that is found; test_build_to_launch.py has one with all of them.
pytestmark = pytest.mark.usefixtures("hide_frameworks")

ROOT = Path(__file__).parents[1]
FAMILIES = (ROOT / "docs" / "families.md").read_text()
FILES = [
    *("mykernels/add_triton.py", "mykernels/add.py", "mykernels/scale_cute.py", "mykernels/scaled.py"),
    *("mykernels/scale.py", "mykernels/scale_triton.py", "scale.toml"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file of the documents."""
    made = tmp_path_factory.mktemp("documents")
    files = re.findall(r"^`([\w/.]+)`[^\n]*:\n\n```\w+\n(.*?)```", FAMILIES, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == FILES
    (made / "mykernels").mkdir()
    for name, body in files:
        (made / name).write_text(body)
    return made


def run(folder: Path, *arguments: str) -> str:
    """Run planfreeze where the files are."""
    done = subprocess.run(
        [sys.executable, "-m", "planfreeze", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT), os.environ["PYTHONPATH"]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_documents_build_and_replay_a_triton_family(folder: Path) -> None:
    commands = [line.split() for line in re.findall(r"^    planfreeze (.*--family.*)$", FAMILIES, re.MULTILINE)]
    assert [command[0] for command in commands] == ["build", "replay"]
    for command in commands:
        shown = run(folder, *command)
    # 1, multiples of 16, and others, each with two blocks
    assert re.search(r"add-tp1-sm_90a +6 ", shown)


def test_the_cute_family_of_the_documents_builds_and_replays(folder: Path) -> None:
    arguments = ("--family", "mykernels.scaled:scaled", "--arch", "sm_90a", "--store", "store")
    run(folder, "build", *arguments)
    assert re.search(r"scaled-tp1-sm_90a +2 ", run(folder, "replay", *arguments))


def test_the_family_by_hand_of_the_documents_builds_and_replays(folder: Path) -> None:
    arguments = ("--model", "scale.toml", "--arch", "sm_90a", "--store", "store")
    run(folder, "build", *arguments)
    assert re.search(r"scale-tp1-sm_90a +2 ", run(folder, "replay", *arguments))


WORDS = {"one": 1, "two": 2, "three": 3, "five": 5}


def test_the_table_of_variants_counts_them_as_they_are() -> None:
    from planfreeze.declarations import flag, integer, real, tensor

    names = {"integer": integer, "tensor": tensor, "real": real, "flag": flag}
    rows = re.findall(r"^\| `((?:integer|tensor)\(.*?\))` \| (\w+)", FAMILIES, re.MULTILINE)
    assert len(rows) >= 8
    for declaration, count in rows:
        assert len(eval(declaration, names).classes("specialized")) == WORDS[count], declaration


def test_the_tests_of_the_pytest_page_pass(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytest.md").read_text(), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    is_installed = any(found.value == "planfreeze.pytest_plugin" for found in entry_points(group="pytest11"))
    plugin = () if is_installed else ("-p", "planfreeze.pytest_plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--strict-markers", *plugin, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_doctors_page_names_its_problems_and_the_keys_of_its_json() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert [name for name, _, _ in HINDERING if f"`{name}`" not in page] == []
    machine = Machine(versions=(), driver=None, cuda=None, gpus=(), tools=())
    made = Diagnosis(machine=machine, roads={}, unseen=(), store="", plans=(), findings=())
    keys = page.rpartition("prints one object: ")[2]
    assert re.findall(r"`(\w+)`", keys) == list(diagnosis_json(made))


def test_the_page_of_run_names_the_keys_of_its_json_and_its_modes() -> None:
    page = (ROOT / "docs" / "run.md").read_text()
    attempt = Attempt(road="triton", kernel="", location="")
    counted = CountedAttempt(attempt=attempt, count=1, pids=(1,))
    made = run_json(Run(command=("true",), guard={}, attempts=(counted,), command_status=0))
    keys = page.partition("The JSON object holds ")[2].partition(").\n")[0]
    assert set(re.findall(r"`(\w+)`", keys)) == {*made, *made["attempts"][0]}
    assert set(re.findall(r"`--mode (\w+)`", page)) == set(RUN_MODES)


def test_the_guards_page_and_the_doctor_list_the_same_that_no_guard_sees() -> None:
    section = (ROOT / "docs" / "guard.md").read_text().split("## What it cannot see\n")[1].split("\n## ")[0]
    heads, rule, *rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section.replace("|---|---|", "| - | - |"), re.MULTILINE)
    assert (heads, rule) == (("what", "why"), ("-", "-"))
    assert rows == [(unseen.name, unseen.reason) for unseen in UNSEEN]
