"""An empty store, moments of a collection, and what plans need of a store."""

from pathlib import Path

import pytest

from planfreeze.cache import sweeping
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import remove_entries
from planfreeze.holdings import find_holding
from planfreeze.packs import read_program

KINDS = ("plan", "record", "note", "blob")
DAY_S = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", writable=True)


def names(store: Store) -> set[tuple[str, str]]:
    return {(kind, entry.name) for kind in KINDS for entry in store.entries(kind)}


def needed(store: Store, *plans) -> set[tuple[str, str]]:
    return set().union(*(find_holding(plan, store).needed for plan in plans))


def is_whole(store: Store, plan) -> bool:
    """Whether a plan and every program of it can be read and proven."""
    store.get_plan(plan.root)
    return all(read_program(entry, store) for entry in plan.entries)


def unname(store: Store, plan) -> None:
    store.layout.entry("ref", plan.name).unlink()


# A batch makes its folder, reads the references, moves entries, reads the references again, deletes or puts back. The
# moments are those just before each of these steps but the first.
MOMENTS = ("first look", "first move", "second move", "second look", "end")


@pytest.fixture
def interrupt(monkeypatch):
    """Let an action happen once, at a moment of the next batch."""

    def arrange(moment: str, action) -> list[str]:
        happened: list[str] = []
        moves: list[str] = []

        def act(reached: str) -> None:
            if reached == moment and not happened:
                happened.append(moment)
                action()

        def remove(layout, doomed, find_kept):
            looks: list[int] = []

            def look():
                looks.append(1)
                act({1: "first look", 2: "second look"}.get(len(looks), ""))
                kept = find_kept()
                act({2: "end"}.get(len(looks), ""))
                return kept

            return remove_entries(layout, doomed, look)

        real_move = sweeping.move_aside

        def move(*arguments):
            moves.append("move")
            act({1: "first move", 2: "second move"}.get(len(moves), ""))
            return real_move(*arguments)

        monkeypatch.setattr("planfreeze.collection.remove_entries", remove)
        monkeypatch.setattr(sweeping, "move_aside", move)
        monkeypatch.setattr(sweeping, "SWEEP_TIMEOUT_S", 0.05)
        return happened

    return arrange
