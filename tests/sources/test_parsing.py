"""Parsing sources: a text is parsed once for all who share a memo, and by many threads at once."""

import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import planfreeze.sources
from planfreeze.sources import ModuleReader, Sources, read_sources

from .conftest import ACME


@pytest.fixture
def parsed(monkeypatch):
    """The modules whose text is parsed, as it happens."""
    names = []
    parse = planfreeze.sources.imported_names

    def note(name, *arguments):
        names.append(name)
        return parse(name, *arguments)

    monkeypatch.setattr(planfreeze.sources, "imported_names", note)
    return names


def read_with(memo: Path) -> Sources:
    reader = ModuleReader(memo)
    sources = read_sources(["acme.step"], reader)
    assert read_sources(["acme.leaf"], reader).modules[-1] in sources.modules
    reader.remember()
    return sources


def test_a_text_is_parsed_once_for_all_roots_and_processes_that_share_a_memo(tree, tmp_path, parsed):
    tree(ACME)
    expected = read_sources(["acme.step"])
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert sorted(parsed) == ["acme", "acme.leaf", "acme.step"]
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert parsed == []


def test_a_changed_text_is_parsed_again_and_what_it_was_is_forgotten(tree, tmp_path, parsed):
    root = tree(ACME)
    read_with(tmp_path / "memo")
    first = (tmp_path / "memo").read_text()
    (root / "acme" / "leaf.py").write_text("from .deep import mod")
    parsed.clear()
    assert "acme.deep.mod" in dict(read_with(tmp_path / "memo").modules)
    assert sorted(parsed) == ["acme.deep", "acme.deep.mod", "acme.leaf"]
    assert len(json.loads(first.rpartition(" ")[0])) == 3
    (root / "acme" / "leaf.py").write_text(ACME["acme/leaf.py"])
    read_with(tmp_path / "memo")
    assert (tmp_path / "memo").read_text() == first


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content.replace(b"acme", b"emca")])
def test_a_damaged_memo_counts_as_none(tree, tmp_path, parsed, damage):
    tree(ACME)
    expected = read_with(tmp_path / "memo")
    (tmp_path / "memo").write_bytes(damage((tmp_path / "memo").read_bytes()))
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert len(parsed) == 3


def test_a_memo_that_cannot_be_written_only_costs_time(tree, tmp_path):
    tree(ACME)
    (tmp_path / "file").write_text("")
    assert read_with(tmp_path / "file" / "memo") == read_sources(["acme.step"])


def test_threads_of_different_depths_parse_modules_at_once() -> None:
    # CPython 3.11 mixes up their depths where garbage is collected, and so threads change, in the middle of a tree.
    text = Path(planfreeze.sources.__file__).read_bytes()
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    class Slow:
        def __del__(self) -> None:
            sum(range(100))

    def parse(depth: int) -> None:
        if depth:
            parse(depth - 1)
            return
        for _ in range(50):
            garbage = Slow()
            garbage.me = garbage
            planfreeze.sources.imported_names("module", "package", Path("module.py"), text)

    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(parse, (0, 3, 6, 9)))
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
