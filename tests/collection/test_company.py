"""Collecting beside others: plans that are unpacked, named, pinned or built meanwhile lose nothing."""

import os
import signal
import threading
import time

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache import sweeping
from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pins import list_pins
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import remove_entries
from planfreeze.collection import collect
from planfreeze.holdings import pinned_plans
from planfreeze.packs import pack_plans, unpack_plans
from planfreeze.verification import verify

from .conftest import DAY_S, KINDS, MOMENTS, is_whole, names, unname


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_plan_that_is_unpacked_during_a_collection_is_whole_then_and_afterwards(
    store, stock, tmp_path, interrupt, moment, is_there
):
    """The pack's plan needs what is about to be removed; where it ``is_there`` it is about to be removed, too.

    The collector stands still meanwhile, as if it had been stopped: the builder does not wait for ever, and neither
    it nor the collector that goes on takes anything from the plan.
    """
    elsewhere = Store.open(tmp_path / "elsewhere", writable=True)
    plan = stock.publish(elsewhere, "late", ["a", "b", "c"], companions=("launcher.so",))
    pack = Pack.open(pack_plans([plan], elsewhere, tmp_path / "a.pfz").path)
    stock.fill(store, ["a", "b", "orphan"], companions=("launcher.so",))
    if is_there:
        store.put_plan(plan.encode())
    stock.publish(store, "kept", ["z"])
    stock.age(store, 9)

    def unpack() -> None:
        unpack_plans([plan], pack, Store.open(store.path, writable=True))
        assert is_whole(store, plan)

    happened = interrupt(moment, unpack)
    collect(store)
    assert happened
    assert store.get_ref(plan.name) == plan.root and is_whole(store, plan)
    collect(store, now_s=time.time() + 9 * DAY_S)
    assert is_whole(store, plan) and not store.has_record(digest_of(b"orphan"))


@pytest.mark.parametrize("moment", MOMENTS[:-1])
def test_a_name_that_is_set_before_a_collection_decides_keeps_its_plan(store, stock, interrupt, moment):
    old = stock.publish(store, "old", ["a", "b"], companions=("launcher.so",))
    unname(store, old)
    stock.publish(store, "kept", ["z"])
    stock.age(store, 9)

    def name_it() -> None:
        store.layout.entry("ref", old.name).write_text(f"{old.root}\n")

    assert interrupt(moment, name_it) == []
    collect(store)
    assert is_whole(store, old)


def test_a_build_waits_for_a_collector_at_work_and_not_for_one_that_was_killed(store, stock, monkeypatch):
    plan = stock.publish(store, "kept", ["a"])
    folder = store.layout.swept / ("0" * 32)
    folder.mkdir(parents=True)
    monkeypatch.setattr(sweeping, "SWEEP_TIMEOUT_S", 60.0)
    ended = threading.Timer(0.3, folder.rmdir)
    started = time.monotonic()
    ended.start()
    with pinned_plans([plan], store):
        assert not folder.exists() and 0.3 <= time.monotonic() - started < 60
    ended.join()
    monkeypatch.setattr(sweeping, "SWEEP_TIMEOUT_S", 0.1)
    folder.mkdir()
    record = store.layout.entry("record", plan.entries[0].key)
    record.rename(folder / f"record-{record.name}")
    with pinned_plans([plan], store):
        assert is_whole(store, plan) and not folder.exists(), "undone, and what it held is back"


def test_a_plan_that_is_pinned_keeps_all_it_needs_and_one_that_is_not_there_yet_keeps_everything(store, stock):
    stock.publish(store, "named", ["z"])
    old = stock.publish(store, "old", ["a"], companions=("launcher.so",))
    unname(store, old)
    stock.fill(store, ["orphan"])
    stock.age(store, 9)
    before = names(store)
    with pinned_plans([stock.plan("later", ["b"])], store):
        assert collect(store).removed == () and names(store) == before
    with pinned_plans([old], store):
        assert {name for kind, name in collect(store).removed if kind == "record"} == {digest_of(b"orphan")}
        assert is_whole(store, old)
    assert list(store.layout.pins.iterdir()) == []
    assert collect(store).removed and not store.has_entry("plan", old.root)


def test_a_plan_that_gets_its_name_between_a_look_at_the_pins_and_one_at_the_references_stays(
    store, stock, monkeypatch
):
    """Its builder has waited for sweeps before this one began, so nothing else would save it."""
    plan = stock.publish(store, "old", ["a"], companions=("launcher.so",))
    unname(store, plan)
    stock.publish(store, "named", ["z"])
    stock.age(store, 9)
    pin = pinned_plans([plan], store)
    pin.__enter__()
    looks: list[str] = []

    def look(name, real):
        def read(*arguments):
            found = real(*arguments)
            looks.append(name)
            if len(looks) == 1:
                store.set_ref(plan.name, plan.root)
                pin.__exit__(None, None, None)
            assert is_whole(store, plan), "at every moment, not only in the end"
            return found

        return read

    def remove(layout, doomed, find_kept):
        monkeypatch.setattr(Store, "list_refs", look("references", Store.list_refs))
        monkeypatch.setattr("planfreeze.collection.list_pins", look("pins", list_pins))
        return remove_entries(layout, doomed, find_kept)

    monkeypatch.setattr("planfreeze.collection.remove_entries", remove)
    assert collect(store).removed == ()
    assert len(looks) == 4 and is_whole(store, plan)


def test_pins_of_dead_builders_count_for_nothing_and_those_of_other_hosts_for_a_day(store, stock):
    plan = stock.publish(store, "old", ["a"])
    unname(store, plan)
    stock.age(store, 9)
    child = os.fork()
    if child == 0:
        held = pinned_plans([plan], store)
        held.__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (dead,) = store.layout.pins.iterdir()
    foreign = dead.with_name(f"{plan.root}-{'f' * 16}-1-1-{'0' * 32}")
    foreign.touch()
    (store.layout.pins / "no pin").touch()
    assert list_pins(store.layout) == {plan.root} and not dead.exists()
    assert collect(store).removed == ()
    os.utime(foreign, (0, time.time() - 2 * DAY_S))
    assert collect(store).removed and not foreign.exists() and (store.layout.pins / "no pin").exists()


def test_a_build_whose_programs_are_collected_before_its_plan_has_a_name_builds_them_again(
    built, tmp_path, toolchains, monkeypatch
):
    store = built.copy(tmp_path / "store")
    frozen = built.report.plans[0]
    unname(store, frozen)
    collector = Store.open(store.path, writable=True)
    collections = []

    def pin_late(plans, store):
        collections.append(collect(collector, max_age_s=-1.0))
        return pinned_plans(plans, store)

    monkeypatch.setattr("planfreeze.builds.pinned_plans", pin_late)
    report = build_plans([built.plan], store, jobs=1, toolchains=toolchains)
    assert {kind for kind, _ in collections[0].removed} == set(KINDS)
    assert [outcome.status for outcome in report.outcomes] == ["compiled", "compiled"]
    assert verify(store).problems == () and store.get_ref(frozen.name) == frozen.root
