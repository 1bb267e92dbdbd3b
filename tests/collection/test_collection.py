"""Collecting garbage: named plans lose nothing, and the rest goes within budgets."""

import json
import os
import time

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.collection import GRACE_S, collect, take_census
from planfreeze.errors import DamagedEntry, DamagedPlan, MissingEntry, PlanTooNew, StoreUnusable
from planfreeze.holdings import find_holding
from planfreeze.packs import pack_plans

from ..command_line import run
from .conftest import DAY_S, KINDS, is_whole, names, needed, unname


def test_what_named_plans_need_stays_and_all_else_goes_after_a_day(store, stock):
    kept = stock.publish(store, "kept", ["a", "b"], companions=("launcher.so",))
    gone = stock.publish(store, "gone", ["b", "c"], companions=("other.so",))
    unname(store, gone)
    stock.fill(store, ["orphan"])
    before = needed(store, kept)
    assert collect(store).removed == ()
    stock.age(store, 2)
    collected = collect(store)
    assert names(store) == before and is_whole(store, kept)
    kinds = [kind for kind, _ in collected.removed]
    assert kinds == sorted(kinds, key=KINDS.index), "what names others goes first"
    assert collect(store).removed == ()


def test_a_dry_run_tells_the_same_and_removes_nothing(store, stock):
    stock.publish(store, "kept", ["a"])
    stock.fill(store, ["orphan"])
    stock.age(store, 2)
    before = {path: path.lstat().st_ctime_ns for path in store.path.rglob("*")}
    promised = collect(Store.open(store.path), is_dry_run=True)
    assert {path: path.lstat().st_ctime_ns for path in store.path.rglob("*")} == before
    done = collect(store)
    assert done == promised and len(done.removed) == 3


def test_age_is_counted_from_publication_and_access_does_not_matter(store, stock):
    stock.fill(store, ["old", "young"])
    key = digest_of(b"old")
    stock.age(store, 5, [("record", key)])
    os.utime(store.layout.entry("record", key), (time.time(), time.time() - 5 * DAY_S))
    assert collect(store, max_age_s=6 * DAY_S).removed == ()
    assert collect(store, max_age_s=4 * DAY_S).removed == (("record", key),)


def test_a_clock_that_jumped_back_keeps_what_comes_from_the_future(store, stock):
    stock.fill(store, ["a"])
    stock.age(store, -3650)
    assert collect(store, max_age_s=0.0).removed == ()


def test_a_plan_that_is_kept_without_a_name_keeps_all_it_needs(store, stock):
    pinned = stock.publish(store, "pinned", ["a", "b"])
    stock.age(store, 30)
    unname(store, pinned)
    stock.age(store, 0.5, [("plan", pinned.root)])
    assert collect(store, max_age_s=DAY_S).removed == () and is_whole(store, pinned)


def test_a_size_budget_takes_the_oldest_first_and_only_as_much_as_is_needed(store, stock):
    kept = stock.publish(store, "kept", ["a"])
    for number in range(10):
        stock.fill(store, [f"orphan {number}"])
        _, blobs = stock.record(f"orphan {number}")
        key = digest_of(f"orphan {number}".encode())
        stock.age(store, 10 - number, [("record", key), ("note", key), ("blob", digest_of(blobs[0]))])
    total = take_census(store).total_bytes
    assert collect(store, max_bytes=total).removed == ()
    collected = collect(store, max_bytes=total - 1500)
    assert collected.kept_bytes <= total - 1500 and not collected.is_over_budget
    gone = {name for kind, name in collected.removed if kind == "record"}
    assert gone and gone <= {digest_of(f"orphan {number}".encode()) for number in range(5)}
    collected = collect(store, max_bytes=0)
    assert collected.is_over_budget and names(store) == needed(store, kept)


def test_a_size_budget_takes_old_plans_without_a_name_with_all_only_they_need(store, stock):
    kept = stock.publish(store, "kept", ["a", "shared"])
    older, newer = stock.publish(store, "older", ["b", "shared"]), stock.publish(store, "newer", ["c", "both"])
    for plan, days in ((older, 9), (newer, 3)):
        unname(store, plan)
        stock.age(store, days, find_holding(plan, store).needed - needed(store, kept))
    total = take_census(store).total_bytes
    collect(store, max_bytes=total - 1)
    assert names(store) == needed(store, kept, newer) and is_whole(store, newer)
    collect(store, max_bytes=0)
    assert names(store) == needed(store, kept)


def test_a_size_budget_spares_the_last_hour(store, stock):
    stock.fill(store, ["in the making"])
    assert collect(store, max_bytes=0).removed == ()
    assert collect(store, max_bytes=0, now_s=time.time() + GRACE_S + 60).removed


def test_both_budgets_hold_at_once(store, stock):
    stock.fill(store, ["old", "less old"])
    for text, days in (("old", 9.0), ("less old", 2.0)):
        _, blobs = stock.record(text)
        key = digest_of(text.encode())
        stock.age(store, days, [("record", key), ("note", key), ("blob", digest_of(blobs[0]))])
    assert len(collect(store, max_age_s=5 * DAY_S, max_bytes=1 << 30).removed) == 3
    assert len(collect(store, max_age_s=5 * DAY_S, max_bytes=0).removed) == 3


