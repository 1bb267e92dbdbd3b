"""Guards: refuse, report or count every attempt to compile between ``arm`` and ``release``."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import get_args

from planfreeze import errors
from planfreeze.guard.attempts import Attempt, Mode
from planfreeze.guard.watch import road_names, watch

__all__ = ["LOADS", "Guard", "no_compilation"]

Explain = Callable[[Attempt], str]
# Loaded here, so that neither a refusal nor a new guard imports anything.
CompilationForbidden = errors.CompilationForbidden
# Roads that move compiled programs to a device and compile nothing.
LOADS = frozenset({"triton-load"})


class Guard:
    """Watch every road to a compiler in this process, all threads included.

    Parameters
    ----------
    mode : str
        ``raise`` refuses an attempt before any compiler work; ``warn`` warns at the user's line and lets it go
        on; ``count`` only counts; ``off`` watches nothing.
    explain : callable, optional
        From the attempt to a sentence for the message, such as the nearest planned program.
    allowed : frozenset of str
        Roads it lets pass, neither counted nor answered.

    Raises
    ------
    UnknownMode
        The mode is none of these.
    UnknownRoad
        A road is allowed that does not exist.

    Notes
    -----
    Arming imports no compiler: one that is not loaded is hooked when it is imported. Several guards may be
    armed; each counts every attempt, and the innermost one that refuses raises. What a compile that was let
    through calls in the same thread is part of it and not counted again. A compile that runs in another thread
    while the guard is armed may finish. Python children started while it is armed arm a guard of the same mode.
    """

    def __init__(
        self, *, mode: Mode = "raise", explain: Explain | None = None, allowed: frozenset[str] = frozenset()
    ) -> None:
        if mode not in get_args(Mode):
            raise errors.UnknownMode(mode, get_args(Mode))
        allowed, known = frozenset(allowed), road_names()
        for name in sorted(allowed - set(known)):
            raise errors.UnknownRoad(name, known)
        self.mode: Mode = mode
        self.explain = explain
        self.allowed = allowed
        self.is_armed = False
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.heard: Counter[Attempt] = Counter()

    @property
    def attempts(self) -> Mapping[str, int]:
        """Attempts per road since the guard was made, a live read-only view; a road without any reads as 0."""
        return MappingProxyType(self.counts)

    @property
    def seen(self) -> Mapping[Attempt, int]:
        """Each different attempt since the guard was made, with how often it was made; as it is now."""
        with self.lock:
            return MappingProxyType(Counter(self.heard))

    def arm(self) -> None:
        """Start watching; nothing happens if the guard is armed.

        Raises
        ------
        UnwatchableRoad
            A compiler of a version whose entries are not known is loaded, or what watches a compiler cannot be
            loaded. Nothing is armed then.
        """
        if self.is_armed or self.mode == "off":
            return
        watch.arm(self)
        self.is_armed = True

    def release(self) -> None:
        """Stop watching; nothing happens if the guard is not armed."""
        if self.is_armed:
            watch.release(self)
            self.is_armed = False

    def count(self, attempt: Attempt) -> None:
        """Count an attempt, under its road and by itself."""
        with self.lock:
            self.counts[attempt.road] += 1
            self.heard[attempt] += 1

    def renew_lock(self) -> None:
        """Forget a lock that another thread of the parent may have held when this process was forked."""
        self.lock = threading.Lock()

    def answer(self, attempt: Attempt) -> None:
        """Refuse the attempt, warn of it, or let it go on.

        Raises
        ------
        CompilationForbidden
            In mode ``raise``.
        """
        if self.mode == "count":
            return
        refusal = CompilationForbidden(attempt, self.explain(attempt) if self.explain else "")
        if self.mode == "raise":
            raise refusal
        filename, _, line = attempt.location.rpartition(":")
        warnings.warn_explicit(str(refusal), RuntimeWarning, filename, int(line))


@contextmanager
def no_compilation(
    mode: Mode = "raise", explain: Explain | None = None, *, allowed: frozenset[str] = LOADS
) -> Iterator[Guard]:
    """Forbid compiling in this process while the block runs; resolving and loading programs stays allowed.

    Yields
    ------
    Guard
        The armed guard; its ``attempts`` stay readable after the block.

    Examples
    --------
    >>> with no_compilation() as guard:
    ...     pass
    >>> sum(guard.attempts.values())
    0
    """
    guard = Guard(mode=mode, explain=explain, allowed=allowed)
    guard.arm()
    try:
        yield guard
    finally:
        guard.release()
