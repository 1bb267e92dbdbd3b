"""Collectors that are killed anywhere, and many of them beside builders and sessions."""

import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from planfreeze.cache.pack import Pack
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import remove_entries, restore_swept
from planfreeze.collection import collect
from planfreeze.errors import MissingEntry
from planfreeze.holdings import find_holding
from planfreeze.packs import pack_plans, unpack_plans

from .conftest import is_whole, names, needed, unname


@pytest.mark.parametrize("stop_at", range(1, 12))
def test_a_collector_that_is_killed_anywhere_loses_nothing_that_is_named(store, stock, monkeypatch, stop_at):
    kept = stock.publish(store, "kept", ["a"])
    late = stock.publish(store, "late", ["b", "c"])
    unname(store, late)
    stock.age(store, 9)
    calls = []

    class KilledError(BaseException):
        pass

    for name in ("rename", "unlink", "rmdir", "mkdir"):
        real = getattr(Path, name)

        def step(self, *arguments, real=real, **options):
            calls.append(self)
            if len(calls) == stop_at:
                raise KilledError
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, name, step)
    with pytest.raises(KilledError):
        collect(store)
    monkeypatch.undo()
    assert is_whole(store, kept)
    collect(store)
    assert names(store) == needed(store, kept)
    assert list(store.layout.swept.iterdir()) == []


def test_what_a_killed_collector_moved_aside_comes_back(store, stock):
    plan = stock.publish(store, "kept", ["a"], companions=("launcher.so",))
    entries = sorted(find_holding(plan, store).entries)
    removal = remove_entries(store.layout, entries, lambda: frozenset())
    next(removal)
    del removal
    assert restore_swept(store.layout) == len(entries) - 1
    stock.publish(store, "kept", ["a"], companions=("launcher.so",))
    assert is_whole(store, plan) and restore_swept(store.layout) == 0


def test_planted_names_among_what_was_moved_aside_lead_nowhere(store, tmp_path):
    folder = store.layout.swept / ("0" * 32)
    folder.mkdir(parents=True)
    for name in ("blob-..", "blob-x", f"tmp-{'0' * 64}", "ref-name", "nonsense"):
        (folder / name).write_bytes(b"")
    before = {str(path) for path in store.path.rglob("*")}
    assert restore_swept(store.layout) == 0
    assert {str(path) for path in store.path.rglob("*")} == before


def repeat_together(*actions, seconds: float) -> None:
    """Repeat every action in a thread of its own for some seconds; raise the first error."""
    deadline = time.monotonic() + seconds
    errors: list[BaseException] = []

    def loop(action) -> None:
        try:
            while time.monotonic() < deadline and not errors:
                action()
        except BaseException as error:  # noqa: BLE001  # the test reports it
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def test_builders_sessions_and_collectors_side_by_side_lose_nothing(store, stock, tmp_path):
    """Builders name and publish plans over shared programs while two collectors take whatever is not named yet."""
    elsewhere = Store.open(tmp_path / "elsewhere", writable=True)
    texts = [f"program {number}" for number in range(12)]
    chosen = [random.Random(number).sample(texts, 6) for number in range(3)]
    plans = [
        stock.publish(elsewhere, f"plan{number}", some, companions=("launcher.so",))
        for number, some in enumerate(chosen)
    ]
    pack = Pack.open(pack_plans(plans, elsewhere, tmp_path / "a.pfz").path)
    counts, unnamed = Counter(), Counter()

    def build(plan) -> None:
        unpack_plans([plan], pack, Store.open(store.path, writable=True))
        assert is_whole(Store.open(store.path), plan), "named, so it is whole for everyone"
        unnamed[plan.name] += 1
        unname(store, plan)
        unnamed[plan.name] += 1
        counts["unpacked"] += 1

    def sweep() -> None:
        counts["removed"] += len(collect(Store.open(store.path, writable=True), max_age_s=-3600.0).removed)

    def serve() -> None:
        for plan in plans:
            before = unnamed[plan.name]
            if before % 2 or store.get_ref(plan.name) is None:
                continue
            try:
                counts["read"] += is_whole(Store.open(store.path), plan)
            except MissingEntry:
                assert unnamed[plan.name] != before, "what has its name all the while is whole all the while"

    repeat_together(*(partial(build, plan) for plan in plans), sweep, sweep, serve, seconds=3)
    assert counts["unpacked"] and counts["removed"] and counts["read"], counts
    unpack_plans(plans, pack, store)
    collect(store, max_age_s=-3600.0)
    assert all(is_whole(store, plan) for plan in plans)
    assert names(store) == {name for name in needed(store, *plans) if name[0] != "note"}, "a pack holds no notes"
