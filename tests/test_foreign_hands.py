"""Stores and packs in foreign hands: planted entries, links and names, other owners, shared groups."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import planfreeze
from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.collection import collect
from planfreeze.errors import DamagedPrograms, MissingPrograms, UntrustedStore
from planfreeze.packs import pack_plans, unpack_plans
from planfreeze.record import ProgramRecord
from planfreeze.resolve import PlanReference, find_plan, resolve_plan
from planfreeze.verification import quarantine, verify

NAME = "toys-tp1-sm_90a"
RUNNER = CliRunner()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="making another user's files takes root")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder every user can reach (pytest's own is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def session(store: Path, text: str) -> planfreeze.Session:
    return planfreeze.session(text, store=store)


def test_a_replaced_cubin_whose_record_was_deleted_is_neither_loaded_nor_blessed(store, frozen):
    """Of a missing manifest none is made from what lies beside it."""
    entry = frozen.entries[0]
    evil = b"evil cubin"
    store.layout.entry("blob", entry.blob).write_bytes(evil)
    store.layout.entry("record", entry.key).unlink()
    before = sorted(path for path in store.path.rglob("*"))
    with session(store.path, NAME) as opened, pytest.raises(MissingPrograms):
        opened.freeze()
    assert sorted(path for path in store.path.rglob("*")) == before, "a reader makes nothing"
    found = verify(store)
    assert ("blob", entry.blob, "damaged") in [(p.kind, p.name, p.state) for p in found.problems]
    quarantine(found.problems, store)
    assert not store.has_blob(entry.blob)
    store.layout.entry("blob", entry.blob).write_bytes(evil)
    assert RUNNER.invoke(app, ["verify", "--repair", "--store", str(store.path)]).exit_code == 0
    assert resolve_plan(frozen, store).check()[0].cubin == store.get_blob(entry.blob) != evil


def test_a_cubin_with_every_digest_in_the_store_made_anew_is_refused_by_the_pinned_root(store, frozen):
    """The attacker owns the store and makes it agree with itself; the root digest comes from elsewhere."""
    entry = frozen.entries[0]
    cubin = bytearray(store.get_blob(entry.blob))
    cubin[-1] ^= 1
    blob = store.put_blob(bytes(cubin))
    record = replace(ProgramRecord.decode(store.get_record(entry.key)), blob=blob)
    store.layout.entry("record", entry.key).unlink()
    digest = store.put_record(entry.key, record.encode()).digest
    evil = replace(frozen, entries=(replace(entry, record=digest, blob=blob), *frozen.entries[1:]))
    store.set_ref(NAME, store.put_plan(evil.encode()))
    assert find_plan(store, PlanReference.parse(NAME)) == evil, "unpinned, the name leads to it"
    for text in (frozen.root, f"{NAME}@sha256:{frozen.root}"):
        with session(store.path, text) as opened, pytest.raises(DamagedPrograms, match="its digest is"):
            opened.freeze()
        assert RUNNER.invoke(app, ["verify", "--plan", text, "--store", str(store.path)]).exit_code == 4
    pack = pack_plans([evil], store, store.path.parent / "evil.pfz").path
    done = RUNNER.invoke(app, ["replay", "--pack", str(pack), "--plan", f"{NAME}@sha256:{frozen.root}"])
    assert done.exit_code == 3


def test_the_bytes_that_are_loaded_are_the_bytes_that_were_hashed(store, frozen, monkeypatch):
    """A file that changes between two reads does not matter, since there is one."""
    entry = frozen.entries[0]
    path = store.layout.entry("blob", entry.blob)
    real, reads = os.open, []

    def open_and_change(name, flags, *arguments, **options):
        handle = real(name, flags, *arguments, **options)
        if os.fspath(name) == str(path):
            reads.append(name)
            path.unlink()
            path.write_bytes(b"exchanged after it was opened")
        return handle

    monkeypatch.setattr(os, "open", open_and_change)
    (program, _) = resolve_plan(frozen, store).check()
    assert len(reads) == 1 and digest_of(program.cubin) == entry.blob


def plant_links(folder: Path, names: list[str], victim: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).symlink_to(victim)


def test_links_at_every_name_that_can_be_foretold_lead_no_writer_to_their_victim(store, frozen, stock, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    late = stock.plan("late", ["a"])
    names = {kind: late_name for kind, late_name in (("record", late.entries[0].key), ("blob", late.entries[0].blob))}
    for kind, name in names.items():
        plant_links(store.layout.entry(kind, name).parent, [name], victim)
    plant_links(store.layout.entry("plan", late.root).parent, [late.root], victim)
    plant_links(store.path / "refs", [late.name], victim)
    for stripe in (f"{number:02x}" for number in range(256)):
        plant_links(
            store.layout.locks,
            [
                name
                for name in (stripe, f"{stripe}.holder", f"{stripe}.lock")
                if not os.path.lexists(store.layout.locks / name)
            ],
            victim,
        )
    stock.publish(store, "late", ["a"])
    assert find_plan(store, PlanReference.parse(late.name)) == late
    with store.lock_key(late.entries[0].key, 0.1):
        pass
    collect(store)
    path = tmp_path / "a.pfz"
    path.symlink_to(victim)
    pack_plans([late], store, path)
    assert not path.is_symlink() and Pack.open(path).list_refs()
    assert victim.read_bytes() == b"precious"


def test_no_name_in_a_pack_becomes_a_path(store, frozen, stock, tmp_path):
    """All that unpacking writes lies where digests, keys and reference names lie."""
    pack = Pack.open(pack_plans([frozen], store, tmp_path / "a.pfz").path)
    fresh = Store.open(tmp_path / "fresh", writable=True)
    outside = sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(fresh.path))
    unpack_plans([frozen], pack, fresh)
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(fresh.path)) == outside
    for kind in ("blob", "record", "plan", "ref"):
        assert {e.name for e in fresh.entries(kind)} == {e.name for e in pack.entries(kind)}


@pytest.mark.parametrize("place", [".", "records", "swept", ".."])
def test_an_existing_store_with_a_loose_mode_is_refused_however_it_is_opened(open_path, built, place):
    """That it is there already, and that a builder would make it with a safe mode, counts for nothing."""
    path = open_path / "folder" / "store"
    path.parent.mkdir()
    shutil.copytree(built.store.path, path)
    (path / place).mkdir(exist_ok=True)
    (path / place).chmod(0o777)
    with pytest.raises(UntrustedStore, match="can be written by others"):
        session(path, NAME)
    for command in (
        ("replay", "--plan", NAME),
        ("verify", "--plan", NAME),
        ("pack", "--plan", NAME, "-o", "/dev/null"),
    ):
        done = RUNNER.invoke(app, [*command, "--store", str(path)])
        assert done.exit_code == 4 and "can be written by others" in done.stderr
    assert RUNNER.invoke(app, ["build", "--model", "ds41", "--store", str(path)]).exit_code == 4
    assert RUNNER.invoke(app, ["verify", "--plan", NAME, "--trust-store", "--store", str(path)]).exit_code == 0


@as_root
@pytest.mark.parametrize("what", ["the store", "its parent", "a link to it"])
def test_a_store_in_another_users_hands_serves_a_pinned_plan_and_no_other(open_path, built, frozen, what):
    path = open_path / "folder" / "store"
    path.parent.mkdir()
    shutil.copytree(built.store.path, path)
    link = open_path / "link"
    link.symlink_to(path)
    owned = {"the store": path, "its parent": path.parent, "a link to it": link}[what]
    os.lchown(owned, 54321, 54321)
    with pytest.raises(UntrustedStore, match="belongs to user 54321"):
        session(link, NAME)
    with session(link, f"{NAME}@sha256:{frozen.root}") as opened:
        assert opened.plans == (frozen,)


def test_the_default_place_is_the_users_own_and_never_the_current_folder(interpreter, tmp_path):
    """An empty setting, or a current folder that somebody prepared, does not lead there."""
    planted = tmp_path / "planted"
    planted.mkdir()
    script = """
        import json, os, sys
        os.chdir(sys.argv[1])
        from planfreeze.settings import read_settings, store_path
        print(json.dumps(str(store_path(read_settings()))))
        """
    found = Path(json.loads(interpreter.run(script, str(planted), PLANFREEZE_STORE="")))
    assert found.is_absolute() and found.is_relative_to(interpreter.home)


@as_root
def test_modes_of_a_shared_store_are_its_owners_choice(open_path, built, frozen, stock, tmp_path):
    """Collecting, verifying and unpacking change no mode of what was there."""
    store = built.copy(open_path / "store")
    pack = Pack.open(pack_plans([frozen], store, tmp_path / "a.pfz").path)
    subprocess.run(["chmod", "-R", "g+ws", str(store.path)], check=True)
    subprocess.run(["chgrp", "-R", "2000", str(store.path)], check=True)
    modes = {item: item.lstat().st_mode for item in (store.path, *store.path.rglob("*"))}
    stock.fill(store, ["orphan"])
    stock.age(store, 2)
    assert len(collect(store).removed) == 3
    assert verify(store).problems == ()
    unpack_plans([frozen], pack, store)
    assert {item: item.lstat().st_mode for item in modes} == modes


@pytest.mark.parametrize("what", ["record", "blob", "all of it", "the whole store"])
def test_what_is_deleted_before_is_refused_by_name_and_what_is_deleted_after_is_held(store, frozen, what):
    entry = frozen.entries[0]
    held = resolve_plan(frozen, store).check()
    if what == "the whole store":
        shutil.rmtree(store.path)
    for kind, name in (("record", entry.key), ("blob", entry.blob)):
        if what in (kind, "all of it"):
            store.layout.entry(kind, name).unlink()
    resolution = resolve_plan(frozen, store)
    assert resolution.missing[0] == held[0].name
    assert all(digest_of(program.cubin) == program.record.blob for program in held)
