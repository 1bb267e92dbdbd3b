"""Decoding msgpack that anyone may have written: memory and time in proportion to the bytes that are there."""

from typing import Any

import msgpack

__all__ = ["decode_msgpack"]


def decode_msgpack(data: bytes) -> Any:
    """Return the one value that ``data`` encodes, with tuples for arrays.

    Raises
    ------
    ValueError
        The bytes are cut off, followed by others, nested deeper than 1023 levels, or no msgpack.

    Notes
    -----
    A length is never believed: msgpack makes room for as many items as an array declares before it reads the first
    one, at every level of nesting. Skipping makes room for nothing and succeeds only when every declared item is
    there, so it goes first.
    """
    probe = msgpack.Unpacker(max_buffer_size=len(data) + 1)
    probe.feed(data)
    try:
        probe.skip()
        if probe.tell() != len(data):
            raise ValueError(f"{len(data) - probe.tell()} bytes after its end")
        return msgpack.unpackb(data, use_list=False)
    except msgpack.UnpackException as error:
        raise ValueError(f"no msgpack: {str(error) or type(error).__name__}") from error
