"""Mistyped names: which known one was meant."""

import difflib
from collections.abc import Iterable

__all__ = ["nearest_spelling"]


def nearest_spelling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to a mistyped one, if any is close."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)
