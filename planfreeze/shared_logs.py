"""Shared logs: one file for all processes of a run, to which each adds whole lines."""

import errno
import os
from pathlib import Path

__all__ = ["append_lines", "read_lines"]


def append_lines(path: Path, lines: bytes) -> None:
    """Append whole lines in one write, so that those of several processes do not mix.

    Raises
    ------
    OSError
        They were not written, or not all of them.
    """
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(log, lines)
    finally:
        os.close(log)
    if written < len(lines):
        raise OSError(errno.ENOSPC, f"{written} of {len(lines)} bytes were written", str(path))


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a log in the order they were added; a log that does not exist has none."""
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
