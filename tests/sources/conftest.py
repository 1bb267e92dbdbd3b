"""Modules on the search path whose texts are sources."""

import importlib
import importlib.machinery
from pathlib import Path

import pytest

from planfreeze.sources import read_sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write modules below a folder on the search path: path to text."""
    root = tmp_path / "tree"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))

    def write(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return root

    return write


def names_of(*roots: str) -> list[str]:
    return [name for name, _ in read_sources(roots).modules]


ACME = {
    "acme/__init__.py": "",
    "acme/leaf.py": "value = 1",
    "acme/step.py": "from .leaf import value",
    "acme/unused.py": "",
    "acme/ring.py": "from . import kernel",
    "acme/deep/__init__.py": "",
    "acme/deep/mod.py": "value = 2",
    "acme/space/inner.py": "",
}
