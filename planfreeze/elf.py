"""Cubins: what a compiled program says of itself, read from its ELF file without a GPU or a subprocess.

Source: the ELF64 layout (System V ABI, Object Files); NVIDIA does not publish what the CUDA sections hold.
The constants below are what ptxas 12.8, 12.9 and 13.4 write and cuobjdump prints.
"""

import math
import struct
from collections.abc import Iterator

from msgspec import Struct

from planfreeze import errors

__all__ = ["Cubin", "Kernel", "read_cubin"]

# Identification: 64 bits, little endian, version 1; machine EM_CUDA.
ELF_START = b"\x7fELF\x02\x01\x01"
EM_CUDA = 190
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
ATTRIBUTE = struct.Struct("<BBBB")
SECTION_SYMTAB, SECTION_NOBITS, SECTION_CUDA_INFO = 2, 8, 0x70000000
SYMBOL_FUNCTION = 2
OTHER_ENTRY = 0x10  # st_other of a kernel; device functions lack it

# Two layouts of e_flags occur: (EI_OSABI, EI_ABIVERSION) -> bits of the SM number and of the "a" suffix.
FLAG_LAYOUTS = {(0x33, 7): (0, 0x800), (0x41, 8): (8, 0x8)}
# ptxas 13.4 leaves the suffix bit clear and states the suffix in section .nv.compat.
COMPAT_ACCELERATED = 0x09

# Attributes of .nv.info (of the file: function symbol and value) and .nv.info.<kernel>.
REGISTER_COUNT, FRAME_BYTES, STACK_BYTES = 0x2F, 0x11, 0x12
MAX_THREADS, REQUIRED_THREADS = 0x05, 0x10
PARAMETER, WIDE_PARAMETER, PARAMETER_AREA_BYTES = 0x17, 0x45, 0x19
FORM_NONE, FORM_BYTE, FORM_HALF, FORM_SIZED = 1, 2, 3, 4

# Bounds that keep a malformed file from costing time; ptxas stays far below them.
MAX_NAME_BYTES = 8192
MAX_SECTIONS = 4096
MAX_KERNELS = 512


class Kernel(Struct, frozen=True, kw_only=True):
    """One entry of a cubin.

    Parameters
    ----------
    symbol : str
        Name of the entry.
    registers : int
        Registers of one thread.
    stack_bytes : int
        Local memory of one thread for frames and spills, calls included.
    shared_bytes : int
        Static shared memory of one block, as cuobjdump counts it: from sm_90 on a kernel that uses any shared
        memory, dynamic included, counts 1024 bytes that the system reserves.
    max_threads : int, optional
        Most threads of a block the kernel was compiled for; None when it was not limited.
    required_block : (int, int, int), optional
        The only block shape the kernel takes; None when it takes any.
    parameter_offsets, parameter_sizes : tuple of int
        Place and size in bytes of every parameter, in order.
    """

    symbol: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    max_threads: int | None
    required_block: tuple[int, int, int] | None
    parameter_offsets: tuple[int, ...]
    parameter_sizes: tuple[int, ...]


class Cubin(Struct, frozen=True, kw_only=True):
    """A cubin: the SM it is for and its kernels, in the order of the symbol table.

    ``is_arch_specific`` is the "a" suffix. A family build ("f") cannot be told from a plain one.
    """

    sm: int
    is_arch_specific: bool
    kernels: tuple[Kernel, ...]

    @property
    def arch(self) -> str:
        """Exact architecture name, such as ``sm_90a``."""
        return f"sm_{self.sm}{'a' if self.is_arch_specific else ''}"


class Section(Struct, frozen=True):
    """A section header and, but for NOBITS sections, the section's bytes."""

    name: str
    kind: int
    size_bytes: int
    link: int
    data: memoryview


def read_cubin(data: bytes) -> Cubin:
    """Read a cubin.

    Parameters
    ----------
    data : bytes
        The whole file.

    Raises
    ------
    InvalidCubin
        The bytes are cut off, no cubin, of an unknown layout, or contradict themselves.

    Notes
    -----
    Time and memory are in proportion to the size of ``data``, whatever it holds, with at most 32 MiB for
    names. Machine code is not examined: of flipped instructions only the digest tells.
    """
    try:
        return parse(data)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
        raise errors.InvalidCubin(f"{len(data)} bytes, {error}") from error


