"""Writing that goes wrong: no space, no links, busy files, interrupts, kills; what is there is whole."""

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planfreeze.cache.claims import read_kernel_mark
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import StoreUnusable

KEY = digest_of(b"key")
RunProcesses = Callable[[int, Callable[[int], object]], list[object]]
FilesOf = Callable[[Path], set[str]]


def temporaries(store: Store) -> list[Path]:
    return list(store.layout.temporaries.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link", "open"])
def test_a_refused_write_names_store_entry_and_size_and_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, files_of: FilesOf, number: int, call: str
) -> None:
    old = store.put_blob(b"old")
    before = files_of(store.layout.root)
    real = getattr(os, call)

    def refuse(*arguments: object, **options: object) -> object:
        if call == "open" and not arguments[1] & os.O_CREAT:  # type: ignore[operator]
            return real(*arguments, **options)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreUnusable) as caught:
            store.put_blob(bytes(1000))
    message = str(caught.value)
    assert caught.value.exit_code == 6
    assert caught.value.needed_bytes == 1000
    assert str(store.layout.root) in message
    assert digest_of(bytes(1000)) in message
    assert os.strerror(number) in message
    assert files_of(store.layout.root) == before
    assert store.get_blob(old) == b"old"
    assert store.get_blob(store.put_blob(bytes(1000))) == bytes(1000)


def test_a_short_write_is_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
    data = random.Random(2).randbytes(1000)
    assert store.get_blob(store.put_blob(data)) == data


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB and 64 files, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=1m,nr_inodes=64"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("size_bytes", [300_000, 10], ids=["bytes run out", "files run out"])
def test_a_full_disk_keeps_what_was_published_and_goes_on_when_there_is_room(small_disk: Path, size_bytes: int) -> None:
    store = Store.open(small_disk / "store", writable=True)
    published = []
    with pytest.raises(StoreUnusable, match="No space left") as caught:
        for number in range(100):
            published.append(store.put_blob(bytes([number]) * size_bytes))
    assert caught.value.needed_bytes == size_bytes
    assert 0 < len(published) < 100
    assert temporaries(store) == []
    assert {entry.name for entry in store.entries("blob")} == set(published)
    for number, digest in enumerate(published):
        assert store.get_blob(digest) == bytes([number]) * size_bytes
    subprocess.run(["mount", "-o", "remount,size=9m,nr_inodes=999", str(small_disk)], check=True)
    assert store.put_blob(bytes([len(published)]) * size_bytes) not in published


def test_without_hard_links_a_rename_publishes_and_replaces_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*arguments: object, **options: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    digest = store.put_blob(b"data")
    inode = store.layout.entry("blob", digest).stat().st_ino
    assert store.put_blob(b"data") == digest
    assert store.layout.entry("blob", digest).stat().st_ino == inode
    assert store.put_record(KEY, b"one").outcome == "published"
    assert store.put_record(KEY, b"two").outcome == "different"
    assert store.get_record(KEY) == b"one"
    assert temporaries(store) == []


def test_a_temporary_that_cannot_be_removed_does_not_undo_the_publishing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "unlink", busy)
    assert store.get_blob(store.put_blob(b"data")) == b"data"
    assert store.put_record(KEY, b"record").outcome == "published"


@pytest.mark.parametrize("has_links", [True, False])
def test_two_writers_that_meet_both_end_well(store: Store, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    real = os.link
    other = Store.open(store.path, writable=True)

    def overtaken(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(os, "link", real)
        assert other.put_record(KEY, b"overtaker").outcome == "published"
        if not has_links:
            raise OSError(errno.EPERM, "Operation not permitted")
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", overtaken)
    assert store.put_record(KEY, b"overtaken").outcome == "different"
    assert store.get_record(KEY) == b"overtaker"
    assert temporaries(store) == []


def test_equal_random_numbers_never_make_two_writers_share_a_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, run_processes: RunProcesses
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    random.seed(0)

    def write(number: int) -> list[str]:
        return [store.put_blob(bytes([number, step]) * 5000) for step in range(20)]

    for number, digests in enumerate(run_processes(16, write)):
        for step, digest in enumerate(digests):  # type: ignore[arg-type]
            assert store.get_blob(digest) == bytes([number, step]) * 5000
    assert temporaries(store) == []


def test_a_planted_link_at_the_temporary_name_is_not_written_through(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(os, "urandom", bytes)
    for attempt in range(3):
        (store.layout.temporaries / f"{read_kernel_mark()}-{'0' * 32}-{attempt}").symlink_to(victim)
    assert store.get_blob(store.put_blob(b"data")) == b"data"
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_an_interrupt_leaves_only_whole_entries(store: Store, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def interrupt(*arguments: object, **options: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.put_record(KEY, b"record")
    assert not store.has_record(KEY)
    assert temporaries(store) == []
    assert store.put_record(KEY, b"record").outcome == "published"


def test_killed_writers_leave_only_whole_entries(tmp_path: Path) -> None:
    moments = random.Random(3)
    path = tmp_path / "store"

    def write_for_ever(started: "multiprocessing.synchronize.Event") -> None:
        store = Store.open(path, writable=True)
        number = os.getpid() * 100_000  # entries no earlier writer made
        while True:
            data = digest_of(b"%d" % number).encode() * 2000
            digest = store.put_blob(data)
            store.put_record(digest, b"record of " + digest.encode())
            store.set_ref("latest", store.put_plan(digest.encode()))
            number += 1
            started.set()

    context = multiprocessing.get_context("fork")
    seen = 0
    for _ in range(20):
        started = context.Event()
        writer = context.Process(target=write_for_ever, args=(started,))
        writer.start()
        started.wait(30)
        writer.join(moments.uniform(0, 0.03))
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        store = Store.open(path)
        for entry in store.entries("blob"):
            store.get_blob(entry.name)
        for entry in store.entries("record"):
            seen += 1
            assert store.get_record(entry.name) == b"record of " + entry.name.encode()
            assert store.has_blob(entry.name), "a record appears after its blob"
        for root in store.list_refs().values():
            store.get_plan(root)
    assert seen > 0
