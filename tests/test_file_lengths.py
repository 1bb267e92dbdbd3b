"""The house: how long files are, whatever they are for."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("planfreeze", "kernels", "cache", "tools", "examples", "tests")
MAX_LINES, MAX_KERNEL_LINES = 300, 500


def count_lines() -> Iterator[tuple[str, int]]:
    """Yield path and number of lines of every Python file of the project; links are not followed."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), len(path.read_text().splitlines())


def test_files_are_short() -> None:
    longer = {
        name: count
        for name, count in count_lines()
        if count >= (MAX_KERNEL_LINES if name.startswith("kernels/") else MAX_LINES)
    }
    assert longer == {}
