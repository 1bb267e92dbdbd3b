"""The site builds without a warning, knows dead links, and its reference is what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze import errors
from planfreeze.cli import app
from planfreeze.guard import road_names

ROOT = Path(__file__).resolve().parents[2]
SPOILED = """# Index

[a](gone.md) [b](page.md#gone) [c](#gone) [d](page.md#what-it-sees) [e](page.md)

```{toctree}
page
```
"""


def build(docs: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build a site as docs/reference/index.md says."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", *options, docs, output],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the documents."""
    output = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", output, "-b", "html")
    assert (done.returncode, done.stderr) == (0, "")
    return output


def test_every_page_of_the_documents_is_a_page_of_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page


def test_dead_links_dead_anchors_and_pages_nobody_reaches_fail_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name, text in {"index": SPOILED, "page": "# Page\n\n## What it sees\n", "lost": "# Lost\n"}.items():
        (docs / f"{name}.md").write_text(text)
    conf = (ROOT / "docs" / "conf.py").read_text()
    (docs / "conf.py").write_text("\n".join(line for line in conf.splitlines() if "write_pages" not in line))
    done = build(docs, tmp_path / "out", "-b", "dummy")
    warned = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert done.returncode == 1
    assert sorted(found for line in warned for found in re.findall(r"toctree|'[\w.#]*gone[\w.]*'", line)) == [
        *("'gone'", "'gone'", "'gone.md'", "toctree"),
    ], done.stderr


def generated(name: str) -> str:
    """Return a page that the build wrote."""
    return (ROOT / "docs" / "reference" / "generated" / f"{name}.md").read_text()


def test_the_page_of_commands_has_every_command_with_its_examples(site: Path) -> None:
    page = generated("commands")
    for command in (*app.registered_commands, *app.registered_groups):
        section = page.partition(f"\n## `planfreeze {command.name}`\n")[2].partition("\n## ")[0]
        assert f"planfreeze {command.name}" in section.partition("**Examples**")[2], command.name
        assert "`--help`" in section


def test_the_page_of_settings_has_every_variable_that_is_read(site: Path) -> None:
    text = (ROOT / "planfreeze" / "settings.py").read_text()
    read = set(re.findall(r'(?:get|read_\w+)\((?:environ, )?"(PLANFREEZE_\w+)"', text))
    assert len(read) > 10
    assert set(re.findall(r"^\| `(PLANFREEZE_\w+)`", generated("settings"), re.MULTILINE)) == read


def test_the_page_of_errors_has_every_error_with_its_status(site: Path) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| \S", generated("errors"), re.MULTILINE))
    known = {name: getattr(errors, name) for name in errors.__all__}
    kinds = {name: str(kind.exit_code) for name, kind in known.items() if isinstance(kind, type)}
    assert len(kinds) > 80
    assert rows == kinds


def test_the_page_of_roads_has_every_road_of_the_guard(site: Path) -> None:
    assert tuple(re.findall(r"^## (.+)$", generated("roads"), re.MULTILINE)) == road_names()
