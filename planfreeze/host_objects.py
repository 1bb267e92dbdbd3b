"""Host objects of the CuTe DSL: the code that launches kernels, with their cubin inside, read without loading it.

Source: the ELF64 layout (System V ABI, Object Files); the names that nvidia-cutlass-dsl 4.8 gives symbols, and the
container of one cubin that it writes (NVIDIA does not publish its layout).
"""

import json
import struct
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.elf import ELF_START, HEADER, SECTION_SYMTAB, SYMBOL, read_name, read_sections

__all__ = [
    "HOST_FACTS",
    "HOST_OBJECT",
    "SYMBOL_PREFIX",
    "HostFacts",
    "HostObject",
    "is_host_object",
    "read_host_object",
]

# Names of the companions of a program.
HOST_OBJECT, HOST_FACTS = "cute.o", "cute.json"
# What the DSL puts in front of every symbol of an object: each object is loaded alone, so one will do.
SYMBOL_PREFIX = "planfreeze"
MACHINES = {62: "x86_64", 183: "aarch64"}
UNDEFINED = 0
CONTAINER_SYMBOL = "kernels_binary"
# Container: magic, version, size of this header, size of the rest. Entry: kind, version, size of its header, size of
# its content. Kind 2 is a cubin.
CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
CONTAINER_MAGIC, ENTRY_CUBIN = 0xBA55ED50, 2


class HostObject(Struct, frozen=True, kw_only=True):
    """What an object says of itself.

    Parameters
    ----------
    machine : str
        The host it is for, as ``platform.machine()`` names it.
    cubin : bytes, optional
        The kernels it loads; None when it launches none.
    undefined : tuple of str
        Functions it needs from the DSL's runtime library and the C library.
    """

    machine: str
    cubin: bytes | None
    undefined: tuple[str, ...]


class HostFacts(Struct, frozen=True, kw_only=True):
    """What the compiler knew of an object: version of the DSL, name of the entry, attributes of each kernel."""

    dsl: str
    entry: str
    kernels: dict[str, Any]

    @classmethod
    def decode(cls, data: bytes) -> "HostFacts":
        """Read the facts back.

        Raises
        ------
        InvalidHostObject
            The bytes are no such facts.
        """
        try:
            stated = json.loads(data)
            return cls(dsl=stated["dsl"], entry=stated["entry"], kernels=stated["kernels"])
        except (ValueError, TypeError, KeyError) as error:
            raise errors.InvalidHostObject(f"has no readable facts: {error!r}") from error


def is_host_object(data: bytes) -> bool:
    """Tell whether bytes claim to be code of a host, not of a GPU."""
    return data[: len(ELF_START)] == ELF_START and int.from_bytes(data[18:20], "little") in MACHINES


def read_host_object(data: bytes) -> HostObject:
    """Read an object.

    Raises
    ------
    InvalidHostObject
        The bytes are cut off, no object, for an unknown machine, or hold several cubins.
    """
    try:
        return parse(data)
    except (errors.InvalidCubin, struct.error, UnicodeDecodeError, IndexError) as error:
        raise errors.InvalidHostObject(f"{len(data)} bytes, {error}") from error


def parse(data: bytes) -> HostObject:
    ident, _, machine, _, _, _, table, _, _, _, _, _, count, names = HEADER.unpack_from(data)
    if ident[:7] != ELF_START or machine not in MACHINES:
        raise errors.InvalidHostObject(f"starts with {ident[:7].hex()}, for machine {machine}")
    sections = read_sections(data, table, count, names)
    undefined, cubins = [], []
    for section in sections:
        if section.kind != SECTION_SYMTAB:
            continue
        strings = sections[section.link].data
        for name_offset, _, _, index, offset, size_bytes in SYMBOL.iter_unpack(section.data):
            name = read_name(strings, name_offset)
            if index == UNDEFINED and name:
                undefined.append(name)
            elif name == CONTAINER_SYMBOL:
                cubins.append(open_container(bytes(sections[index].data[offset : offset + size_bytes])))
    if len(cubins) > 1:
        raise errors.InvalidHostObject(f"holds {len(cubins)} cubins")
    return HostObject(machine=MACHINES[machine], cubin=cubins[0] if cubins else None, undefined=tuple(undefined))


def open_container(data: bytes) -> bytes:
    """Return the one cubin of a container."""
    magic, _, header_bytes, rest_bytes = CONTAINER.unpack_from(data)
    kind, _, entry_header_bytes, size_bytes = ENTRY.unpack_from(data, header_bytes)
    start = header_bytes + entry_header_bytes
    cubin = data[start : start + size_bytes]
    if magic != CONTAINER_MAGIC or kind != ENTRY_CUBIN or len(cubin) != size_bytes:
        raise errors.InvalidHostObject(
            f"has a container of kind {kind} under magic {magic:#x}, with {len(cubin)} bytes"
        )
    if header_bytes + rest_bytes != len(data) or rest_bytes != entry_header_bytes + size_bytes:
        raise errors.InvalidHostObject("has a container with more than one cubin")
    return cubin
