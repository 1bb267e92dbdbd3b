"""Packs as files: they answer like a store, are opened as what they are, and are written whole or not at all."""

import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import PackIndex
from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.readable import open_readable
from planfreeze.cache.store import Store
from planfreeze.errors import (
    DamagedEntry,
    DamagedPack,
    InvalidEntryName,
    MissingEntry,
    PackMissing,
    PackUnwritable,
    PlanfreezeError,
    StoreMissing,
)

from .packs import BLOBS, BODIES, EVERYTHING, INDEX, KEY, PLAN, RECORD, ROOT, WHOLE, entry, read_all


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


def test_every_refusal_is_an_error_of_planfreeze_with_a_command(path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: Pack.open(path.with_name("absent")),
        lambda: Pack.open(path.parent),
    ]
    for call in calls:
        with pytest.raises(PlanfreezeError, match=r"[Rr]un: planfreeze"):
            call()
