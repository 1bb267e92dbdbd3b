"""Mistyped names: which known one was meant."""

import difflib
from collections.abc import Iterable

__all__ = ["nearest_reference", "nearest_spelling"]


def nearest_spelling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to a mistyped one, if any is close."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def nearest_reference(reference: str, known: Iterable[str]) -> str | None:
    """Return the known "module:attribute" of the same module whose attribute is closest, if any is close."""
    module, _, attribute = reference.partition(":")
    attributes = [found.partition(":")[2] for found in known if found.startswith(f"{module}:")]
    near = nearest_spelling(attribute, attributes)
    return near and f"{module}:{near}"
