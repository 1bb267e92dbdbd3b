"""Replays where every program that compilers are made of only logs that it was called, and fails."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.replays import prove_guard

TOOLS = (
    *("nvcc", "ptxas", "ptxas-blackwell", "cicc", "nvlink", "fatbinary", "cuobjdump", "nvdisasm"),
    *("gcc", "g++", "cc", "c++", "clang", "clang++", "as", "ld", "ninja", "make", "ldconfig"),
)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of such programs, whose calls are lines of ``tools.log`` beside it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        tool = folder / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path / "tools.log"}\nexit 97\n')
        tool.chmod(0o755)
    return folder


def calls(tools: Path) -> list[str]:
    log = tools.with_name("tools.log")
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("name", TOOLS)
def test_a_call_of_a_tool_would_be_seen(tools: Path, name: str) -> None:
    assert subprocess.run([name, "-v"], env={"PATH": str(tools)}, check=False).returncode == 97
    assert calls(tools) == [f"{name} -v"]


def test_a_whole_plan_replays_and_no_tool_is_called(small_interpreter, built, tools: Path) -> None:
    arguments = ("replay", "--plan", "toys-tp1-sm_90a", "--store", str(built.store.path), "--json")
    started = small_interpreter.start("-m", "planfreeze", *arguments, PATH=str(tools))
    output, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    found = json.loads(output)
    assert (found["resolved"], found["missing"], found["compiled"]) == (2, [], 0)
    assert (found["guard"]["triton"], found["guard"]["cute"]) == ("awake", "awake")
    assert calls(tools) == []


def test_a_guard_is_proven_where_a_package_of_a_road_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)  # importing it fails from here on
    assert prove_guard()["triton"] == "awake"


def test_a_guarded_command_and_its_proof_call_no_tool(interpreter, tools: Path) -> None:
    started = interpreter.start("-m", "planfreeze", "run", "--", sys.executable, "-c", "", PATH=str(tools))
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    assert "triton awake" in errors
    assert calls(tools) == []


ABORT = """
import os
import sys

class AbortingCompilers:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "cutlass"):
            os.abort()

sys.meta_path.insert(0, AbortingCompilers())
from planfreeze.cache.store import Store
from planfreeze.errors import MissingPrograms
from planfreeze.resolve import PlanReference, find_plan, resolve_plan
store = Store.open(sys.argv[1])
resolution = resolve_plan(find_plan(store, PlanReference.parse("toys-tp1-sm_90a")), store)
try:
    resolution.check()
except MissingPrograms as error:
    print(error)
"""


def test_a_missing_program_is_a_typed_error_where_a_compiler_would_end_the_process(
    interpreter, built, tmp_path
) -> None:
    store = shutil.copytree(built.store.path, tmp_path / "store")
    entry = built.report.plans[0].entries[0]
    (store / "records" / entry.key[:2] / entry.key).unlink()
    for folder in (store, *store.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    said = interpreter.run(ABORT, str(store))
    assert "1 of 2 programs" in said and "toys_add(" in said
