"""Locks that save work: builders of one key take turns, so that it is compiled once."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from planfreeze.cache.digest import check_digest
from planfreeze.cache.folders import make_folder
from planfreeze.cache.layout import Layout
from planfreeze.errors import KeyLocked

__all__ = ["lock_key"]


@contextlib.contextmanager
def lock_key(layout: Layout, key: str, timeout_s: float) -> Iterator[bool]:
    """Hold the lock of a key's stripe; yields False when this file system cannot lock.

    Parameters
    ----------
    key : str
        One key. All keys share 256 stripes: never ask for a second one while holding the first.
    timeout_s : float
        Longest time to wait for the holder.

    Raises
    ------
    KeyLocked
        Another builder still holds the stripe after ``timeout_s``; the error names it.

    Notes
    -----
    Publishing needs no lock: without one, two builders at worst do the same work twice. The operating system
    frees the lock with its process. The holder's name is advice only; it may be gone or outdated.
    """
    # Imported late: it costs 11 ms, and a reader never locks.
    from filelock import FileLock, Timeout

    path = layout.locks / check_digest(key)[:2]
    holder_path = path.with_name(f"{path.name}.holder")
    lock = FileLock(path)
    started = time.monotonic()
    try:
        can_lock = has_locks(layout.locks)
        if can_lock:
            lock.acquire(timeout=timeout_s)
            write_holder(holder_path)
    except Timeout as error:
        waited_s = time.monotonic() - started
        raise KeyLocked(key, str(layout.root), read_holder(holder_path), waited_s) from error
    except (OSError, NotImplementedError):
        # No lock daemon, a stale handle, a foreign or read-only lock file: go on, the lock only saves work.
        can_lock = lock.is_locked
    try:
        yield can_lock
    finally:
        lock.release()


def has_locks(folder: Path) -> bool:
    """Tell whether the file system implements flock.

    Where it does not, filelock may fall back to a marker file, which outlives a killed holder.
    """
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(handle)
    return True


def write_holder(path: Path) -> None:
    """Note who holds the lock, for those who wait in vain."""
    text = f"process {os.getpid()} on {socket.gethostname()}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def read_holder(path: Path) -> str:
    """Return who holds the lock, as far as it is known."""
    try:
        return path.read_text("utf-8", "replace")[:200] or "an unknown process"
    except OSError:
        return "an unknown process"
