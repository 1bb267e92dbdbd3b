"""Tables of the documents and what they are of."""

import re
import runpy
from pathlib import Path

from planfreeze import errors
from planfreeze.doctor.diagnosis import Diagnosis
from planfreeze.doctor.knobs import HINDERING
from planfreeze.doctor.machine import Machine
from planfreeze.doctor.reports import diagnosis_json
from planfreeze.guard import Attempt
from planfreeze.guard.unseen import UNSEEN
from planfreeze.runs.guarded import RUN_MODES, CountedAttempt, Run
from planfreeze.runs.reports import run_json

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
FAMILIES = (REFERENCE / "families.md").read_text()
WORDS = {"one": 1, "two": 2, "three": 3, "five": 5}


def test_the_table_of_variants_counts_them_as_they_are() -> None:
    from planfreeze.declarations import flag, integer, real, tensor

    names = {"integer": integer, "tensor": tensor, "real": real, "flag": flag}
    rows = re.findall(r"^\| `((?:integer|tensor)\(.*?\))` \| (\w+)", FAMILIES, re.MULTILINE)
    assert len(rows) >= 8
    for declaration, count in rows:
        assert len(eval(declaration, names).classes("specialized")) == WORDS[count], declaration


def test_the_doctors_page_names_its_problems_and_the_keys_of_its_json() -> None:
    page = (REFERENCE / "doctor.md").read_text()
    assert [name for name, _, _ in HINDERING if f"`{name}`" not in page] == []
    machine = Machine(versions=(), driver=None, cuda=None, gpus=(), tools=())
    made = Diagnosis(machine=machine, roads={}, unseen=(), store="", plans=(), findings=())
    keys = page.rpartition("prints one object: ")[2]
    assert re.findall(r"`(\w+)`", keys) == list(diagnosis_json(made))


def test_the_page_of_run_names_the_keys_of_its_json_and_its_modes() -> None:
    page = (ROOT / "docs" / "reference" / "run.md").read_text()
    attempt = Attempt(road="triton", kernel="", location="")
    counted = CountedAttempt(attempt=attempt, count=1, pids=(1,))
    made = run_json(Run(command=("true",), guard={}, attempts=(counted,), command_status=0))
    keys = page.partition("The JSON object holds ")[2].partition(").\n")[0]
    assert set(re.findall(r"`(\w+)`", keys)) == {*made, *made["attempts"][0]}
    assert set(re.findall(r"`--mode (\w+)`", page)) == set(RUN_MODES)


def test_the_guards_page_and_the_doctor_list_the_same_that_no_guard_sees() -> None:
    page = (ROOT / "docs" / "reference" / "guard.md").read_text()
    section = page.split("## What it cannot see\n")[1].split("\n## ")[0]
    heads, rule, *rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section.replace("|---|---|", "| - | - |"), re.MULTILINE)
    assert (heads, rule) == (("what", "why"), ("-", "-"))
    assert rows == [(unseen.name, unseen.reason) for unseen in UNSEEN]


def test_the_page_of_json_says_what_the_schemas_say() -> None:
    page_of = runpy.run_path(str(ROOT / "tools" / "json_page.py"))["page_of"]
    assert (REFERENCE / "json.md").read_text() == page_of(REFERENCE / "schemas")


def test_the_page_names_every_status_an_error_has() -> None:
    page = (REFERENCE / "command_line.md").read_text()
    found = {error.exit_code for error in (getattr(errors, name) for name in errors.__all__)}
    named = {int(status) for cell in re.findall(r"^\| ([0-9, ]+) \|", page, re.MULTILINE) for status in cell.split(",")}
    assert found | {0, 130} == named
