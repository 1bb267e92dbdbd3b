"""Records: what the store knows of a key, as canonical bytes."""

from dataclasses import dataclass, fields
from typing import Any

import msgpack

from planfreeze.errors import DamagedRecord
from planfreeze.family import LaunchInfo

__all__ = ["RECORD_FORMAT", "ProgramRecord"]

RECORD_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A compiled program: where its bytes are and how they are launched.

    Parameters
    ----------
    family, arch, blob, symbol : str
        Family reference, exact architecture, sha256 of the cubin, entry symbol.
    payload : bytes
        The payload's canonical encoding.
    launch : LaunchInfo
        Block, cluster, shared memory and flags.
    parameter_bytes : tuple of int
        Size of every kernel parameter in order, read from the cubin.
    registers, stack_bytes, static_shared_bytes : int
        Resources per thread and block, read from the cubin.
    """

    family: str
    arch: str
    blob: str
    symbol: str
    payload: bytes
    launch: LaunchInfo
    parameter_bytes: tuple[int, ...]
    registers: int
    stack_bytes: int
    static_shared_bytes: int

    def encode(self) -> bytes:
        """Return the canonical bytes: msgpack of [format, [[field, value], ...]] in declared order."""
        stated = [[f.name, encode_value(getattr(self, f.name))] for f in fields(self)]
        encoded: bytes = msgpack.packb([RECORD_FORMAT, stated])
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> "ProgramRecord":
        """Read a record back.

        Raises
        ------
        DamagedRecord
            The bytes are no record of this format.
        """
        try:
            record_format, stated = msgpack.unpackb(data)
            if record_format != RECORD_FORMAT:
                raise DamagedRecord(f"format {record_format}, not {RECORD_FORMAT}")
            values: dict[str, Any] = dict(stated)
            values["launch"] = LaunchInfo.from_fields(values["launch"])
            values["parameter_bytes"] = tuple(values["parameter_bytes"])
            record = cls(**values)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise DamagedRecord(str(error)) from error
        if record.encode() != data:
            raise DamagedRecord("not in canonical form")
        return record


def encode_value(value: object) -> object:
    """Turn a field into what msgpack holds."""
    return value.to_fields() if isinstance(value, LaunchInfo) else value
