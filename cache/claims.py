"""Claims: temporaries that are locked by their owner while it lives, so that others may remove what the dead left."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["create_claimed", "find_abandoned"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNCLAIMED = "0" * 16  # the mark of no kernel
CLAIM_PATTERN = r"([0-9a-f]{16})-[0-9a-f]{32}-\d{1,4}"
CLAIM_NAMES = 10_000
CLAIM_TRIES = 8


def create_claimed(folder: Path, prefix: str = "", *, is_folder: bool = False) -> tuple[Path, int]:
    """Create a temporary file or folder under a name of its own and lock it; return its path and open handle.

    The claim lasts until the last copy of the handle is closed, also by the death of its owner.

    Raises
    ------
    OSError
        It cannot be created.

    Notes
    -----
    The name carries a mark of the running kernel, whose locks are exact among all its processes, those in other
    containers included. Where nothing can be locked the mark is no kernel's, and nobody takes the owner for dead.
    """
    mark, tries_left = read_kernel_mark(), CLAIM_TRIES
    while True:
        path, handle = create_exclusively(folder, f"{prefix}{mark}", is_folder=is_folder)
        if mark == UNCLAIMED or lock_claim(path, handle):
            return path, handle
        # Between creation and lock it looks abandoned: where a cleaner was faster, another one is made.
        tries_left -= 1
        if tries_left == 0 or not can_lock(handle):
            mark = UNCLAIMED
        os.close(handle)
        with contextlib.suppress(FileNotFoundError):
            path.rmdir() if is_folder else path.unlink()


def find_abandoned(folder: Path, prefix: str = "", *, foreign_age_s: float | None = None) -> Iterator[Path]:
    """Yield the temporaries in a folder whose owners are dead, each while it is locked for the caller to remove it.

    Parameters
    ----------
    prefix : str
        What their names begin with; all others are left out.
    foreign_age_s : float, optional
        Yield those that bear no mark of this kernel, too, if the folder was changed so much later than they were;
        None never does. Both times come from the file system: no host's clock matters.
    """
    mark = read_kernel_mark()
    for path in list_paths(folder, prefix):
        match = re.fullmatch(CLAIM_PATTERN, path.name.removeprefix(prefix))
        is_foreign = match is None or match[1] != mark
        # An error: its owner cannot be asked, or somebody else has just removed it.
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            found, place = path.lstat(), folder.stat()
            if is_foreign and (foreign_age_s is None or place.st_mtime - found.st_mtime < foreign_age_s):
                continue
            handle = open_claim(path, is_folder=stat.S_ISDIR(found.st_mode))
            opened.callback(os.close, handle)
            if lock_claim(path, handle):
                yield path


def read_kernel_mark() -> str:
    """Return what tells the running kernel from other hosts' and from this one's before it was started again."""
    try:
        boot = BOOT_ID.read_bytes()
    except OSError:
        return os.urandom(8).hex()  # equal to no other: what bears it is foreign to everybody
    return hashlib.sha256(boot).hexdigest()[:16]


def create_exclusively(folder: Path, prefix: str, *, is_folder: bool) -> tuple[Path, int]:
    """Create and open what nobody else has, counting up until a name is free: equal random numbers do no harm."""
    token = os.urandom(16).hex()
    for attempt in range(CLAIM_NAMES):
        path = folder / f"{prefix}-{token}-{attempt}"
        try:
            if is_folder:
                path.mkdir(mode=0o700)
            # 0o666: the umask and a set-gid folder decide who may read, as for every other file.
            return path, open_claim(path, is_folder=is_folder, flags=0 if is_folder else os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        except FileNotFoundError:
            # A folder that nobody has locked yet looks abandoned: somebody else may have removed it.
            if not (is_folder and folder.is_dir()):
                raise
    raise FileExistsError(errno.EEXIST, "no free temporary name", str(folder))


def open_claim(path: Path, *, is_folder: bool, flags: int = 0) -> int:
    """Open a temporary in the one way in which it is locked: who asks can lock wherever its owner could."""
    kind = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_WRONLY | os.O_NONBLOCK
    return os.open(path, kind | os.O_NOFOLLOW | flags, 0o666)


def lock_claim(path: Path, handle: int) -> bool:
    """Lock an open temporary; False when somebody holds it, nothing can be locked, or it lies there no more."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError:
        return False


def can_lock(handle: int) -> bool:
    """Tell whether what is open can be locked at all, by this process or by who holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    return True


def list_paths(folder: Path, prefix: str) -> list[Path]:
    """Return what lies in a folder under names with a prefix; nothing when the folder cannot be read."""
    try:
        with os.scandir(folder) as found:
            return [Path(item.path) for item in found if item.name.startswith(prefix)]
    except OSError:
        return []
