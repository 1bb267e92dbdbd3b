"""Whether a store can only have been written by its user: asked when no root digest proves its bytes."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from planfreeze.cache.layout import Layout

__all__ = ["find_distrust"]

MAX_LINKS = 40  # as many as Linux follows in one path


def find_distrust(path: Path, layout: Layout) -> str | None:
    """Return why the store reached by ``path`` may hold other users' bytes, or None.

    Every folder on the way down, links included, and the folders directly below the root must belong to the
    user or root and let nobody else exchange what lies in them. Entries deeper down are not visited.
    """
    trusted_owners = {0, os.geteuid()}
    for step in walk_down(path):
        info = step.lstat()
        if info.st_uid not in trusted_owners:
            return f"{step} belongs to user {info.st_uid}"
        # In a sticky folder only its owner can exchange a name; the next step's owner is checked in turn.
        is_sticky_parent = bool(info.st_mode & stat.S_ISVTX) and step != layout.root
        open_bits = stat.S_IWOTH if is_private_group(info.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        if stat.S_ISDIR(info.st_mode) and info.st_mode & open_bits and not is_sticky_parent:
            return f"{step} can be written by others (mode {stat.S_IMODE(info.st_mode):o})"
    for folder in layout.folders:
        if not folder.exists():
            continue
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid not in trusted_owners:
            return f"{folder} is a link or belongs to user {info.st_uid}"
        if info.st_mode & open_bits:
            return f"{folder} can be written by others (mode {stat.S_IMODE(info.st_mode):o})"
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
