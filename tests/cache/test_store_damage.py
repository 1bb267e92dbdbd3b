"""Damage: every read finds it, a builder heals it, and what lies in place of an entry is never followed."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import DamagedEntry, MissingEntry, StoreUnusable

KEY = digest_of(b"key")
DATA = random.Random(1).randbytes(500)
DIGEST = digest_of(DATA)

READ: dict[str, Callable[[Store], bytes]] = {
    "blob": lambda store: store.get_blob(DIGEST),
    "record": lambda store: store.get_record(KEY),
    "plan": lambda store: store.get_plan(DIGEST),
}
PUT: dict[str, Callable[[Store], object]] = {
    "blob": lambda store: store.put_blob(DATA),
    "record": lambda store: store.put_record(KEY, DATA),
    "plan": lambda store: store.put_plan(DATA),
}
KINDS = sorted(READ)


def entry_path(store: Store, kind: str) -> Path:
    return store.layout.entry(kind, KEY if kind == "record" else DIGEST)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["0", "1", "half", "all but one", "one more"])
def test_a_cut_off_entry_is_named_and_healed_by_a_builder(store: Store, kind: str, size: str) -> None:
    PUT[kind](store)
    path = entry_path(store, kind)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "0": b"",
            "1": whole[:1],
            "half": whole[: len(whole) // 2],
            "all but one": whole[:-1],
            "one more": whole + b"\0",
        }[size]
    )
    with pytest.raises(DamagedEntry) as caught:
        READ[kind](Store.open(store.path))
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    assert path.name in caught.value.entry
    PUT[kind](store)
    assert READ[kind](store) == DATA
    assert path.read_bytes() == whole
    assert len(list(store.layout.quarantine.iterdir())) == 2, "the damaged file and the reason"


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_found(store: Store, kind: str) -> None:
    PUT[kind](store)
    path = entry_path(store, kind)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(DamagedEntry):
            READ[kind](store)
    path.write_bytes(whole)
    assert READ[kind](store) == DATA


def test_a_whole_record_of_another_digest_is_not_the_planned_one(store: Store) -> None:
    store.put_record(KEY, b"other")
    with pytest.raises(DamagedEntry, match=DIGEST):
        store.get_record(KEY, DIGEST)


def test_entries_that_changed_places_are_found(store: Store) -> None:
    other = store.put_blob(b"other")
    PUT["blob"](store)
    entry_path(store, "blob").write_bytes(store.get_blob(other))
    with pytest.raises(DamagedEntry, match=other):
        store.get_blob(DIGEST)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thing", ["link", "dangling link", "folder", "pipe"])
def test_what_is_no_file_is_refused_and_replaced_by_a_builder(
    store: Store, tmp_path: Path, kind: str, thing: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(DATA)
    path = entry_path(store, kind)
    path.parent.mkdir(exist_ok=True, parents=True)
    match thing:
        case "link":
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(tmp_path / "absent")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    assert not store.has_record(KEY)
    with pytest.raises(DamagedEntry, match="not a plain file"):
        READ[kind](store)
    PUT[kind](store)
    assert READ[kind](store) == DATA
    assert victim.read_bytes() == DATA
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "content", [b"", b"x", b"a" * 64, b"a" * 65, b"A" * 64 + b"\n", b"a" * 65 + b"\n", b"\xff" * 65]
)
def test_a_damaged_reference_is_named(store: Store, content: bytes) -> None:
    store.set_ref("name", store.put_plan(b"plan"))
    store.layout.entry("ref", "name").write_bytes(content)
    for call in (lambda: store.get_ref("name"), store.list_refs):
        with pytest.raises(DamagedEntry, match="reference name"):
            call()
    store.set_ref("name", store.put_plan(b"plan"))
    assert store.get_ref("name") == digest_of(b"plan")


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_entry_is_missing_and_nothing_else(store: Store, kind: str) -> None:
    PUT[kind](store)
    entry_path(store, kind).unlink()
    with pytest.raises(MissingEntry):
        READ[kind](store)


def test_a_stale_handle_is_read_again_and_reported_when_it_lasts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    PUT["blob"](store)
    refusals = iter([116])  # ESTALE
    real_open = os.open

    def stale_once(*arguments: object, **options: object) -> int:
        for number in refusals:
            raise OSError(number, "Stale file handle")
        return real_open(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", stale_once)
    assert store.get_blob(DIGEST) == DATA
    refusals = iter([116] * 9)
    with pytest.raises(StoreUnusable, match="Stale file handle"):
        store.get_blob(DIGEST)
