"""Records: what the store knows of a key, as canonical bytes."""

import itertools
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.msgpack import Decoder

from planfreeze import errors
from planfreeze.family import LaunchInfo

__all__ = ["RECORD_FORMAT", "ProgramRecord"]

RECORD_FORMAT = 2


class Head(Struct, array_like=True):
    """What a record of any format begins with."""

    record_format: int


HEAD = Decoder(Head)
PARTS = Decoder(tuple[int, tuple[tuple[str, Any], ...]])


class ProgramRecord(Struct, frozen=True, kw_only=True):
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
    companions : tuple of (str, str)
        Blobs that a compiler's own runtime needs beside the cubin to launch the program: name and sha256.
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
    companions: tuple[tuple[str, str], ...] = ()

    @property
    def blobs(self) -> tuple[str, ...]:
        """Digests of all blobs that the program needs, the cubin first."""
        return (self.blob, *(digest for _, digest in self.companions))

    def encode(self) -> bytes:
        """Return the canonical bytes: msgpack of [format, [[field, value], ...]] in declared order."""
        stated = [[name, encode_value(getattr(self, name))] for name in self.__struct_fields__]
        return msgspec.msgpack.encode([RECORD_FORMAT, stated])

    @classmethod
    def decode(cls, data: bytes) -> "ProgramRecord":
        """Read a record back.

        Raises
        ------
        DamagedRecord
            The bytes are no record.
        OtherRecordFormat
            They are a record of another format.
        """
        try:
            record_format = HEAD.decode(data).record_format
            if record_format != RECORD_FORMAT:
                raise errors.OtherRecordFormat(record_format, RECORD_FORMAT)
            values = dict(PARTS.decode(data)[1])
            values["launch"] = LaunchInfo.from_fields(values["launch"])
            values["parameter_bytes"] = tuple(values["parameter_bytes"])
            values["companions"] = tuple((name, digest) for name, digest in values["companions"])
            record = cls(**values)
            is_canonical = record.encode() == data and has_declared_types(record)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, KeyError) as error:
            raise errors.DamagedRecord(str(error)) from error
        if not is_canonical:
            raise errors.DamagedRecord("not in canonical form")
        return record


def has_declared_types(record: ProgramRecord) -> bool:
    """Tell whether every field holds what it is declared to hold; ``True`` is no int."""
    launch = record.launch
    texts = (record.family, record.arch, record.blob, record.symbol, *itertools.chain(*record.companions))
    flags = (launch.is_cooperative, launch.is_programmatic)
    counts = (
        *(record.registers, record.stack_bytes, record.static_shared_bytes, *record.parameter_bytes),
        *(launch.shared_bytes, launch.min_blocks, *launch.block, *launch.cluster),
        *(() if launch.carveout_percent is None else (launch.carveout_percent,)),
    )
    are_plain = all(type(text) is str for text in texts) and all(type(flag) is bool for flag in flags)
    are_counts = all(type(count) is int and count >= 0 for count in counts)
    return are_plain and are_counts and type(record.payload) is bytes and len(launch.block) == len(launch.cluster) == 3


def encode_value(value: object) -> object:
    """Turn a field into what msgpack holds."""
    return value.to_fields() if isinstance(value, LaunchInfo) else value
