"""Folders of a store: made once, their lists of names flushed to disk."""

import errno
import os
from pathlib import Path

__all__ = ["make_folder", "sync_folder"]


def make_folder(path: Path) -> None:
    """Make a folder if it is not there, and those above it, each flushed to disk, with the mode the umask gives."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names to disk, where the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a folder that may be written and not read cannot be flushed
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)
