"""Children: the environment by which an armed guard travels into the Python processes that this one starts.

Three variables say what a child is to do, and a folder in front of ``PYTHONPATH`` holds the ``sitecustomize`` that
does it at the child's start.
"""

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from planfreeze.guard.attempts import Mode
from planfreeze.search_path import SEARCH_PATH, put_in_front, take_out

__all__ = ["Announcement", "child_environment", "strictest", "without_guard"]

MODE, ALLOWED, LOG = "PLANFREEZE_GUARD", "PLANFREEZE_GUARD_ALLOWED", "PLANFREEZE_GUARD_LOG"
STRICTEST_FIRST: tuple[Mode, ...] = ("raise", "warn", "count")


def child_environment(
    environ: Mapping[str, str], mode: Mode, log: Path | None = None, allowed: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return an environment in which every Python process arms a guard when it starts.

    Parameters
    ----------
    environ : Mapping
        What the child would have got.
    mode : str
        Mode of its guard.
    log : Path, optional
        File to which every armed process of the run adds its attempts; see ``planfreeze.guard.read_log``.
    allowed : frozenset of str
        Roads its guard lets pass, besides loads.
    """
    logged = {} if log is None else {LOG: str(log.absolute())}
    return {**environ, **guard_variables(environ.get(SEARCH_PATH), mode, allowed), **logged}


def without_guard(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no process arms a guard: for processes that build."""
    kept = {name: value for name, value in environ.items() if name not in (MODE, ALLOWED, LOG)}
    behind = take_out(kept.pop(SEARCH_PATH, None))
    return kept | ({SEARCH_PATH: behind} if behind is not None else {})


def guard_variables(search_path: str | None, mode: Mode, allowed: frozenset[str]) -> dict[str, str]:
    """Return the variables that arm a child, given the search path it would have had."""
    return {MODE: mode, ALLOWED: ",".join(sorted(allowed)), SEARCH_PATH: put_in_front(search_path)}


def strictest(modes: Sequence[Mode]) -> Mode | None:
    """Return the strictest of some modes; None where none of them watches anything."""
    return next((mode for mode in STRICTEST_FIRST if mode in modes), None)


class Announcement:
    """The variables of this process that arm its children, set while guards are armed.

    Parameters
    ----------
    environ : MutableMapping, optional
        Where they are set; the environment of this process unless given.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        self.environ = os.environ if environ is None else environ
        self.found: dict[str, str | None] = {}
        self.written: dict[str, str] = {}

    def update(self, guards: Sequence[tuple[Mode, frozenset[str]]]) -> None:
        """Announce the strictest of the armed guards, given as (mode, allowed roads); put all back for none.

        While guards remain armed there is no moment at which a child would start without one.
        """
        mode = strictest([armed for armed, _ in guards])
        if mode is None:
            self.restore()
            return
        allowed = frozenset.intersection(*(roads for armed, roads in guards if armed == mode))
        for name, value in guard_variables(self.environ.get(SEARCH_PATH), mode, allowed).items():
            current = self.environ.get(name)
            if name not in self.written:
                self.found[name] = current
            elif current != self.written[name]:
                continue  # changed since by somebody else
            self.environ[name] = self.written[name] = value

    def restore(self) -> None:
        """Put back what was found; a variable that was changed since is somebody else's and stays."""
        for name, written in self.written.items():
            if self.environ.get(name) != written:
                continue
            found = self.found[name]
            if found is None:
                del self.environ[name]
            else:
                self.environ[name] = found
        self.written, self.found = {}, {}
