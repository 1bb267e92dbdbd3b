"""The house: how long files and their lines are, whatever they are for."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("planfreeze", "kernels", "cache", "tools", "examples", "tests")
MAX_LINES, MAX_KERNEL_LINES, MAX_LETTERS = 300, 500, 120


def count_lines() -> Iterator[tuple[str, int]]:
    """Yield path and number of lines of every file of Python or C of the project; links are not followed."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".c", ".h"):
                yield str(path.relative_to(ROOT)), len(path.read_text().splitlines())


def test_files_are_short() -> None:
    longer = {
        name: count
        for name, count in count_lines()
        if count >= (MAX_KERNEL_LINES if name.startswith("kernels/") else MAX_LINES)
    }
    assert longer == {}


def test_lines_that_no_other_tool_looks_at_are_short() -> None:
    longer = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "CONTRIBUTING.md", *(ROOT / "planfreeze").glob("*.[ch]"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_LETTERS
    ]
    assert longer == []
