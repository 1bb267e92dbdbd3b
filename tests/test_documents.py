"""The documents' worked example of a family of one's own, built as it stands."""

import re
import subprocess
import sys
from pathlib import Path

from planfreeze.guard.unseen import UNSEEN

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


def test_the_guards_page_and_the_doctor_list_the_same_that_no_guard_sees() -> None:
    section = (ROOT / "docs" / "guard.md").read_text().split("## What it cannot see\n")[1].split("\n## ")[0]
    heads, rule, *rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section.replace("|---|---|", "| - | - |"), re.MULTILINE)
    assert (heads, rule) == (("what", "why"), ("-", "-"))
    assert rows == [(unseen.name, unseen.reason) for unseen in UNSEEN]