def parse(data: bytes) -> Cubin:
    ident, _, machine, _, _, _, table, flags, _, _, _, entry_size, count, names = HEADER.unpack_from(data)
    require(ident[:7] == ELF_START, f"starts with {ident[:7].hex()}")
    require(machine == EM_CUDA, f"is for machine {machine}, not CUDA ({EM_CUDA})")
    abi = (ident[7], ident[8])
    require(abi in FLAG_LAYOUTS, f"has unknown ABI {abi[0]:#x} version {abi[1]}")
    require(entry_size == SECTION.size, f"has section headers of {entry_size} bytes")
    sections = read_sections(data, table, count, names)
    by_name = {section.name: section for section in sections}
    require(len(by_name) == len(sections), "has two sections of one name")
    sm_shift, suffix_bit = FLAG_LAYOUTS[abi]
    return Cubin(
        sm=flags >> sm_shift & 0xFF,
        is_arch_specific=bool(flags & suffix_bit) or is_compat_accelerated(by_name),
        kernels=read_kernels(sections, by_name),
    )


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise errors.InvalidCubin(reason)


def read_sections(data: bytes, table: int, count: int, names: int) -> list[Section]:
    """Read all section headers; what they claim must lie in the file."""
    require(count <= MAX_SECTIONS, f"has more than {MAX_SECTIONS} sections")
    headers = [SECTION.unpack_from(data, table + index * SECTION.size) for index in range(count)]
    view = memoryview(data)
    info_bytes = 0
    bodies = []
    for _, kind, _, _, offset, size_bytes, *_ in headers:
        stored_bytes = 0 if kind == SECTION_NOBITS else size_bytes
        if offset + stored_bytes > len(data):
            raise errors.InvalidCubin(f"has a section past its end at {offset + stored_bytes}")
        # ptxas lets equal constant banks share their bytes. Of the sections that are read one by one, sharing
        # would let a small file cost the time of a large one.
        info_bytes += stored_bytes if kind == SECTION_CUDA_INFO else 0
        require(info_bytes <= len(data), "has attributes larger than itself")
        bodies.append(view[offset : offset + stored_bytes])
    require(names < count, "has no section names")
    return [
        Section(read_name(bodies[names], header[0]), header[1], header[5], header[6], body)
        for header, body in zip(headers, bodies, strict=True)
    ]


def read_name(table: memoryview, offset: int) -> str:
    """Read the zero-terminated name at ``offset`` of a string table."""
    text = bytes(table[offset : offset + MAX_NAME_BYTES])
    end = text.find(b"\0")
    if end < 0:
        raise errors.InvalidCubin(f"has an unterminated name at {offset}")
    return text[:end].decode()


def is_compat_accelerated(by_name: dict[str, Section]) -> bool:
    """Tell whether .nv.compat states the "a" suffix."""
    compat = by_name.get(".nv.compat")
    if compat is None:
        return False
    return any(code == COMPAT_ACCELERATED and value == b"\1" for code, value in read_attributes(compat.data))


