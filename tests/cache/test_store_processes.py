"""Many processes at one store."""

import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import StoreMissing

RunProcesses = Callable[[int, Callable[[int], object]], list[object]]
PROGRAMS = [digest_of(b"program %d" % n).encode() * 400 for n in range(8)]


def build_all(path: Path, number: int) -> list[tuple[str, str]]:
    """Publish all programs, beginning with another one in every process; return digests and outcomes."""
    store = Store.open(path, writable=True)
    made = []
    for data in PROGRAMS[number % 8 :] + PROGRAMS[: number % 8]:
        digest = store.put_blob(data)
        made.append((digest, store.put_record(digest, digest.encode()).outcome))
    store.set_ref("plan", store.put_plan(b"".join(PROGRAMS)))
    return made


def watch_until_planned(path: Path) -> list[tuple[str, str]]:
    """Open, list and read the store over and over until the reference is there."""
    while True:
        try:
            store = Store.open(path)
        except StoreMissing:
            continue
        for entry in store.entries("blob"):
            store.get_blob(entry.name)
        for entry in store.entries("record"):
            assert store.get_record(entry.name) == entry.name.encode()
            assert store.has_blob(entry.name), "a record appears after its blob"
        for root in store.list_refs().values():
            assert store.get_plan(root) == b"".join(PROGRAMS)
            return []


@pytest.mark.parametrize("has_links", [True, False])
def test_sixteen_builders_publish_the_same_entries_while_one_lists(
    tmp_path: Path, run_processes: RunProcesses, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse_links)
    for attempt in range(5):
        path = tmp_path / f"store{attempt}"
        results = run_processes(
            17, lambda number, path=path: build_all(path, number) if number < 16 else watch_until_planned(path)
        )
        made = [pair for result in results for pair in result]  # type: ignore[attr-defined]
        store = Store.open(path)
        for data in PROGRAMS:
            outcomes = [outcome for digest, outcome in made if digest == digest_of(data)]
            assert len(outcomes) == 16
            assert outcomes.count("published") == 1 or not has_links
            assert outcomes.count("different") == 0
            assert store.get_blob(digest_of(data)) == data
        assert len(list(store.entries("blob"))) == len(list(store.entries("record"))) == 8
        assert list(store.layout.temporaries.iterdir()) == []
        assert list(store.layout.quarantine.iterdir()) == []


def refuse_links(*arguments: object, **options: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_of_different_records_for_one_key_exactly_one_is_published(store: Store, run_processes: RunProcesses) -> None:
    keys = [digest_of(b"key %d" % n) for n in range(10)]
    results = run_processes(8, lambda number: [store.put_record(key, b"by %d" % number) for key in keys])
    for position, key in enumerate(keys):
        made = [result[position] for result in results]  # type: ignore[index]
        assert [put.outcome for put in made].count("published") == 1
        assert [put.outcome for put in made].count("different") == 7
        assert {put.digest for put in made} == {digest_of(store.get_record(key))}


def test_readers_of_a_reference_see_the_old_or_the_new_plan(store: Store, run_processes: RunProcesses) -> None:
    roots = [store.put_plan(b"plan %d" % n) for n in range(4)]
    store.set_ref("name", roots[0])
    satisfied_readers = multiprocessing.get_context("fork").Value("i", 0)

    def turn(number: int) -> set[str]:
        """Turn the reference round and round until every reader has seen it change."""
        step = number
        while satisfied_readers.value < 4:
            store.set_ref("name", roots[step % 4])
            step += 1
        return set()

    def read(number: int) -> set[str | None]:
        seen = set()
        while len(seen) < 4:
            seen.add(store.get_ref("name"))
        with satisfied_readers.get_lock():
            satisfied_readers.value += 1
        return seen

    results = run_processes(8, lambda number: turn(number) if number < 4 else read(number))
    assert all(seen == set(roots) for seen in results[4:])
    assert list(store.layout.temporaries.iterdir()) == []
