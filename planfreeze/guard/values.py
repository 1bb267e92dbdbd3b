"""Values: how the arguments of a kernel or a function are spelled in an attempt."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

__all__ = ["describe_named", "describe_value", "shorten"]

SHOWN_CHARACTERS = 400


def describe_value(value: object) -> str:
    """Spell an argument: constants by value, tensors by element type and shape, all else by type."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, type):
        return value.__qualname__
    # Properties of a stranger's object, which may need a context that is not there: describing must not fail.
    with suppress(Exception):
        shape: Any = value.shape  # type: ignore[attr-defined]
        element = getattr(value, "element_type", None) or value.dtype  # type: ignore[attr-defined]
        return f"{getattr(element, '__name__', element)}{tuple(shape) if isinstance(shape, list | tuple) else shape}"
    return type(value).__qualname__


def describe_named(values: Mapping[str, object]) -> str:
    """Spell named arguments, in their order."""
    return shorten(", ".join(f"{name}: {describe_value(value)}" for name, value in values.items()))


def shorten(text: str) -> str:
    """Cut a text that is too long for one line of a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
