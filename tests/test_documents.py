"""The documents' worked example of a family of one's own, built as it stands."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from planfreeze.diagnosis import Diagnosis
from planfreeze.doctor_reports import diagnosis_json
from planfreeze.guard import Attempt
from planfreeze.guard.unseen import UNSEEN
from planfreeze.knobs import HINDERING
from planfreeze.machine import Machine
from planfreeze.run_reports import run_json
from planfreeze.running import RUN_MODES, CountedAttempt, Run

ROOT = Path(__file__).parents[1]


def test_the_family_of_the_documents_builds_and_replays(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "families.md").read_text()
    files = re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["mykernels/scale.py", "mykernels/scale_triton.py", "scale.toml"]
    (tmp_path / "mykernels").mkdir()
    for name, body in files:
        (tmp_path / name).write_text(body)
    for command in ("build", "replay"):
        arguments = ["--model", "scale.toml", "--arch", "sm_90a", "--store", "store"]
        done = subprocess.run(
            [sys.executable, "-m", "planfreeze", command, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert re.search(r"scale-tp1-sm_90a +2 ", done.stdout)


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
