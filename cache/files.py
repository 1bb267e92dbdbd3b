"""Files of a store: read one whole, publish one once, replace one in a single step."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from planfreeze.cache.layout import Layout
from planfreeze.errors import DamagedEntry, StoreUnusable

__all__ = [
    "NotPlainFile",
    "is_plain_file",
    "make_folder",
    "publish_file",
    "publish_once",
    "quarantine_file",
    "read_file",
    "reading",
    "replace_file",
    "writing",
]

# What link(2) says on file systems without hard links (FAT, some FUSE and network file systems) and across
# the layers of an overlay.
NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)
READ_BYTES = 1 << 20
STALE_READS = 3
PUBLISH_ROUNDS = 8
TEMPORARY_NAMES = 10_000


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
    with writing(layout, path, len(data)), temporary_file(layout, data) as temporary:
        make_folder(path.parent)
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
        sync_folder(path.parent)
    return True


def replace_file(layout: Layout, path: Path, data: bytes) -> None:
    """Exchange the content at ``path`` in one step: readers see the old or the new file, whole.

    Raises
    ------
    StoreUnusable
        The store cannot be written; the old content stands and no temporary file is left.
    """
    with writing(layout, path, len(data)), temporary_file(layout, data) as temporary:
        make_folder(path.parent)
        temporary.replace(path)
        sync_folder(path.parent)


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
    make_folder(layout.temporaries)
    path, handle = create_exclusively(layout.temporaries)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        yield path
    finally:
        # The entry is published or refused by now: a file server that is busy with the temporary name
        # (EBUSY, ESTALE) changes neither, and the collector removes what is left.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def create_exclusively(folder: Path) -> tuple[Path, int]:
    """Create a new file, counting up until the name is free, so that equal random numbers do no harm."""
    token = os.urandom(16).hex()
    for attempt in range(TEMPORARY_NAMES):
        path = folder / f"{token}-{attempt}"
        with contextlib.suppress(FileExistsError):
            # 0o666: the umask and a set-gid folder decide who may read, as for every other file.
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    raise FileExistsError(errno.EEXIST, "no free temporary name", str(folder))


def make_folder(path: Path) -> None:
    """Make a folder if it is not there, flushed to disk, with the mode the umask gives."""
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
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
        raise DamagedEntry(name, str(path), "it is not a plain file") from error
    except OSError as error:
        raise StoreUnusable(str(layout.root), f"{path} cannot be read: {error.strerror or error}") from error
