"""README: its set-up commands, run as they stand in a copy of the checkout, and what it says of the package."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def set_up_commands() -> list[str]:
    """Return the commands of the set-up section, one a line."""
    section = README.split("## Set up")[1].split("\n## ")[0]
    return re.findall(r"^    (\S.*)$", section, re.MULTILINE)


def copy_checkout(target: Path) -> Path:
    """Copy what git tracks or would track, links included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def test_there_are_two_set_up_commands_of_one_line_each() -> None:
    build, tests = set_up_commands()
    assert build.endswith("planfreeze build --model ds41 --tp 4")
    assert tests.endswith("pytest -n auto")


@pytest.mark.timeout(1500)
def test_the_first_command_installs_what_is_needed_and_builds(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    done = subprocess.run(
        set_up_commands()[0],
        shell=True,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ds41-tp4-sm_120a@sha256:[0-9a-f]{64}$", done.stdout, re.MULTILINE)
    replay = [checkout / ".venv/bin/planfreeze", "replay", "--model", "ds41", "--tp", "4", "--json"]
    replayed = subprocess.run(replay, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["resolved"] == 16


def test_every_file_that_the_documents_link_to_is_there() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([\w./-]*\w)\)", document.read_text()):
            # What the site makes is there only where it was built; its own test builds it, and warns of a dead link.
            is_made = target.startswith("generated/")
            assert is_made or (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("name", ["acceptance", "faults"])
def test_every_test_that_a_page_names_is_there(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    named = re.findall(r"`((?:tests|tools)/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 10
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(), f"{path} has no {function}"


def test_the_table_names_every_command() -> None:
    from planfreeze.cli import app

    named = set(re.findall(r"^\| `planfreeze (\w+)` \|", README, re.MULTILINE))
    assert named == {command.name for command in (*app.registered_commands, *app.registered_groups)}
