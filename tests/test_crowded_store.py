"""A store with 50,000 entries of others: opening, building and serving 100 programs costs what 100 cost."""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from planfreeze.cache.store import Store
from planfreeze.holdings import read_program
from planfreeze.resolve import PlanReference, find_plan

sys.path.append(str(Path(__file__).parents[1] / "tools"))
openings = import_module("cpu_bench.openings")

FOREIGN = 50_000
PROGRAMS = [f"program {number}" for number in range(100)]
# Twice the time is far from what work in proportion to the store would take: 500 times as many entries.
MOST_TIMES = 2.0


def compare(stores: tuple[Store, Store], action: Callable[[Store, int], object]) -> tuple[float, float]:
    """The shortest times of an action over both stores, in seconds; other work on the machine only makes times longer.

    Measured in turn until the second is not far from the first, twelve times at most.
    """
    shortest = [float("inf"), float("inf")]
    for number in range(12):
        for place, store in enumerate(stores):
            started = time.perf_counter()
            action(store, number)
            shortest[place] = min(shortest[place], time.perf_counter() - started)
        if number and shortest[1] < MOST_TIMES * shortest[0]:
            break
    return shortest[0], shortest[1]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, stock) -> tuple[Store, Store]:
    """An empty and a crowded store, each with one plan of 100 programs."""
    made = []
    for name in ("lonely", "crowded"):
        store = Store.open(tmp_path_factory.mktemp(name) / "store", writable=True)
        stock.publish(store, "mine", PROGRAMS)
        made.append(store)
    openings.crowd(made[1], FOREIGN)
    assert sum(1 for kind in ("record", "blob", "note", "plan", "ref") for _ in made[1].entries(kind)) > FOREIGN
    return made[0], made[1]


def open_and_read(store: Store, _: int) -> int:
    opened = Store.open(store.path)
    plan = find_plan(opened, PlanReference("mine-tp1-sm_90a", None))
    return sum(len(read_program(entry, opened)) for entry in plan.entries)


def test_opening_a_plan_of_100_takes_as_long_as_without_them(stores):
    lonely, crowded = compare(stores, open_and_read)
    assert crowded < MOST_TIMES * lonely, (lonely, crowded)


def test_building_100_more_takes_as_long_as_without_them(stores, stock):
    def build(store: Store, number: int) -> None:
        opened = Store.open(store.path, writable=True)
        opened.check_trust()
        opened.get_ref("mine-tp1-sm_90a")
        stock.publish(opened, "mine", [f"{text} of build {number}" for text in PROGRAMS])

    lonely, crowded = compare(stores, build)
    assert crowded < MOST_TIMES * lonely, (lonely, crowded)


COUNT = """
    import json, sys
    calls = []
    from planfreeze.cache.store import Store
    from planfreeze.packs import read_program
    from planfreeze.resolve import PlanReference, find_plan
    def note(event, arguments):
        if event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(sys.argv[1]):
            calls.append(event)
    sys.addaudithook(note)
    store = Store.open(sys.argv[1])
    for entry in find_plan(store, PlanReference("mine-tp1-sm_90a", None)).entries:
        read_program(entry, store)
    print(json.dumps({event: calls.count(event) for event in set(calls)}))
    """


def test_opening_makes_the_same_system_calls_as_without_them_and_lists_no_folder(stores, interpreter):
    lonely, crowded = (json.loads(interpreter.run(COUNT, str(store.path))) for store in stores)
    assert lonely == crowded
    assert 2 * len(PROGRAMS) <= crowded["open"] <= 2 * len(PROGRAMS) + 10
    assert "os.scandir" not in crowded and "os.listdir" not in crowded
