"""Packs as files: nothing is believed before it is checked, every byte is proven, nothing is written."""

import hashlib
import os
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import HEAD_BYTES, HEADER, PackEntry, PackIndex
from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.readable import open_readable
from planfreeze.cache.store import Store
from planfreeze.errors import (
    DamagedEntry,
    DamagedPack,
    InvalidEntryName,
    MissingEntry,
    PackMissing,
    PackTooNew,
    PackUnwritable,
    PlanfreezeError,
    StoreMissing,
    StoreUnusable,
    UntrustedStore,
)

PLAN, RECORD, BLOBS = b"plan" * 20, b"record" * 20, (b"first cubin" * 9, b"", b"third cubin" * 30)
KEY, ROOT = digest_of(b"key"), digest_of(PLAN)


def entry(data: bytes, name: str | None = None) -> PackEntry:
    return PackEntry(name=name or digest_of(data), digest=digest_of(data), size_bytes=len(data))


BODIES = tuple(sorted(BLOBS, key=digest_of))
INDEX = PackIndex(
    refs=(("name", ROOT),), plans=(entry(PLAN),), records=(entry(RECORD, KEY),), blobs=tuple(map(entry, BODIES))
)
WHOLE = INDEX.start + PLAN + RECORD + b"".join(BODIES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.pfz"
    assert write_pack(place, INDEX, (PLAN, RECORD, *BODIES)) == len(WHOLE)
    assert place.read_bytes() == WHOLE
    return place


def read_all(pack: Pack) -> list[bytes]:
    return [pack.get_plan(ROOT), pack.get_record(KEY), *(pack.get_blob(digest_of(blob)) for blob in BLOBS)]


EVERYTHING = [PLAN, RECORD, *BLOBS]


def reseal(data: bytes) -> bytes:
    """Give changed bytes before the entries a right seal, as an attacker would."""
    _, _, _, refs_bytes, plans, records, blobs, signature_bytes = HEADER.unpack_from(data)
    start = HEAD_BYTES + refs_bytes + 40 * (plans + blobs) + 72 * records + signature_bytes
    seal = hashlib.sha256(data[: HEADER.size] + data[HEAD_BYTES:start]).digest()
    return data[: HEADER.size] + seal + data[HEAD_BYTES:]


def test_a_pack_answers_like_the_store_its_entries_came_from(path: Path) -> None:
    pack = Pack.open(path)
    assert read_all(pack) == EVERYTHING
    assert pack.get_record(KEY, digest_of(RECORD)) == RECORD
    assert (pack.get_ref("name"), pack.get_ref("other"), pack.list_refs()) == (ROOT, None, {"name": ROOT})
    assert {e.name: e.size_bytes for e in pack.entries("blob")} == {digest_of(blob): len(blob) for blob in BLOBS}
    assert [e.name for e in pack.entries("record")] == [KEY]
    assert [e.name for e in pack.entries("ref")] == ["name"]
    assert list(pack.entries("note")) == []
    assert pack.has_entry("blob", digest_of(BLOBS[0])) and not pack.has_entry("blob", KEY)
    for call in (lambda: pack.get_blob(KEY), lambda: pack.get_record(ROOT), lambda: pack.get_plan(KEY)):
        with pytest.raises(MissingEntry, match=str(path)):
            call()


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "A" * 64, "/etc/passwd"])
def test_a_name_that_is_no_digest_is_refused(path: Path, name: str) -> None:
    for call in (Pack.open(path).get_blob, Pack.open(path).get_record, Pack.open(path).get_ref):
        with pytest.raises(InvalidEntryName):
            call(name if call.__name__ != "get_ref" else "." + name)


def test_a_record_of_another_digest_is_not_the_planned_one(path: Path) -> None:
    with pytest.raises(DamagedEntry, match=digest_of(b"other")):
        Pack.open(path).get_record(KEY, digest_of(b"other"))


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
    tracemalloc.start()
    try:
        with pytest.raises(DamagedPack):
            Pack.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size_bytes", [2**31, 2**40, 2**62, 2**64 - 1])
def test_an_entry_of_absurd_size_is_refused_even_in_a_file_of_holes_that_is_as_large(
    path: Path, size_bytes: int
) -> None:
    blobs = (*INDEX.blobs[:-1], replace(INDEX.blobs[-1], size_bytes=size_bytes))
    index = replace(INDEX, blobs=blobs)
    path.write_bytes(index.start)
    os.truncate(path, min(len(index.start) + index.body_bytes, 2**42))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedPack):
            Pack.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


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


@pytest.mark.parametrize("thing", ["folder", "pipe", "device", "nothing", "dangling link", "below a file"])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, thing: str) -> None:
    place = tmp_path / "a.pfz"
    match thing:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "device":
            place = Path("/dev/null")
        case "dangling link":
            place.symlink_to(tmp_path / "absent")
        case "below a file":
            (tmp_path / "file").write_bytes(b"")
            place = tmp_path / "file" / "a.pfz"
    with pytest.raises((DamagedPack, PackMissing)) as raised:
        Pack.open(place)
    assert raised.value.exit_code in (3, 4) and str(place) in str(raised.value)


