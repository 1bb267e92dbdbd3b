"""Verifying a store: every kind of damage is found, told, and put aside by those who may."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from planfreeze import progress
from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.store import Store
from planfreeze.errors import DamagedEntry, PlanfreezeError
from planfreeze.packs import pack_plans
from planfreeze.record import ProgramRecord
from planfreeze.verification import quarantine, verify

from .command_line import run
from .verified_stores import NAME, facts, flip


def test_a_whole_store_has_no_problems_and_every_entry_is_counted(built):
    seen: list[tuple[int, int]] = []
    found = verify(built.store, on_entry=lambda done, total: seen.append((done, total)))
    assert (found.problems, found.others) == ((), ())
    assert found.checked == {"blob": 2, "record": 2, "plan": 1, "ref": 1}
    assert seen == [(done, 6) for done in range(1, 7)]
    assert found.size_bytes == sum(e.size_bytes for kind in found.checked for e in built.store.entries(kind))


def test_verifying_changes_nothing(built):
    before = {path: path.lstat() for path in built.store.path.rglob("*")}
    verify(Store.open(built.store.path))
    after = {path: path.lstat() for path in built.store.path.rglob("*")}
    assert {p: (s.st_mtime_ns, s.st_ctime_ns) for p, s in before.items()} == {
        p: (s.st_mtime_ns, s.st_ctime_ns) for p, s in after.items()
    }


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a link": lambda path: (path.rename(path.with_name(".elsewhere")), path.symlink_to(".elsewhere"))[0],
    "a folder": lambda path: (path.unlink(), path.mkdir())[0],
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path))[0],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["blob", "record", "plan", "ref"])
def test_every_damage_of_every_kind_is_found_named_and_put_aside_with_its_reason(store, frozen, kind, damage):
    entry = frozen.entries[0]
    name = {"blob": entry.blob, "record": entry.key, "plan": frozen.root, "ref": NAME}[kind]
    path = store.layout.entry(kind, name)
    DAMAGE[damage](path)
    found = verify(Store.open(store.path))
    assert (kind, name, "damaged") in [(p.kind, p.name, p.state) for p in found.problems]
    (problem,) = [problem for problem in quarantine(found.problems, store) if problem.state == "damaged"]
    assert not os.path.lexists(path) and os.path.lexists(problem.quarantined)
    reason = problem.quarantined.with_name(f"{problem.quarantined.name}.reason")
    assert problem.reason in reason.read_text()


@pytest.mark.parametrize("kind", ["blob", "record", "plan"])
def test_what_is_missing_is_told_of_what_names_it(store, frozen, kind):
    entry = frozen.entries[0]
    name = {"blob": entry.blob, "record": entry.key, "plan": frozen.root}[kind]
    store.layout.entry(kind, name).unlink()
    expected = {
        "blob": [("record", entry.key, "incomplete"), ("plan", frozen.root, "incomplete")],
        "record": [("plan", frozen.root, "incomplete")],
        "plan": [("ref", NAME, "incomplete")],
    }
    assert facts(store) == expected[kind]
    assert all(name in problem.reason for problem in verify(store).problems)


def test_a_missing_companion_is_told(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    plan = stock.publish(store, "stock", ["a"], companions=("launcher.so",))
    _, blobs = stock.record("a", ("launcher.so",))
    store.layout.entry("blob", digest_of(blobs[1])).unlink()
    assert ("plan", plan.root, "incomplete") in facts(store)


def test_a_record_that_describes_another_kernel_than_its_cubin_is_damage(store, frozen):
    entry = frozen.entries[0]
    record = ProgramRecord.decode(store.get_record(entry.key))
    store.layout.entry("record", entry.key).unlink()
    store.put_record(entry.key, replace(record, registers=record.registers + 1).encode())
    assert ("record", entry.key, "damaged") in facts(store)


def test_a_blob_that_is_no_cubin_condemns_its_record_and_not_itself(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    plan = stock.publish(store, "stock", ["a"])
    assert facts(store) == [("record", plan.entries[0].key, "damaged")]


def test_a_whole_plan_whose_records_are_others_is_incomplete(store, frozen):
    entry = frozen.entries[0]
    other = replace(frozen, entries=(replace(entry, record="0" * 64), frozen.entries[1]))
    store.put_plan(other.encode())
    assert facts(store) == [("plan", other.root, "incomplete")]


def test_a_reference_to_a_plan_of_another_name_is_damage(store, frozen):
    (store.path / "refs" / "other-tp1-sm_90a").write_bytes((store.path / "refs" / NAME).read_bytes())
    assert facts(store) == [("ref", "other-tp1-sm_90a", "damaged")]


def test_entries_of_another_format_are_left_alone_by_everyone(store, frozen, toolchains):
    import msgpack

    later, key = msgpack.packb([99, "whatever"]), digest_of(b"later")
    store.put_record(key, later)
    root = store.put_plan(msgpack.packb(["planfreeze plan", 99, "whatever"]))
    found = verify(store)
    assert found.problems == () and found.others == (("plan", root), ("record", key))
    assert run("verify", "--repair", "--store", store.path)[0] == 0
    assert store.get_record(key) == later and store.has_entry("plan", root)


def test_foreign_files_are_no_entries(store):
    (store.path / "objects" / "README").write_bytes(b"")
    (store.path / "records" / "00").mkdir(exist_ok=True)
    (store.path / "records" / "00" / ".nfs0001").write_bytes(b"")
    assert facts(store) == []


def test_one_plan_is_checked_with_all_it_needs_and_nothing_else(store, frozen, stock):
    stock.publish(store, "stock", ["a"])
    assert facts(store, frozen) == []
    assert len(facts(store)) == 1
    store.layout.entry("blob", frozen.entries[0].blob).unlink()
    assert ("blob", frozen.entries[0].blob, "incomplete") in facts(store, frozen)


def test_a_pack_is_verified_like_a_store(built, frozen, tmp_path):
    path = pack_plans([frozen], built.store, tmp_path / "a.pfz").path
    assert facts(Pack.open(path)) == []
    entry = Pack.open(path).index.blobs[0]
    data = bytearray(path.read_bytes())
    data[entry.offset] ^= 1
    path.write_bytes(data)
    assert ("blob", entry.name, "damaged") in facts(Pack.open(path))
    status, _, stderr = run("verify", "--store", path)
    assert status == 4 and f"planfreeze pack --plan NAME --store DIR -o {path}" in stderr and "repair" not in stderr
    assert run("verify", "--store", path, "--repair")[0] == 2
    assert path.read_bytes() == data


def test_the_command_line_reports_puts_aside_repairs_and_exits_0_or_4(store, frozen):
    assert run("verify", "--store", store.path)[0] == 0
    flip(store.layout.entry("blob", frozen.entries[0].blob))
    status, stdout, stderr = run("verify", "--store", store.path, "--json")
    assert status == 4 and "planfreeze verify --repair" in stderr
    found = json.loads(stdout)
    damaged = [problem for problem in found["problems"] if problem["state"] == "damaged"]
    assert [problem["name"] for problem in damaged] == [frozen.entries[0].blob] and damaged[0]["quarantined"]
    assert found["checked"] == {"blob": 2, "record": 2, "plan": 1, "ref": 1} and found["repaired"] is None
    assert run("verify", "--store", store.path)[0] == 4, "what was put aside is missing now"
    status, stdout, _ = run("verify", "--store", store.path, "--repair", "--json")
    assert status == 0 and json.loads(stdout)["repaired"]["rebuilt"] == 1
    assert run("verify", "--store", store.path)[0] == 0


def test_the_command_line_says_what_it_cannot_repair(store, frozen):
    store.layout.entry("plan", frozen.root).unlink()
    status, stdout, _ = run("verify", "--store", store.path, "--repair")
    assert status == 4 and "not repaired" in stdout and frozen.root in stdout


def test_the_command_line_verifies_a_pinned_plan(store, frozen):
    store.path.chmod(0o777)
    assert run("verify", "--store", store.path, "--plan", f"{NAME}@sha256:{frozen.root}")[0] == 0
    assert run("verify", "--store", store.path, "--plan", NAME)[0] == 4, "others can write to it"
    assert run("verify", "--store", store.path, "--plan", f"{NAME}@sha256:{'0' * 64}")[0] == 3
    flip(store.layout.entry("plan", frozen.root))
    assert run("verify", "--store", store.path, "--plan", frozen.root)[0] == 4


def test_verifying_makes_no_store(tmp_path):
    assert run("verify", "--store", tmp_path / "absent")[0] == 3
    assert run("verify", "--repair", "--store", tmp_path / "absent")[0] == 3
    assert not (tmp_path / "absent").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_without_the_right_to_write_damage_is_reported_and_stays(store, frozen, tmp_path_factory):
    place = Path("/tmp") / f"planfreeze-verify-{os.getpid()}"
    shutil.copytree(store.path, place)
    path = place / store.layout.entry("blob", frozen.entries[0].blob).relative_to(store.layout.root)
    flip(path)
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            plain, _, _ = run("verify", "--store", place)
            asked, _, _ = run("verify", "--store", place, "--repair")
            status = 10 * plain + asked
        finally:
            os._exit(status)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 46, "4: damaged; 6: not writable"
        assert path.exists() and list((place / "quarantine").iterdir()) == []
    finally:
        shutil.rmtree(place)


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(built, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.verify_progress() as show:
        verify(built.store, on_entry=show)
    assert capsys.readouterr().err.splitlines()[-1] == "verified 6 of 6 entries"


def test_what_cannot_be_read_is_no_damage(built, monkeypatch):
    def fail(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    store = Store.open(built.store.path)
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(PlanfreezeError, match="Input/output error") as raised:
        verify(store)
    assert raised.value.exit_code == 6


def test_what_builders_and_collectors_do_meanwhile_is_no_damage(store, frozen, monkeypatch):
    blob, real = frozen.entries[0].blob, Store.get_blob
    calls = []

    def damaged_once(self: Store, digest: str) -> bytes:
        if digest == blob and not calls:
            calls.append(digest)
            raise DamagedEntry(f"blob {digest}", "its place", "a builder is about to replace it")
        return real(self, digest)

    monkeypatch.setattr(Store, "get_blob", damaged_once)
    assert facts(store) == [] and calls
