"""Whether a store or pack can only have been written by its user: asked when nothing else proves its bytes."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from planfreeze.cache.layout import Layout

__all__ = ["find_distrust", "find_file_distrust"]

MAX_LINKS = 40  # as many as Linux follows in one path


def find_distrust(path: Path, layout: Layout) -> str | None:
    """Return why the store reached by ``path`` may hold other users' bytes, or None.

    Every folder on the way down, links included, and the folders directly below the root must belong to the
    user or root and let nobody else exchange what lies in them. Entries deeper down are not visited.
    """
    for step in walk_down(path):
        if reason := judge(step, step.lstat(), is_way=step != layout.root):
            return reason
    for folder in layout.folders:
        if not folder.exists():
            continue
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode):
            return f"{folder} is a link"
        if reason := judge(folder, info, is_way=False):
            return reason
    return None


def find_file_distrust(path: Path, handle: int) -> str | None:
    """Return why the open file reached by ``path`` may hold other users' bytes, or None.

    The file is judged by its handle: it is the one that is read, whatever lies at the path by now.
    """
    for step in walk_down(path):
        info = step.lstat()
        is_way = stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)
        if is_way and (reason := judge(step, info, is_way=True)):
            return reason
    return judge(path, os.fstat(handle), is_way=False)


def judge(step: Path, info: os.stat_result, *, is_way: bool) -> str | None:
    """Return why others can exchange what a folder or file holds or where a link leads, or None.

    In a sticky folder on the way only its owner can exchange a name; the next step's owner is checked in turn.
    """
    if info.st_uid not in (0, os.geteuid()):
        return f"{step} belongs to user {info.st_uid}"
    open_bits = stat.S_IWOTH if is_private_group(info.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    is_sticky = is_way and bool(info.st_mode & stat.S_ISVTX)
    if not stat.S_ISLNK(info.st_mode) and info.st_mode & open_bits and not is_sticky:
        return f"{step} can be written by others (mode {stat.S_IMODE(info.st_mode):o})"
    return None


def is_private_group(gid: int) -> bool:
    """Tell whether the user is alone in a group, as where every user has a group of the same name."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def walk_down(path: Path) -> Iterator[Path]:
    """Yield every folder and link that leads from / to ``path``, what links point to included."""
    links = 0
    pending = list(path.absolute().parts)
    place = Path(pending.pop(0))
    yield place
    while pending:
        name = pending.pop(0)
        if name == "..":
            place = place.parent
            continue
        step = place / name
        yield step
        if not step.is_symlink():
            place = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(f"more than {MAX_LINKS} links lead to {path}")
        aim = step.readlink()
        pending = [*aim.parts, *pending]
        if aim.is_absolute():
            place = Path(pending.pop(0))