def test_reading_changes_nothing_and_needs_no_right_to_write(path: Path) -> None:
    path.chmod(0o444)
    before = (path.stat(), path.parent.stat(), sorted(path.parent.iterdir()))
    assert read_all(Pack.open(path)) == EVERYTHING
    after = (path.stat(), path.parent.stat(), sorted(path.parent.iterdir()))
    assert [(s.st_mtime_ns, s.st_ctime_ns) for s in before[:2]] == [(s.st_mtime_ns, s.st_ctime_ns) for s in after[:2]]
    assert before[2] == after[2]


def test_only_the_index_is_in_memory(tmp_path: Path) -> None:
    blob = bytes(1 << 25)
    index = PackIndex(refs=(), plans=(), records=(), blobs=(entry(blob),))
    write_pack(tmp_path / "a.pfz", index, (blob,))
    tracemalloc.start()
    try:
        pack = Pack.open(tmp_path / "a.pfz")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert len(pack.get_blob(digest_of(blob))) == len(blob)
    finally:
        tracemalloc.stop()


def test_a_pack_that_is_cut_off_while_it_is_open_is_damage_and_no_signal(path: Path) -> None:
    pack = Pack.open(path)
    os.truncate(path, len(INDEX.start) + len(PLAN))
    assert pack.get_plan(ROOT) == PLAN
    for call in (lambda: pack.get_record(KEY), lambda: pack.get_blob(digest_of(BLOBS[0]))):
        with pytest.raises(DamagedEntry):
            call()


def test_an_open_pack_goes_on_when_another_file_takes_its_place(path: Path) -> None:
    pack = Pack.open(path)
    path.rename(path.with_name("moved"))
    path.write_bytes(b"something else")
    assert read_all(pack) == EVERYTHING


def test_many_threads_read_one_pack(path: Path) -> None:
    pack = Pack.open(path)
    barrier = threading.Barrier(16)
    results: list[list[bytes]] = []

    def read() -> None:
        barrier.wait(60)
        for _ in range(50):
            results.append(read_all(pack))

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [EVERYTHING] * 800


def open_handles() -> list[str]:
    """The numbers of this process's open files, but for the one that lists them."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(path.name for path in links if path.exists())


def test_a_handle_is_held_by_an_open_pack_alone(path: Path) -> None:
    before = open_handles()
    pack = Pack.open(path)
    assert len(open_handles()) == len(before) + 1
    del pack
    path.write_bytes(b"damaged")
    with pytest.raises(DamagedPack):
        Pack.open(path)
    assert open_handles() == before


def test_a_disk_that_fails_is_an_error_that_names_the_pack(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Pack.open(path)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StoreUnusable, match="Input/output error") as raised:
        pack.get_plan(ROOT)
    assert raised.value.exit_code == 6 and str(path) in str(raised.value)


def test_a_read_that_comes_in_pieces_is_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, offset: real(handle, min(size, 7), offset))
    assert read_all(Pack.open(path)) == EVERYTHING


def test_a_pack_that_cannot_be_written_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bodies() -> object:
        yield PLAN
        raise OSError(28, "No space left on device")

    with pytest.raises(PackUnwritable, match="No space left on device") as raised:
        write_pack(path, INDEX, bodies())  # type: ignore[arg-type]
    assert raised.value.exit_code == 6 and f"{len(WHOLE)} bytes" in str(raised.value)
    assert path.read_bytes() == WHOLE
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(PackUnwritable):
        write_pack(path.parent / "absent" / "a.pfz", INDEX, (PLAN, RECORD, *BODIES))


def test_what_serving_opens_is_a_pack_when_the_path_leads_to_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert isinstance(open_readable(path), Pack) and isinstance(open_readable(tmp_path / "link"), Pack)
    Store.open(tmp_path / "store", writable=True)
    assert isinstance(open_readable(tmp_path / "store"), Store)
    with pytest.raises(StoreMissing):
        open_readable(tmp_path / "absent")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="making another user's files takes root")


def distrust(path: Path) -> str:
    try:
        Pack.open(path).check_trust()
    except UntrustedStore as error:
        assert error.exit_code == 4
        return error.reason
    return ""


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o777])
def test_an_unpinned_pack_that_others_can_write_is_not_trusted(path: Path, mode: int) -> None:
    assert distrust(path) == ""
    path.chmod(mode)
    assert "can be written by others" in distrust(path)
    Pack.open(path, is_trusted=True).check_trust()


def test_a_pack_in_a_folder_others_can_write_is_not_trusted(path: Path) -> None:
    path.parent.chmod(0o777)
    assert "can be written by others" in distrust(path)
    path.parent.chmod(0o1777)
    assert distrust(path) == "", "in a sticky folder nobody can exchange it"


@as_root
def test_a_pack_or_link_of_another_user_is_not_trusted(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path.name)
    assert distrust(link) == ""
    os.lchown(link, 54321, 54321)
    assert "belongs to user 54321" in distrust(link)
    os.chown(path, 54321, 54321)
    assert "belongs to user 54321" in distrust(path)


@as_root
def test_the_open_file_is_judged_and_not_what_lies_at_its_path_by_now(path: Path) -> None:
    os.chown(path, 54321, 54321)
    pack = Pack.open(path)
    path.rename(path.with_name("moved"))
    path.write_bytes(WHOLE)
    with pytest.raises(UntrustedStore, match="54321"):
        pack.check_trust()


def test_every_refusal_is_an_error_of_planfreeze_with_a_command(path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: Pack.open(path.with_name("absent")),
        lambda: Pack.open(path.parent),
    ]
    for call in calls:
        with pytest.raises(PlanfreezeError, match=r"[Rr]un: planfreeze"):
            call()
