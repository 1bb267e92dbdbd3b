"""Pins: plans that are about to get their name, so that collectors spare what they need."""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from planfreeze.cache.digest import check_digest
from planfreeze.cache.files import writing
from planfreeze.cache.folders import make_folder
from planfreeze.cache.layout import Layout
from planfreeze.cache.sweeping import wait_for_sweeps

__all__ = ["list_pins", "pinned"]

PIN_PATTERN = re.compile(
    r"(?P<root>[0-9a-f]{64})-(?P<kernel>[0-9a-f]{16})-(?P<pid>\d{1,9})-(?P<started>\d{1,20})-[0-9a-f]{32}"
)
# A pin whose builder cannot be looked for from here, on another host or in another container, counts for a day.
FOREIGN_AGE_S = 86_400.0


@contextlib.contextmanager
def pinned(layout: Layout, roots: Iterable[str]) -> Iterator[None]:
    """Pin plans, whether they are there or not, and wait for collectors that began before.

    Inside, no collector removes an entry of the plans that is there, nor one that is put; a plan that is not there
    yet keeps everything. So what is looked for, put, and named inside is there when it has its name.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    paths = [layout.pins / f"{check_digest(root)}-{describe_owner()}-{os.urandom(16).hex()}" for root in roots]
    try:
        with writing(layout, layout.pins, 0):
            make_folder(layout.pins)
            for path in paths:
                path.touch(exist_ok=False)
        if paths:
            wait_for_sweeps(layout)
        yield
    finally:
        for path in paths:
            with contextlib.suppress(OSError):  # a pin that stays is found dead with its builder
                path.unlink(missing_ok=True)


def list_pins(layout: Layout) -> set[str]:
    """Return the root digests of all pins whose builders may be alive; pins of dead ones are removed.

    Raises
    ------
    StoreUnusable
        The store cannot be read or written.
    """
    roots = set()
    with writing(layout, layout.pins, 0), contextlib.suppress(FileNotFoundError):
        for path in list(layout.pins.iterdir()):
            match = PIN_PATTERN.fullmatch(path.name)
            if match is None:
                continue
            if is_alive(path, match):
                roots.add(match["root"])
            else:
                path.unlink(missing_ok=True)
    return roots


def is_alive(path: Path, pin: re.Match[str]) -> bool:
    """Tell whether the builder that made a pin may still be at work."""
    if pin["kernel"] == describe_kernel() != UNKNOWN_KERNEL:
        return is_running(int(pin["pid"]), pin["started"])
    try:
        return time.time() - path.lstat().st_mtime < FOREIGN_AGE_S
    except FileNotFoundError:
        return False


def is_running(pid: int, started: str) -> bool:
    """Tell whether a process runs; of one that is hidden from this user only its number is known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return read_start(pid) in (started, None)
    return read_start(pid) == started


UNKNOWN_KERNEL = "0" * 16


def describe_owner() -> str:
    """Return which process this is, as no other process on any host has ever been called."""
    return f"{describe_kernel()}-{os.getpid()}-{read_start(os.getpid()) or 0}"


def describe_kernel() -> str:
    """Return which numbering of processes this one belongs to: the running kernel and the container's."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return UNKNOWN_KERNEL
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def read_start(pid: int) -> str | None:
    """Return when a process started, in ticks since the kernel did; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]  # the name in brackets may hold anything; field 22 is the start
