"""Sweeping: taking entries out of a store beside builders that may be about to name them."""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from planfreeze.cache.digest import is_digest
from planfreeze.cache.files import NO_LINKS, writing
from planfreeze.cache.folders import make_folder
from planfreeze.cache.layout import Kind, Layout

__all__ = ["MOVED", "Name", "remove_entries", "remove_old_files", "restore_swept", "wait_for_sweeps"]

Name = tuple[Kind, str]

MOVED: tuple[Kind, ...] = ("plan", "record", "note", "blob")  # what names others goes first; a reference never does
BATCH = 512
SWEEP_PATTERN = re.compile("[0-9a-f]{32}")
# A batch takes well under a second. A collector that was killed or stopped is not waited for any longer.
SWEEP_TIMEOUT_S = 5.0
SWEEP_STEP_S = 0.01


def remove_entries(layout: Layout, doomed: Sequence[Name], find_kept: Callable[[], Collection[Name]]) -> Iterator[Name]:
    """Remove entries that nobody needs; yield each one that is gone.

    Parameters
    ----------
    doomed : sequence of (kind, name)
        What to remove, plans before their records and records before their blobs.
    find_kept : callable
        Reads the store's references and pins and returns what they need now.

    Raises
    ------
    StoreUnusable
        The store cannot be written. What was moved aside comes back with the next build or collection.

    Notes
    -----
    For every batch a folder is made first. Then references and pins are read, the entries are moved into the folder,
    references and pins are read again, and only then the entries are deleted or put back. A builder does the reverse:
    it pins its plan and then has :func:`wait_for_sweeps` see to it that no folder is left; after that it looks what is
    there, and names the plan. A collector whose folder was made later reads the pin before it moves anything; one
    whose folder was there has either finished, or lost the folder with all that was in it going back, and can move
    nothing any more. So nothing that a named plan needs is missing, and no clock, lock or kill changes that.
    """
    for start in range(0, len(doomed), BATCH):
        folder = layout.swept / os.urandom(16).hex()
        with writing(layout, folder, 0):
            make_folder(folder)
        kept = find_kept()
        batch = [name for name in doomed[start : start + BATCH] if name not in kept]
        with writing(layout, folder, 0):
            moved = [name for name in batch if move_aside(layout, folder, *name)]
        kept = find_kept()
        with writing(layout, folder, 0):
            for kind, name in moved:
                place = aside(folder, kind, name)
                if (kind, name) in kept:
                    put_back(place, layout.entry(kind, name))
                elif delete(place):
                    yield kind, name
            remove_if_empty(folder)


def wait_for_sweeps(layout: Layout) -> None:
    """Return when no sweep is left that began before: each has ended by itself or, after some seconds, was undone.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    begun = set(sweeps(layout))
    while begun and time.monotonic() < deadline:
        time.sleep(SWEEP_STEP_S)
        begun &= set(sweeps(layout))
    with writing(layout, layout.swept, 0):
        for folder in begun:
            undo_sweep(layout, folder)


def restore_swept(layout: Layout) -> int:
    """Put back what other collectors, killed or at work, have moved aside; return how many entries came back.

    An entry that was published again since stays as it is. A living collector is not harmed: what it meant to remove
    is there again, and the next collection finds it.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    with writing(layout, layout.swept, 0):
        return sum(undo_sweep(layout, folder) for folder in sweeps(layout))


def sweeps(layout: Layout) -> list[Path]:
    """Return the folders of all sweeps that have not ended."""
    try:
        return [folder for folder in layout.swept.iterdir() if SWEEP_PATTERN.fullmatch(folder.name)]
    except FileNotFoundError:
        return []


def undo_sweep(layout: Layout, folder: Path) -> int:
    """Put back all that lies in a sweep's folder and remove the folder, so that its collector can move nothing more."""
    restored = 0
    while folder.is_dir() and not folder.is_symlink():
        for place in list_folder(folder):
            path = find_origin(layout, place)
            if path is None:
                return restored  # nothing a collector moved there: the folder is somebody else's
            restored += put_back(place, path)
        remove_if_empty(folder)
    return restored


def find_origin(layout: Layout, place: Path) -> Path | None:
    """Return where an entry lay before it was moved aside; None for what was never an entry."""
    stated, _, name = place.name.partition("-")
    kind = next((kind for kind in MOVED if kind == stated), None)
    return layout.entry(kind, name) if kind is not None and is_digest(name) else None


def list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def remove_old_files(layout: Layout, folder: Path, before_s: float, *, is_dry_run: bool = False) -> int:
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
                    removed_bytes += info.st_size
                    if not is_dry_run:
                        path.unlink()
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
    except FileNotFoundError:
        return False  # somebody else put it back
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return rename_back(place, path)
    place.unlink(missing_ok=True)
    return True


def rename_back(place: Path, path: Path) -> bool:
    """Move an entry back where there are no hard links, as for what is no plain file."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.lexists(path):
            delete(place)
            return False
        place.rename(path)
        return True
    return False


def delete(place: Path) -> bool:
    """Delete an entry that was moved aside; False when somebody else put it back.

    A folder that lay in its place goes when it is empty.
    """
    try:
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that this module made, unless another collector is at work in it."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
