"""Packs of frozen plans: written from a store, served in place, taken apart again."""

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from typer.testing import CliRunner

import planfreeze
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import PackIndex
from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.errors import (
    DamagedPrograms,
    EmptyPlan,
    MissingPrograms,
    RecordsDiffer,
    SessionState,
    UntrustedPack,
    UntrustedStore,
)
from planfreeze.packs import pack_plans, unpack_plans
from planfreeze.replays import replay_plan
from planfreeze.resolve import PlanReference, find_plan, find_plans, resolve_plan

NAME = "toys-tp1-sm_90a"
RUNNER = CliRunner()


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = RUNNER.invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def pack(built, frozen, tmp_path: Path) -> Path:
    return pack_plans([frozen], built.store, tmp_path / "toys.pfz").path


def test_a_pack_resolves_as_the_store_does(built, frozen, pack):
    opened = Pack.open(pack)
    assert find_plan(opened, PlanReference(NAME, None)) == frozen
    from_pack, from_store = (resolve_plan(frozen, source).check() for source in (opened, built.store))
    assert [(p.record, p.cubin, p.companions) for p in from_pack] == [
        (p.record, p.cubin, p.companions) for p in from_store
    ]


def test_the_same_plan_gives_the_same_bytes_from_any_store_or_pack(built, frozen, pack, tmp_path, stock):
    other = built.copy(tmp_path / "other")
    stock.publish(other, "foreign", ["a", "b"])
    again = pack_plans([frozen], other, tmp_path / "again.pfz")
    packed_from_pack = pack_plans([frozen], Pack.open(pack), tmp_path / "from_pack.pfz")
    assert again.path.read_bytes() == pack.read_bytes() == packed_from_pack.path.read_bytes()
    assert again.size_bytes == pack.stat().st_size and again.programs == 2


