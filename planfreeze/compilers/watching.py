"""Functions whose captures are checked at their first use in a process, and again when one of them has changed."""

from collections.abc import Callable, Iterable
from typing import Any

from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import Captured, check_captures

__all__ = ["WatchedCaptures"]


class WatchedCaptures:
    """What functions of this process were found to reach.

    Notes
    -----
    A check after the first costs one look-up for each name that a function reaches. What it reaches by looking names
    up dynamically is not seen.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Captured, ...]] = {}

    def check(self, key: str, kernel: str, roots: Iterable[Any], text: Callable[[], KeyedText]) -> None:
        """Check all that functions reach, unless it is what it was when they were checked under ``key``.

        Raises
        ------
        UnkeyedCapture
            Names the first thing that is not what the text says.
        """
        known = self._known.get(key)
        if known is not None and all(captured.is_unchanged() for captured in known):
            return
        self._known.pop(key, None)
        self._known[key] = check_captures(kernel, roots, text(), are_cells_keyed=True)