def read_attributes(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield (code, value) of every attribute of a section."""
    offset = 0
    while offset < len(data):
        form, code, low, high = ATTRIBUTE.unpack_from(data, offset)
        offset += 4
        if form == FORM_SIZED:
            size_bytes = low | high << 8
            require(offset + size_bytes <= len(data), "has an attribute past the end of its section")
            yield code, bytes(data[offset : offset + size_bytes])
            offset += size_bytes
        else:
            if form not in (FORM_NONE, FORM_BYTE, FORM_HALF):
                raise errors.InvalidCubin(f"has an attribute of unknown form {form}")
            yield code, bytes((low, high)[: form - FORM_NONE])


def read_kernels(sections: list[Section], by_name: dict[str, Section]) -> tuple[Kernel, ...]:
    """Read every kernel the symbol table names."""
    tables = [section for section in sections if section.kind == SECTION_SYMTAB]
    require(len(tables) == 1, f"has {len(tables)} symbol tables")
    table = tables[0]
    require(len(table.data) % SYMBOL.size == 0, f"has a symbol table of {len(table.data)} bytes")
    strings = sections[table.link].data
    entries: dict[int, str] = {}
    for index, (name, info, other, *_) in enumerate(SYMBOL.iter_unpack(table.data)):
        if info & 0xF == SYMBOL_FUNCTION and other & OTHER_ENTRY:
            require(len(entries) < MAX_KERNELS, f"has more than {MAX_KERNELS} kernels")
            entries[index] = read_name(strings, name)
    require(len(set(entries.values())) == len(entries), "has two kernels of one name")
    resources = read_resources(by_name)
    return tuple(read_kernel(index, symbol, by_name, resources) for index, symbol in entries.items())


def read_resources(by_name: dict[str, Section]) -> dict[tuple[int, int], int]:
    """Read what .nv.info says of every function: (attribute, symbol index) -> value."""
    section = by_name.get(".nv.info")
    if section is None:
        raise errors.InvalidCubin("has no section .nv.info")
    found = {}
    for code, value in read_attributes(section.data):
        if code in (REGISTER_COUNT, FRAME_BYTES, STACK_BYTES):
            index, amount = struct.unpack("<II", value)
            found[code, index] = amount
    return found


def read_kernel(index: int, symbol: str, by_name: dict[str, Section], resources: dict[tuple[int, int], int]) -> Kernel:
    require(f".text.{symbol}" in by_name, f"has no code for kernel {symbol}")
    described = by_name.get(f".nv.info.{symbol}")
    if described is None or described.kind != SECTION_CUDA_INFO:
        raise errors.InvalidCubin(f"does not describe kernel {symbol}")
    require((REGISTER_COUNT, index) in resources, f"does not state the registers of kernel {symbol}")
    attributes = list(read_attributes(described.data))
    required = last_block(attributes, REQUIRED_THREADS)
    limit = required or last_block(attributes, MAX_THREADS)
    offsets, sizes = read_parameters(symbol, attributes)
    shared = by_name.get(f".nv.shared.{symbol}")
    frame_bytes = resources.get((FRAME_BYTES, index), 0)
    return Kernel(
        symbol=symbol,
        registers=resources[REGISTER_COUNT, index],
        stack_bytes=resources.get((STACK_BYTES, index), frame_bytes),
        shared_bytes=shared.size_bytes if shared else 0,
        max_threads=math.prod(limit) if limit else None,
        required_block=required,
        parameter_offsets=offsets,
        parameter_sizes=sizes,
    )


def last_block(attributes: list[tuple[int, bytes]], wanted: int) -> tuple[int, int, int] | None:
    """Return the block shape an attribute states, if it is there."""
    block = None
    for code, value in attributes:
        if code == wanted:
            x, y, z = struct.unpack("<III", value)
            block = (x, y, z)
    return block


def read_parameters(symbol: str, attributes: list[tuple[int, bytes]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return offsets and sizes of the parameters in order; they must be complete and not overlap."""
    found: dict[int, tuple[int, int]] = {}
    area_bytes = 0
    for code, value in attributes:
        if code == PARAMETER:
            _, ordinal, offset, packed = struct.unpack("<IHHI", value)
            size_bytes = packed >> 18  # above alignment, space and bank
        elif code == WIDE_PARAMETER:  # of kernels with more than 4 KiB of parameters
            _, ordinal, offset, size_bytes = struct.unpack_from("<IHHH", value)
        elif code == PARAMETER_AREA_BYTES:
            (area_bytes,) = struct.unpack("<H", value)
            continue
        else:
            continue
        if ordinal in found:
            raise errors.InvalidCubin(f"states parameter {ordinal} of kernel {symbol} twice")
        found[ordinal] = (offset, size_bytes)
    require(sorted(found) == list(range(len(found))), f"leaves out parameters of kernel {symbol}")
    placed = [found[ordinal] for ordinal in range(len(found))]
    ends = [offset + size_bytes for offset, size_bytes in placed]
    starts = [offset for offset, _ in placed[1:]]
    is_ordered = all(end <= start for end, start in zip(ends, [*starts, area_bytes], strict=True)) if placed else True
    require(is_ordered, f"has overlapping parameters in kernel {symbol}")
    return tuple(offset for offset, _ in placed), tuple(size_bytes for _, size_bytes in placed)
