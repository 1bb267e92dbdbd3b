"""Writing a pack: one file that appears whole or not at all, the same bytes for the same entries."""

import os
from collections.abc import Iterable
from pathlib import Path

from planfreeze import errors
from planfreeze.cache.folders import sync_folder
from planfreeze.cache.pack_index import PackIndex

__all__ = ["write_pack"]


def write_pack(path: Path, index: PackIndex, bodies: Iterable[bytes]) -> int:
    """Write a pack over what may be at ``path``, flushed, in one step; return its size in bytes.

    Parameters
    ----------
    bodies : iterable of bytes
        The entries' bytes in the order of the index: plans, records, blobs. What reading them raises is passed on.

    Raises
    ------
    PackUnwritable
        The system refuses; what was at ``path`` is unchanged and nothing is left beside it.
    """
    size_bytes = len(index.start) + index.body_bytes
    temporary = path.with_name(f".{os.urandom(16).hex()}.pfz")
    try:
        write_file(temporary, index, bodies)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise errors.PackUnwritable(str(path), error.strerror or str(error), size_bytes) from error
    finally:
        temporary.unlink(missing_ok=True)
    return size_bytes


def write_file(path: Path, index: PackIndex, bodies: Iterable[bytes]) -> None:
    """Write a new file and flush it."""
    entries = (*index.plans, *index.records, *index.blobs)
    with path.open("xb") as file:
        file.write(index.start)
        for entry, body in zip(entries, bodies, strict=True):
            assert len(body) == entry.size_bytes, entry
            file.write(body)
        file.flush()
        os.fsync(file.fileno())