def test_a_pack_holds_the_companions_of_cubins(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    plan = stock.publish(store, "stock", ["a", "b"], companions=("launcher.so", "runtime.so"))
    path = pack_plans([plan], store, tmp_path / "a.pfz").path
    assert {e.name for e in Pack.open(path).entries("blob")} == {e.name for e in store.entries("blob")}
    unpacked = Store.open(tmp_path / "unpacked", writable=True)
    unpack_plans([plan], Pack.open(path), unpacked)
    for kind in ("blob", "record", "plan", "ref"):
        assert {e.name for e in unpacked.entries(kind)} == {e.name for e in store.entries(kind)}


def test_several_plans_share_what_they_have_in_common(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    plans = [stock.publish(store, "one", ["a", "b"]), stock.publish(store, "two", ["b", "c"])]
    pack = Pack.open(pack_plans(plans, store, tmp_path / "a.pfz").path)
    assert sorted(pack.list_refs()) == ["one-tp1-sm_90a", "two-tp1-sm_90a"]
    assert len(list(pack.entries("record"))) == 3
    assert find_plans(pack, None) == tuple(plans)


def test_what_is_missing_or_damaged_is_listed_by_program_and_nothing_is_written(store, frozen, tmp_path):
    path = tmp_path / "a.pfz"
    store.layout.entry("blob", frozen.entries[0].blob).unlink()
    store.layout.entry("record", frozen.entries[1].key).unlink()
    with pytest.raises(MissingPrograms) as missing:
        pack_plans([frozen], store, path)
    assert missing.value.missing == ("add(block=64, warps=1)", "copy(mode=plain)")
    store.layout.entry("blob", frozen.entries[0].blob).write_bytes(b"damaged")
    with pytest.raises(DamagedPrograms, match=r"add\(block=64, warps=1\)"):
        pack_plans([frozen], store, path)
    assert list(tmp_path.glob("*.pfz")) == [] and not path.exists()


def test_packing_needs_no_kernels(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    plan = stock.publish(store, "stock", ["a"])
    assert pack_plans([plan], store, tmp_path / "a.pfz").programs == 1, "module stock is not installed"


def test_a_session_over_a_pack_prepares_all_its_plans(pack, monkeypatch):
    monkeypatch.delenv("PLANFREEZE_PLAN", raising=False)
    with planfreeze.session(pack=pack) as session:
        assert [plan.name for plan in session.plans] == [NAME]
    monkeypatch.setenv("PLANFREEZE_STORE", str(pack))
    with planfreeze.session() as session:
        assert [plan.name for plan in session.plans] == [NAME]
    with pytest.raises(SessionState, match="both"):
        planfreeze.session(NAME, store=pack, pack=pack)


def test_a_session_over_a_damaged_pack_refuses_by_program_when_it_freezes(pack, frozen):
    opened = Pack.open(pack)
    entry = next(e for e in opened.index.blobs if e.name == frozen.entries[0].blob)
    data = bytearray(pack.read_bytes())
    data[entry.offset + 100] ^= 1
    pack.write_bytes(data)
    with planfreeze.session(NAME, pack=pack) as session, pytest.raises(DamagedPrograms, match="toys_add"):
        session.freeze()


def test_a_pinned_plan_is_taken_from_a_pack_of_anybody_and_an_unpinned_one_is_not(pack, frozen):
    pack.chmod(0o666)
    with pytest.raises(UntrustedStore):
        planfreeze.session(NAME, pack=pack)
    for text in (frozen.root, f"{NAME}@sha256:{frozen.root}"):
        planfreeze.session(text, pack=pack).close()
    planfreeze.session(NAME, pack=pack, is_trusted=True).close()


def test_a_pack_with_every_digest_made_anew_is_not_the_pinned_one(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    good, evil = stock.publish(store, "stock", ["good"]), stock.publish(store, "stock", ["evil"])
    path = pack_plans([evil], store, tmp_path / "a.pfz").path
    pack = Pack.open(path)
    assert find_plan(pack, PlanReference(evil.name, None)) == evil, "everything in it agrees"
    status, _, stderr = run("verify", "--store", path, "--plan", f"{good.name}@sha256:{good.root}")
    assert status == 3 and good.root in stderr


@pytest.fixture
def signer(tmp_path: Path) -> tuple[Path, Path]:
    """Files of a private and its public key."""
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.mark.usefixtures("hide_frameworks")
def test_with_trusted_keys_set_sessions_replays_and_unpack_take_signed_packs_alone(
    built, pack, frozen, signer, tmp_path, monkeypatch
):
    private, public = signer
    signed = pack_plans([frozen], built.store, tmp_path / "signed.pfz", key=private)
    assert signed.signer and signed.size_bytes == pack.stat().st_size + 96
    monkeypatch.setenv("PLANFREEZE_TRUSTED_KEYS", str(public))
    signed.path.chmod(0o666)
    planfreeze.session(NAME, pack=signed.path).close()
    with pytest.raises(UntrustedPack):
        planfreeze.session(f"{NAME}@sha256:{frozen.root}", pack=pack)
    assert run("unpack", signed.path, "--store", tmp_path / "store")[0] == 0
    for arguments in (
        ("replay", "--pack", pack),
        ("unpack", pack, "--store", tmp_path / "store2"),
        ("ls", "--store", pack),
    ):
        status, _, stderr = run(*arguments)
        assert status == 4 and "not signed" in stderr
    assert not (tmp_path / "store2").exists()
    monkeypatch.setenv("PLANFREEZE_TRUSTED_KEYS", ",")
    assert run("replay", "--pack", signed.path)[0] == 2


def test_a_pack_replays_under_the_guard(pack):
    opened = Pack.open(pack)
    replay = replay_plan(find_plan(opened, PlanReference(NAME, None)), opened)
    assert (len(replay.resolution.programs), replay.attempts) == (2, 0)


@pytest.mark.usefixtures("hide_frameworks")
def test_the_command_line_packs_replays_and_unpacks(built, tmp_path):
    path, store = tmp_path / "toys.pfz", tmp_path / "store"
    status, stdout, stderr = run("pack", "--plan", NAME, "--store", built.store.path, "-o", path, "--json")
    assert status == 0, stderr
    packed = json.loads(stdout)
    root = packed["plans"][0]["root"]
    assert packed["bytes"] == path.stat().st_size and packed["signer"] is None and packed["programs"] == 2
    status, stdout, stderr = run("replay", "--pack", path, "--json")
    assert status == 0, stderr
    assert json.loads(stdout)["resolved"] == 2
    assert run("replay", "--pack", path, "--plan", f"{NAME}@sha256:{'0' * 64}")[0] == 3
    assert run("replay", "--pack", path, "--store", store)[0] == 2
    assert run("replay", "--pack", tmp_path / "absent.pfz")[0] == 3
    status, stdout, stderr = run("unpack", path, "--store", store)
    assert (status, stdout) == (0, f"{NAME}@sha256:{root}\n"), stderr
    assert run("replay", "--plan", f"{NAME}@sha256:{root}", "--store", store)[0] == 0
    assert run("build", "--model", "ds41", "--store", path)[0] == 4


def test_a_pack_without_plans_proves_nothing(tmp_path):
    path = tmp_path / "empty.pfz"
    write_pack(path, PackIndex(refs=(), plans=(), records=(), blobs=()), ())
    with pytest.raises(EmptyPlan):
        find_plans(Pack.open(path), None)
    assert run("replay", "--pack", path)[0] == 3
    assert run("unpack", path, "--store", tmp_path / "store")[0] == 3


def test_unpacking_is_trusting_so_an_unpinned_pack_of_others_is_refused(pack, frozen, tmp_path):
    pack.chmod(0o666)
    status, _, stderr = run("unpack", pack, "--store", tmp_path / "store")
    assert status == 4 and "not trusted" in stderr
    assert run("unpack", pack, "--plan", f"@sha256:{frozen.root}", "--store", tmp_path / "store")[0] == 0


def test_unpacking_never_changes_a_record_that_is_there(stock, tmp_path):
    one, two = (Store.open(tmp_path / name, writable=True) for name in ("one", "two"))
    plan = stock.publish(one, "stock", ["a", "b"])
    stock.fill(two, ["a"], companions=("other.so",))
    path = pack_plans([plan], one, tmp_path / "a.pfz").path
    with pytest.raises(RecordsDiffer) as raised:
        unpack_plans([plan], Pack.open(path), two)
    assert raised.value.keys == (plan.entries[0].key,) and raised.value.exit_code == 1
    assert two.list_refs() == {} and list(two.entries("plan")) == []


def test_unpacking_a_damaged_pack_publishes_nothing(pack, frozen, tmp_path):
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    store = Store.open(tmp_path / "store", writable=True)
    with pytest.raises(DamagedPrograms):
        unpack_plans([frozen], Pack.open(pack), store)
    assert all(list(store.entries(kind)) == [] for kind in ("blob", "record", "plan", "ref"))


def test_a_replay_of_a_pack_imports_no_compiler_and_opens_nothing_for_writing(pack, interpreter):
    script = """
        import sys
        opened = []
        def watch(event, arguments):
            if event == "open" and isinstance(arguments[2], int) and arguments[2] & 3:
                opened.append(arguments[0])
        sys.dont_write_bytecode = True
        sys.addaudithook(watch)
        from planfreeze.cache.readable import open_readable
        from planfreeze.resolve import PlanReference, check_kernels, find_plan, resolve_plan
        pack = open_readable(sys.argv[1])
        plan = find_plan(pack, PlanReference(sys.argv[2], None))
        check_kernels(plan)
        assert len(resolve_plan(plan, pack).check()) == 2
        assert opened == [], opened
        assert not {"triton", "cutlass", "torch", "cryptography"} & set(sys.modules)
        """
    interpreter.run(script, str(pack), NAME)


def test_a_moved_and_read_only_pack_serves_as_before(pack, frozen, tmp_path):
    place = tmp_path / "a folder with spaces" / "päckchen.pfz"
    place.parent.mkdir()
    pack.rename(place)
    place.chmod(0o444)
    subprocess.run(["chmod", "a-w", str(place.parent)], check=True)
    assert resolve_plan(frozen, Pack.open(place)).check()
