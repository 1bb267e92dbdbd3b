"""Damaged and hostile packs: every byte is proven, nothing is made of a declared size, no name is a path."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import HEAD_BYTES, HEADER
from planfreeze.errors import (
    DamagedEntry,
    DamagedPack,
    PackTooNew,
    StoreUnusable,
)

from .packs import BLOBS, BODIES, INDEX, KEY, PLAN, RECORD, ROOT, WHOLE, read_all


def reseal(data: bytes) -> bytes:
    """Give changed bytes before the entries a right seal, as an attacker would."""
    _, _, _, refs_bytes, plans, records, blobs, signature_bytes = HEADER.unpack_from(data)
    start = HEAD_BYTES + refs_bytes + 40 * (plans + blobs) + 72 * records + signature_bytes
    seal = hashlib.sha256(data[: HEADER.size] + data[HEAD_BYTES:start]).digest()
    return data[: HEADER.size] + seal + data[HEAD_BYTES:]


def refuse_with_little_memory(path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DamagedPack):
            Pack.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_every_flipped_byte_is_found(path: Path) -> None:
    found_at_opening = 0
    for place in range(len(WHOLE)):
        path.write_bytes(WHOLE[:place] + bytes([WHOLE[place] ^ 0x10]) + WHOLE[place + 1 :])
        try:
            pack = Pack.open(path)
        except (DamagedPack, PackTooNew):
            found_at_opening += 1
            continue
        with pytest.raises(DamagedEntry):
            read_all(pack)
    assert found_at_opening == len(INDEX.start)


def test_every_truncation_and_anything_behind_the_end_is_found_at_opening(path: Path) -> None:
    for size_bytes in reversed(range(len(WHOLE))):
        os.truncate(path, size_bytes)
        with pytest.raises(DamagedPack):
            Pack.open(path)
    path.write_bytes(WHOLE + b"\0")
    with pytest.raises(DamagedPack, match="declares"):
        Pack.open(path)


def test_a_right_seal_does_not_make_a_wrong_entry_right(path: Path) -> None:
    other = replace(INDEX, blobs=tuple(replace(e, size_bytes=e.size_bytes) for e in INDEX.blobs))
    data = other.start + PLAN + RECORD + b"".join(BODIES).replace(b"first", b"worse")
    path.write_bytes(data)
    pack = Pack.open(path)
    with pytest.raises(DamagedEntry, match=str(path)):
        pack.get_blob(digest_of(BLOBS[0]))
    assert pack.get_blob(digest_of(BLOBS[2])) == BLOBS[2]


HUGE = 2**32 - 1


@pytest.mark.parametrize("field", range(2, 8))
@pytest.mark.parametrize("value", [0, 7, 2**20, HUGE])
@pytest.mark.parametrize("pack_format", [0, 1])
def test_declared_counts_are_checked_before_anything_of_their_size_is_made(
    path: Path, pack_format: int, field: int, value: int
) -> None:
    numbers = list(HEADER.unpack_from(WHOLE))
    numbers[1] = pack_format
    numbers[field] = value if numbers[field] != value else value + 1
    path.write_bytes(HEADER.pack(*numbers) + WHOLE[HEADER.size :])
    refuse_with_little_memory(path)


@pytest.mark.parametrize("size_bytes", [2**31, 2**40, 2**62, 2**64 - 1])
def test_an_entry_of_absurd_size_is_refused_even_in_a_file_of_holes_that_is_as_large(
    path: Path, size_bytes: int
) -> None:
    blobs = (*INDEX.blobs[:-1], replace(INDEX.blobs[-1], size_bytes=size_bytes))
    index = replace(INDEX, blobs=blobs)
    path.write_bytes(index.start)
    os.truncate(path, min(len(index.start) + index.body_bytes, 2**42))
    refuse_with_little_memory(path)


def test_a_file_of_holes_with_an_index_of_gigabytes_is_refused_before_it_is_read(path: Path) -> None:
    path.write_bytes(reseal(HEADER.pack(b"planfreeze pack\n", 1, 0, 0, HUGE, 0, 0, 0) + bytes(32))[:HEAD_BYTES])
    os.truncate(path, 2**40)
    with pytest.raises(DamagedPack, match="index"):
        Pack.open(path)


def rewrite_refs(*refs: tuple[bytes, str]) -> bytes:
    """The pack with other references, and every seal and size right."""
    body = b"".join(bytes([len(name)]) + name + bytes.fromhex(root) for name, root in refs)
    numbers = list(HEADER.unpack_from(WHOLE))
    old_bytes, numbers[2], numbers[3] = numbers[3], len(refs), len(body)
    return reseal(HEADER.pack(*numbers) + bytes(32) + body + WHOLE[HEAD_BYTES + old_bytes :])


def test_the_rewriting_of_references_here_gives_packs(path: Path) -> None:
    path.write_bytes(rewrite_refs((b"a", ROOT), (b"b", ROOT)))
    assert Pack.open(path).list_refs() == {"a": ROOT, "b": ROOT}


@pytest.mark.parametrize(
    "names",
    [
        (b"",),
        (b"..",),
        (b"../x",),
        (b"/etc/passwd",),
        (b"a/b",),
        (b"\xff",),
        (b"a" * 201,),
        (b"a\0",),
        (b"b", b"a"),
        (b"a", b"a"),
    ],
)
def test_no_name_can_hide_a_path_or_be_there_twice(path: Path, names: tuple[bytes, ...]) -> None:
    path.write_bytes(rewrite_refs(*((name, ROOT) for name in names)))
    with pytest.raises(DamagedPack):
        Pack.open(path)


@pytest.mark.parametrize("kind", ["blobs", "records", "plans"])
def test_entries_out_of_order_or_there_twice_are_refused(path: Path, kind: str) -> None:
    entries = getattr(INDEX, kind)
    index = replace(INDEX, **{kind: (*entries, entries[0])})
    body = b"".join({e.name: b for e, b in zip(INDEX.blobs, BODIES, strict=True)}.get(e.name, b"") for e in index.blobs)
    path.write_bytes(index.start + b"".join((PLAN,) * len(index.plans) + (RECORD,) * len(index.records)) + body)
    with pytest.raises(DamagedPack, match="order"):
        Pack.open(path)


def test_a_pack_of_a_later_format_says_so(path: Path) -> None:
    numbers = list(HEADER.unpack_from(WHOLE))
    path.write_bytes(HEADER.pack(numbers[0], 2, *numbers[2:]) + WHOLE[HEADER.size :])
    with pytest.raises(PackTooNew, match="format 2") as raised:
        Pack.open(path)
    assert raised.value.exit_code == 4
    path.write_bytes(HEADER.pack(numbers[0], 0, *numbers[2:]) + WHOLE[HEADER.size :])
    with pytest.raises(DamagedPack):
        Pack.open(path)


def test_a_pack_that_is_cut_off_while_it_is_open_is_damage_and_no_signal(path: Path) -> None:
    pack = Pack.open(path)
    os.truncate(path, len(INDEX.start) + len(PLAN))
    assert pack.get_plan(ROOT) == PLAN
    for call in (lambda: pack.get_record(KEY), lambda: pack.get_blob(digest_of(BLOBS[0]))):
        with pytest.raises(DamagedEntry):
            call()


def test_a_disk_that_fails_is_an_error_that_names_the_pack(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Pack.open(path)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StoreUnusable, match="Input/output error") as raised:
        pack.get_plan(ROOT)
    assert raised.value.exit_code == 6 and str(path) in str(raised.value)
