"""Locks that save work: builders of one key take turns, so that it is compiled once."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from planfreeze import errors
from planfreeze.cache.digest import check_digest
from planfreeze.cache.folders import make_folder
from planfreeze.cache.layout import Layout

__all__ = ["lock_key"]

LOOK_AGAIN_S = 0.02
# What flock says of a lock that another one holds, and what stat says of a lock file that was just removed.
HELD = frozenset({errno.EAGAIN, errno.EACCES, errno.ENOENT})


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
    path = layout.locks / check_digest(key)[:2]
    holder_path = path.with_name(f"{path.name}.holder")
    started = time.monotonic()
    with contextlib.ExitStack() as opened:
        while (state := lock_file(path, opened)) == "held":
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise errors.KeyLocked(key, str(layout.root), read_holder(holder_path), waited_s)
            time.sleep(LOOK_AGAIN_S)
        if state == "locked":
            write_holder(holder_path)
        yield state == "locked"


def lock_file(path: Path, opened: contextlib.ExitStack) -> str:
    """Try to lock a file once, until ``opened`` is closed: "locked", "held" by another one, or "impossible"."""
    handle = -1
    try:
        make_folder(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Removed in the meantime: the next one would lock another file of this name.
        is_there = os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError as error:
        # No lock daemon, a stale handle, a foreign or read-only file: go on, the lock only saves work.
        close(handle)
        return "held" if error.errno in HELD and handle >= 0 else "impossible"
    opened.callback(close, handle)
    return "locked" if is_there else "held"


def close(handle: int) -> None:
    """Close a file, which frees its lock, whatever the system says of it."""
    with contextlib.suppress(OSError):
        os.close(handle)


def write_holder(path: Path) -> None:
    """Note who holds the lock, for those who wait in vain; a name that cannot be noted is not missed."""
    text = f"process {os.getpid()} on {socket.gethostname()}"
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        opened.callback(os.close, handle)
        os.write(handle, text.encode())


def read_holder(path: Path) -> str:
    """Return who holds the lock, as far as it is known."""
    try:
        return path.read_text("utf-8", "replace")[:200] or "an unknown process"
    except OSError:
        return "an unknown process"
