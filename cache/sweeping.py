"""Sweeping: taking entries out of a store beside builders that may be about to name them."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from planfreeze.cache.files import NO_LINKS, make_folder, writing
from planfreeze.cache.layout import KINDS, Kind, Layout
from planfreeze.errors import InvalidEntryName

__all__ = ["Name", "remove_entries", "remove_old_files", "restore_swept"]

Name = tuple[Kind, str]

BATCH = 512


def remove_entries(layout: Layout, doomed: Sequence[Name], find_kept: Callable[[], Collection[Name]]) -> Iterator[Name]:
    """Remove entries that nobody needs; yield each one that is gone.

    Parameters
    ----------
    doomed : sequence of (kind, name)
        What to remove, plans before their records and records before their blobs.
    find_kept : callable
        Reads the store's references and returns what they need now.

    Raises
    ------
    StoreUnusable
        The store cannot be written. What was moved aside stays so until :func:`restore_swept`.

    Notes
    -----
    An entry is first moved aside, then the references are read again, and only then it is deleted or put back. A
    builder does the reverse: it sets its reference, then looks whether all entries are there. Whichever comes first,
    one of the two sees the other, so no plan with a name is left without an entry.
    """
    for start in range(0, len(doomed), BATCH):
        kept = find_kept()
        batch = [name for name in doomed[start : start + BATCH] if name not in kept]
        folder = layout.swept / os.urandom(16).hex()
        with writing(layout, folder, 0):
            make_folder(folder)
            moved = [name for name in batch if move_aside(layout, folder, *name)]
        kept = find_kept()
        with writing(layout, folder, 0):
            for kind, name in moved:
                place = aside(folder, kind, name)
                if (kind, name) in kept:
                    put_back(place, layout.entry(kind, name))
                else:
                    delete(place)
                    yield kind, name
            remove_if_empty(folder)
            remove_if_empty(layout.swept)


def restore_swept(layout: Layout) -> int:
    """Put back what a killed collector had moved aside; return how many entries came back.

    An entry that was published again since stays as it is. Restoring what a living collector has moved aside does
    no harm: the next collection finds it again.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    restored = 0
    with writing(layout, layout.swept, 0), contextlib.suppress(FileNotFoundError):
        for folder in list(layout.swept.iterdir()):
            for place in list(folder.iterdir()):
                kind, _, name = place.name.partition("-")
                with contextlib.suppress(InvalidEntryName, FileNotFoundError):
                    if kind in KINDS:
                        restored += put_back(place, layout.entry(kind, name))
            remove_if_empty(folder)
        remove_if_empty(layout.swept)
    return restored


def remove_old_files(layout: Layout, folder: Path, before_s: float) -> int:
    """Remove files directly in a folder that were last written before a time; return their size in bytes.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    removed_bytes = 0
    with writing(layout, folder, 0), contextlib.suppress(FileNotFoundError):
        for path in list(folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                info = path.lstat()
                if not stat.S_ISDIR(info.st_mode) and info.st_mtime < before_s:
                    path.unlink()
                    removed_bytes += info.st_size
    return removed_bytes


def aside(folder: Path, kind: Kind, name: str) -> Path:
    return folder / f"{kind}-{name}"


def move_aside(layout: Layout, folder: Path, kind: Kind, name: str) -> bool:
    """Move an entry out of the readers' sight; False when it is gone already."""
    try:
        layout.entry(kind, name).rename(aside(folder, kind, name))
    except FileNotFoundError:
        return False
    return True


def put_back(place: Path, path: Path) -> bool:
    """Move an entry back unless another one is there by now; tell whether it was moved."""
    make_folder(path.parent)
    try:
        os.link(place, path, follow_symlinks=False)
    except FileExistsError:
        place.unlink(missing_ok=True)
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not os.path.lexists(path):
            place.rename(path)
            return True
    place.unlink(missing_ok=True)
    return True


def delete(place: Path) -> None:
    """Delete an entry that was moved aside; a folder that lay in its place goes when it is empty."""
    if place.is_dir() and not place.is_symlink():
        remove_if_empty(place)
    else:
        place.unlink(missing_ok=True)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that this module made, unless another collector is at work in it."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
