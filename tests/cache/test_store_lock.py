"""Locks save work and never stand in the way."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import KeyLocked

KEY = digest_of(b"key")
RunProcesses = Callable[[int, Callable[[int], object]], list[object]]
fork = multiprocessing.get_context("fork")


@contextlib.contextmanager
def running_holder(store: Store) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that holds KEY until it is killed."""

    def hold() -> None:
        with store.lock_key(KEY, 10):
            is_held.set()
            signal.pause()

    is_held = fork.Event()
    holder = fork.Process(target=hold)
    holder.start()
    try:
        assert is_held.wait(30)
        yield holder
    finally:
        holder.kill()
        holder.join()


def test_one_process_at_a_time_holds_a_key(store: Store, tmp_path: Path, run_processes: RunProcesses) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count(number: int) -> None:
        for _ in range(10):
            with store.lock_key(KEY, 60) as is_locked:
                assert is_locked
                counter.write_text(str(int(counter.read_text()) + 1))

    run_processes(4, count)
    assert counter.read_text() == "40"


def test_waiting_ends_and_names_the_holder_even_one_that_is_stopped(store: Store) -> None:
    with running_holder(store) as holder:
        os.kill(holder.pid or 0, signal.SIGSTOP)
        started = time.monotonic()
        named = pytest.raises(KeyLocked, match=f"process {holder.pid} on ")
        with named as caught, store.lock_key(KEY, 0.3):
            pytest.fail("two hold one key")
        assert 0.3 <= time.monotonic() - started < 5
    assert caught.value.key == KEY
    assert caught.value.waited_s >= 0.3


def test_a_killed_holder_blocks_nobody(store: Store) -> None:
    with running_holder(store) as holder:
        holder.kill()
        holder.join()
        with store.lock_key(KEY, 0) as is_locked:
            assert is_locked


def test_other_stripes_are_free_and_a_lock_is_freed_by_an_error(store: Store) -> None:
    other = "00" + KEY[2:] if KEY[:2] != "00" else "01" + KEY[2:]
    with pytest.raises(RuntimeError, match="ours"), store.lock_key(KEY, 0), store.lock_key(other, 0):
        raise RuntimeError("ours")
    with store.lock_key(KEY, 0) as is_locked:
        assert is_locked


def test_opposite_orders_of_keys_always_end(store: Store, run_processes: RunProcesses) -> None:
    keys = [digest_of(b"%d" % n) for n in range(3)]

    def build(number: int) -> int:
        for _ in range(20):
            for key in keys if number % 2 else reversed(keys):
                with store.lock_key(key, 30):
                    store.put_record(key, b"record")
        return number

    assert run_processes(4, build) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ESTALE])
def test_a_file_system_without_locks_is_no_obstacle(store: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with store.lock_key(KEY, 5) as is_locked:
        assert not is_locked
        assert store.put_record(KEY, b"record").outcome == "published"
    monkeypatch.undo()
    with store.lock_key(KEY, 0) as is_locked:
        assert is_locked, "nothing outlives its holder"


def test_an_error_of_the_work_under_a_lock_is_not_mistaken_for_one_of_the_lock(store: Store) -> None:
    with pytest.raises(FileNotFoundError), store.lock_key(KEY, 1):
        raise FileNotFoundError("of the compiler")


def test_unlinked_lock_files_do_no_harm_to_what_is_published(store: Store, run_processes: RunProcesses) -> None:
    def build_or_unlink(number: int) -> None:
        for step in range(50):
            key = digest_of(b"%d" % step)
            if number == 3:
                for path in store.layout.locks.iterdir():
                    path.unlink(missing_ok=True)
            else:
                with store.lock_key(key, 30):
                    assert store.put_record(key, b"record").outcome != "different"

    run_processes(4, build_or_unlink)
    assert len(list(store.entries("record"))) == 50


def test_a_link_planted_as_a_lock_or_holder_file_is_not_written_through(store: Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in (f"{KEY[:2]}.holder", KEY[:2]):
        (store.layout.locks / name).unlink(missing_ok=True)
        (store.layout.locks / name).symlink_to(victim)
        with store.lock_key(KEY, 0.2):
            pass
        assert victim.read_bytes() == b"precious"
