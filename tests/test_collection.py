"""Collecting garbage: named plans lose nothing, the rest goes within budgets, beside anyone who is at work."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planfreeze.builds import build_plans
from planfreeze.cache import sweeping
from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pins import list_pins
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import remove_entries, restore_swept
from planfreeze.cli import app
from planfreeze.collection import GRACE_S, collect, take_census
from planfreeze.errors import DamagedEntry, DamagedPlan, MissingEntry, PlanTooNew, StoreUnusable
from planfreeze.holdings import find_holding, pinned_plans
from planfreeze.packs import pack_plans, read_program, unpack_plans
from planfreeze.verification import verify

RUNNER = CliRunner()
KINDS = ("plan", "record", "note", "blob")
DAY_S = 86400.0


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = RUNNER.invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


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
