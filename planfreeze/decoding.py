"""Decoding msgpack that anyone may have written: memory and time in proportion to the bytes that are there."""

from typing import Any

import msgspec

__all__ = ["decode_msgpack"]

MAX_DEPTH = 256  # more than any entry has, and far from what Python can nest


def decode_msgpack(data: bytes) -> Any:
    """Return the one value that ``data`` encodes, with tuples for arrays.

    Raises
    ------
    ValueError
        The bytes are cut off, followed by others, nested deeper than 256 levels, or no msgpack; there is a map.

    Notes
    -----
    A length is never believed: msgspec makes room for items as it reads them, whatever an array declares.
    """
    try:
        (value,) = freeze_arrays([msgspec.msgpack.decode(data)], MAX_DEPTH)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no msgpack: {error}") from error
    return value


def freeze_arrays(items: list[Any], depth: int) -> tuple[Any, ...]:
    """Turn an array into a tuple, those in it too. It is changed on the way, so that its items need no second room."""
    if not depth:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    for place, item in enumerate(items):
        if type(item) is list:
            items[place] = freeze_arrays(item, depth - 1) if item else ()
        elif type(item) is dict:
            raise ValueError("there is a map")
    return tuple(items)
