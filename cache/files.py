"""Files of a store: read one whole, publish one once, replace one in a single step."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from planfreeze import errors
from planfreeze.cache.folders import make_folder, sync_folder
from planfreeze.cache.layout import Layout

__all__ = [
    "NotPlainFile",
    "flush_entries",
    "is_plain_file",
    "publish_file",
    "publish_once",
    "quarantine_file",
    "read_file",
    "reading",
    "remove_abandoned",
    "replace_file",
    "writing",
]

# Loaded here: where the system refuses to open files, the error that says so could not be imported either.
StoreUnusable = errors.StoreUnusable

# What link(2) says on file systems without hard links (FAT, some FUSE and network file systems) and across
# the layers of an overlay.
NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)
READ_BYTES = 1 << 20
STALE_READS = 3
PUBLISH_ROUNDS = 8
# Temporaries of other hosts: nothing is written for so long, and who loses one all the same writes it again.
FOREIGN_AGE_S = 86_400.0


class NotPlainFile(Exception):
    """Something else than a plain file lies at the path: a link, a folder, a device."""


def is_plain_file(path: Path) -> bool:
    """Tell with one stat whether a plain file lies at ``path``; links are not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_file(path: Path) -> bytes | None:
    """Return the whole content of a plain file, or None when nothing is there.

    Raises
    ------
    NotPlainFile
        A link, folder or device is there.
    OSError
        It cannot be read.

    Notes
    -----
    Network file systems answer ESTALE once when a file was exchanged on another host: the read is repeated.
    """
    for _ in range(STALE_READS - 1):
        try:
            return read_open_file(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return read_open_file(path)


def read_open_file(path: Path) -> bytes | None:
    try:
        # O_NONBLOCK: a pipe planted in place of an entry must not hang the reader.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotPlainFile(str(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotPlainFile(str(path))
        chunks = []
        while chunk := os.read(handle, READ_BYTES):
            chunks.append(chunk)
    finally:
        os.close(handle)
    return b"".join(chunks)


def publish_once(layout: Layout, path: Path, data: bytes, is_whole: Callable[[bytes], bool]) -> bytes | None:
    """Publish ``data`` at ``path`` unless a whole entry is there already.

    Returns
    -------
    bytes or None
        The entry that was already there, untouched; None when ``data`` was published.

    Raises
    ------
    StoreUnusable
        The store cannot be written.

    Notes
    -----
    An entry that is there but not whole moves to the quarantine first. Nothing is written or flushed when a
    whole entry is there.
    """
    with writing(layout, path, len(data)):
        for _ in range(PUBLISH_ROUNDS):
            try:
                present = read_file(path)
            except NotPlainFile:
                quarantine_file(layout, path, "not a plain file")
                continue
            if present is not None and is_whole(present):
                return present
            if present is not None:
                quarantine_file(layout, path, "did not match its digest when it was published again")
            if publish_file(layout, path, data):
                return None
    raise StoreUnusable(str(layout.root), f"{path} changes while it is published", len(data))


def publish_file(layout: Layout, path: Path, data: bytes) -> bool:
    """Make ``data`` appear at ``path`` in one step, flushed to disk; return False when something is there.

    Raises
    ------
    StoreUnusable
        The store cannot be written; no temporary file is left.

    Notes
    -----
    Where the file system has no hard links, two writers that arrive together may both rename: the later one
    wins. Both wrote whole entries of the same name.
    """
    return place_file(layout, path, data, appear)


def replace_file(layout: Layout, path: Path, data: bytes) -> None:
    """Exchange the content at ``path`` in one step: readers see the old or the new file, whole.

    Raises
    ------
    StoreUnusable
        The store cannot be written; the old content stands and no temporary file is left.
    """
    place_file(layout, path, data, exchange)


def place_file(layout: Layout, path: Path, data: bytes, move: Callable[[Path, Path], bool]) -> bool:
    """Write a temporary file, flush it, move it to its place, flush the place; return what the move returned."""
    with writing(layout, path, len(data)):
        for _ in range(PUBLISH_ROUNDS):
            # Not found: a cleaner of old files took the temporary or the folder. Both are made again.
            with contextlib.suppress(FileNotFoundError), temporary_file(layout, data) as temporary:
                make_entry_folder(layout, path.parent)
                is_moved = move(temporary, path)
                sync_folder(path.parent)
                return is_moved
    raise StoreUnusable(str(layout.root), f"{path} is removed while it is written", len(data))


def appear(temporary: Path, path: Path) -> bool:
    """Give a file its name unless something else has it."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        temporary.rename(path)
    return True


def exchange(temporary: Path, path: Path) -> bool:
    """Give a file its name whoever has it."""
    temporary.replace(path)
    return True


def quarantine_file(layout: Layout, path: Path, reason: str) -> Path | None:
    """Move what lies at ``path`` out of the readers' sight; return where to, or None when nothing was there.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    with writing(layout, path, len(reason)):
        make_folder(layout.quarantine)
        place = layout.quarantine / f"{path.parent.name}-{path.name[:80]}-{os.urandom(8).hex()}"
        try:
            path.rename(place)
        except FileNotFoundError:
            return None
        sync_folder(path.parent)
        replace_file(layout, place.with_name(f"{place.name}.reason"), f"{path}: {reason}\n".encode())
    return place


@contextlib.contextmanager
def temporary_file(layout: Layout, data: bytes) -> Iterator[Path]:
    """Write ``data`` to a file nobody else has open, flushed; remove it in the end unless it was renamed."""
    from planfreeze.cache.claims import create_claimed  # not needed to read

    make_folder(layout.temporaries)
    path, handle = create_claimed(layout.temporaries)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
        yield path
    finally:
        # The entry is published or refused by now: a file server that is busy with the temporary name (EBUSY,
        # ESTALE) changes neither, and a later builder removes what is left. It is closed first, since network
        # file systems keep what is unlinked while it is open.
        with contextlib.suppress(OSError):
            os.close(handle)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_abandoned(layout: Layout) -> None:
    """Remove the temporary files of dead builders; what cannot be removed is left for the next one."""
    from planfreeze.cache.claims import find_abandoned  # not needed to read

    for path in find_abandoned(layout.temporaries, foreign_age_s=FOREIGN_AGE_S):
        with contextlib.suppress(OSError):
            path.unlink()


def make_entry_folder(layout: Layout, folder: Path) -> None:
    """Make a folder below the root; what lies in its place or above it and is no folder is quarantined."""
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError):
        if folder == layout.root or folder in layout.quarantine.parents or folder == layout.quarantine:
            raise
        make_entry_folder(layout, folder.parent)
        if not folder.is_dir():
            quarantine_file(layout, folder, "not a folder")
            make_folder(folder)


def flush_entries(layout: Layout, paths: Iterable[Path]) -> None:
    """Flush the names of entries and of all folders above them: who published them may not have come so far yet."""
    with writing(layout, layout.root, 0):
        for folder in {folder for path in paths for folder in path.parents}:
            # A folder that is gone holds no names.
            with contextlib.suppress(FileNotFoundError):
                if folder.is_relative_to(layout.root):
                    sync_folder(folder)


@contextlib.contextmanager
def writing(layout: Layout, path: Path, size_bytes: int) -> Iterator[None]:
    """Turn the system's refusal to write into one error that names store, entry and size."""
    try:
        yield
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
        raise StoreUnusable(str(layout.root), reason, size_bytes) from error


@contextlib.contextmanager
def reading(layout: Layout, path: Path, name: str) -> Iterator[None]:
    """Turn what stands in the way of reading into an error: damage, or a refusal of the system."""
    try:
        yield
    except NotPlainFile as error:
        raise errors.DamagedEntry(name, str(path), "it is not a plain file") from error
    except OSError as error:
        raise StoreUnusable(str(layout.root), f"{path} cannot be read: {error.strerror or error}") from error
