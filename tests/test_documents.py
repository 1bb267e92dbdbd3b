"""The documents' worked examples of families of one's own, built as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
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
