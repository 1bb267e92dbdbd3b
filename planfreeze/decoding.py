"""Decoding msgpack that anyone may have written: memory and time in proportion to the bytes that are there."""

from typing import Any

import msgspec
from msgspec.msgpack import Decoder

__all__ = ["decode_msgpack"]

MAX_DEPTH = 256  # more than any entry has, and far from what Python can nest
SKIPPED = Decoder(msgspec.Raw)


def decode_msgpack(data: bytes) -> Any:
    """Return the one value that ``data`` encodes, with tuples for arrays.

    Raises
    ------
    ValueError
        The bytes are cut off, followed by others, nested deeper than 256 levels, or no msgpack.

    Notes
    -----
    A length is never believed: decoding makes room for as many items as an array declares before it reads the first
    one, at every level of nesting. Skipping makes room for nothing and succeeds only when every declared item is
    there, so it goes first.
    """
    try:
        SKIPPED.decode(data)
        return freeze_arrays(msgspec.msgpack.decode(data), MAX_DEPTH)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no msgpack: {error}") from error


def freeze_arrays(value: Any, depth: int) -> Any:
    """Turn arrays into tuples, those in arrays too."""
    if type(value) is not list:
        return value
    if not depth:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return tuple(freeze_arrays(item, depth - 1) for item in value)