@pytest.mark.parametrize("kind", ["plan", "ref"])
def test_nothing_is_removed_while_nobody_knows_what_is_needed(store, stock, kind):
    plan = stock.publish(store, "kept", ["a"])
    stock.fill(store, ["orphan"])
    stock.age(store, 9)
    before = names(store)
    store.layout.entry(kind, plan.root if kind == "plan" else plan.name).write_bytes(b"damaged")
    with pytest.raises((DamagedEntry, DamagedPlan)):
        collect(store)
    assert names(store) == before
    store.layout.entry("plan", plan.root).unlink()
    with pytest.raises((MissingEntry, DamagedEntry)):
        collect(store)


def test_a_plan_of_a_later_format_stops_the_collection(store, stock):
    import msgpack

    store.set_ref("later", store.put_plan(msgpack.packb(["planfreeze plan", 99, "whatever"])))
    stock.fill(store, ["what the later plan may need"])
    stock.age(store, 9)
    with pytest.raises(PlanTooNew):
        collect(store)


def test_while_a_named_plan_lacks_a_record_no_blob_goes_and_the_rest_does(store, stock):
    plan = stock.publish(store, "kept", ["a"], companions=("launcher.so",))
    stock.fill(store, ["orphan"])
    stock.age(store, 9)
    blobs = {entry.name for entry in store.entries("blob")}
    store.layout.entry("record", plan.entries[0].key).unlink()
    assert {kind for kind, _ in collect(store).removed} == {"record", "note"}
    assert {entry.name for entry in store.entries("blob")} == blobs
    stock.fill(store, ["a"], companions=("launcher.so",))
    assert {kind for kind, _ in collect(store).removed} == {"blob"}
    assert is_whole(store, plan)


def test_old_quarantined_files_go_too(store, stock):
    stock.publish(store, "kept", ["a"])
    for name, days in (("old", 3), ("young", 0)):
        (store.layout.quarantine / name).write_bytes(b"12345")
        os.utime(store.layout.quarantine / name, (time.time() - days * DAY_S,) * 2)
    assert collect(store, is_dry_run=True).removed_bytes == 5
    assert collect(store).removed_bytes == 5
    assert [path.name for path in store.layout.quarantine.iterdir()] == ["young"]


def test_a_reader_collects_nothing(store, stock):
    with pytest.raises(StoreUnusable, match="opened for reading"):
        collect(Store.open(store.path))


def test_what_lies_in_place_of_an_entry_is_removed_and_never_followed(store, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = store.layout.entry("blob", digest_of(b"link"))
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    assert collect(store, max_age_s=-1.0).removed == (("blob", digest_of(b"link")),)
    assert victim.read_bytes() == b"precious" and not os.path.lexists(path)


def test_the_command_line_collects_and_says_so(store, stock):
    kept = stock.publish(store, "kept", ["a"])
    stock.fill(store, ["orphan"])
    stock.age(store, 2)
    status, stdout, _ = run("gc", "--store", store.path, "--dry-run", "--json")
    promised = json.loads(stdout)
    assert status == 0 and promised["dry_run"] and promised["removed"] == {"plan": 0, "record": 1, "blob": 1, "note": 1}
    assert run("gc", "--store", store.path, "--max-age", "3", "--json")[0] == 0 and store.has_record(
        digest_of(b"orphan")
    )
    status, stdout, _ = run("gc", "--store", store.path)
    assert status == 0 and stdout.startswith("removed 0 plans, 1 records, 1 blobs, 1 notes")
    assert names(store) == needed(store, kept)
    status, stdout, stderr = run("gc", "--store", store.path, "--max-bytes", "10", "--json")
    assert status == 1 and json.loads(stdout)["over_budget"] and "--max-bytes" in stderr
    assert run("gc", "--store", store.path, "--max-age", "-1")[0] == 2


def test_collecting_makes_no_store_and_no_pack_smaller(store, stock, tmp_path):
    assert run("gc", "--store", tmp_path / "absent")[0] == 3
    assert not (tmp_path / "absent").exists()
    plan = stock.publish(store, "kept", ["a"])
    path = pack_plans([plan], store, tmp_path / "a.pfz").path
    assert run("gc", "--store", path)[0] == 2


def test_ls_lists_plans_sizes_programs_and_what_nobody_needs(store, stock, tmp_path):
    kept = stock.publish(store, "kept", ["a", "b"])
    unnamed = stock.publish(store, "unnamed", ["b", "c"])
    unname(store, unnamed)
    status, stdout, _ = run("ls", "--store", store.path, "--json")
    listed = json.loads(stdout)
    assert status == 0
    assert [(p["name"], p["root"], p["programs"], p["named_by"], p["whole"]) for p in listed["plans"]] == [
        (kept.name, kept.root, 2, [kept.name], True),
        (unnamed.name, unnamed.root, 2, [], True),
    ]
    size_of = {(kind, e.name): e.size_bytes for kind in KINDS for e in store.entries(kind)}
    assert listed["plans"][0]["bytes"] == sum(size_of[name] for name in find_holding(kept, store).entries)
    assert listed["bytes"] == sum(size_of.values())
    assert listed["unreachable_bytes"] == sum(size for name, size in size_of.items() if name not in needed(store, kept))
    store.layout.entry("blob", kept.entries[0].blob).unlink()
    status, stdout, _ = run("ls", "--store", store.path)
    assert status == 0 and "not whole" in stdout and "without a name" in stdout
    pack = pack_plans([unnamed], store, tmp_path / "a.pfz").path
    listed = json.loads(run("ls", "--store", pack, "--json")[1])
    assert [plan["root"] for plan in listed["plans"]] == [unnamed.root] and listed["unreachable_bytes"] == 0
