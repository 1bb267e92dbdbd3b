"""FP4 weights: from logical codes to the word planes the kernels read, and back.

Logical codes are one byte per two K elements, ``[experts, rows, K/2]`` uint8, the even K in the low nibble. A plane is
the same number of bytes in another order. One 32-bit word holds eight consecutive K of one row; words follow each
other by row group, row tile, K128 tile, K32 group ``j``, 32-row chunk ``m``, lane ``4*q + c`` and ``nt``, where the
row in the tile is ``32*m + 8*nt + q`` and the word starts at K ``128*k + 32*j + 8*c``. A lane's 16 bytes are therefore
the four rows whose scales it needs. The last row tile may have 64 rows, the last K tile 64 elements.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.moe.geometry import ArchLayout, check_hidden, check_intermediate, layout

__all__ = ["SourceOrder", "pack_w2", "pack_w13", "unpack_w2", "unpack_w13"]

SourceOrder = Literal["up_gate", "gate_up"]
"""Which half of the source rows comes first. Some loaders call these orders w13 and w31."""


def pack_w13(codes: Tensor, arch: str, *, source_order: SourceOrder = "up_gate") -> Tensor:
    """Pack the first projection.

    Parameters
    ----------
    codes : Tensor
        ``(experts, 2 * intermediate, hidden / 2)`` uint8, any device.
    arch : str
        Architecture the plane is for; planes of different architectures are not interchangeable.
    source_order : str
        Order of the two halves of the source rows. The plane always holds the up rows, then the gate rows.

    Returns
    -------
    Tensor
        ``(experts, intermediate * hidden)`` uint8, contiguous, on the device of ``codes``.

    Raises
    ------
    InvalidWeights
        The shape, type or source order is another one.
    UnsupportedGeometry
        ``hidden`` or ``intermediate`` is not a multiple of 256 or 64.
    UnknownArch
        planfreeze does not compile for ``arch``.
    """
    rows, hidden = check_codes("w13 codes", codes)
    check_intermediate(rows // 2)
    check_hidden(hidden)
    if source_order not in get_args(SourceOrder):
        raise errors.InvalidWeights("source_order", repr(source_order), " or ".join(get_args(SourceOrder)))
    found = layout(arch)
    rotation = rows // 2 if source_order == "gate_up" else 0
    return pack(codes, found, group_rows=rows // 2, row_tile=found.w13_row_tile, rotation=rotation)


def pack_w2(codes: Tensor, arch: str) -> Tensor:
    """Pack the second projection: ``(experts, hidden, intermediate / 2)`` uint8 codes, one row group.

    Returns
    -------
    Tensor
        ``(experts, hidden * intermediate / 2)`` uint8, contiguous.

    Raises
    ------
    InvalidWeights, UnsupportedGeometry, UnknownArch
        As for :func:`pack_w13`.
    """
    rows, intermediate = check_codes("w2 codes", codes)
    check_intermediate(intermediate)
    check_hidden(rows)
    found = layout(arch)
    return pack(codes, found, group_rows=rows, row_tile=found.w2_row_tile, rotation=0)


def unpack_w13(words: Tensor, arch: str, *, hidden: int, intermediate: int) -> Tensor:
    """Return the logical codes, up rows first, of a plane made by :func:`pack_w13`.

    Raises
    ------
    InvalidWeights, UnsupportedGeometry, UnknownArch
        As for :func:`pack_w13`.
    """
    check_hidden(hidden)
    check_intermediate(intermediate)
    found = layout(arch)
    return unpack(words, found, rows=2 * intermediate, k=hidden, groups=2, row_tile=found.w13_row_tile)


def unpack_w2(words: Tensor, arch: str, *, hidden: int, intermediate: int) -> Tensor:
    """Return the logical codes of a plane made by :func:`pack_w2`.

    Raises
    ------
    InvalidWeights, UnsupportedGeometry, UnknownArch
        As for :func:`pack_w13`.
    """
    check_hidden(hidden)
    check_intermediate(intermediate)
    found = layout(arch)
    return unpack(words, found, rows=hidden, k=intermediate, groups=1, row_tile=found.w2_row_tile)


def check_codes(name: str, codes: Tensor) -> tuple[int, int]:
    """Return rows and K of a code tensor, or refuse it."""
    if codes.dtype != torch.uint8 or codes.dim() != 3:
        raise errors.InvalidWeights(name, f"{codes.dtype} of shape {tuple(codes.shape)}", "uint8 [experts, rows, K/2]")
    return codes.shape[1], 2 * codes.shape[2]


def pack(codes: Tensor, found: ArchLayout, *, group_rows: int, row_tile: int, rotation: int) -> Tensor:
    experts, rows, row_bytes = codes.shape
    words = codes.new_empty((experts, rows * row_bytes))
    for source, target in zip(codes, words, strict=True):
        # One expert at a time: the rotated and bit-permuted copy stays a few megabytes.
        native = move_bits(torch.roll(source, -rotation, dims=0) if rotation else source, found.weight_bits)
        for logical, packed in tile_views(native.contiguous(), target, group_rows, row_tile):
            packed.copy_(logical)
    return words


def unpack(words: Tensor, found: ArchLayout, *, rows: int, k: int, groups: int, row_tile: int) -> Tensor:
    size = rows * k // 2
    if words.dtype != torch.uint8 or words.dim() != 2 or words.shape[1] != size:
        raise errors.InvalidWeights("words", f"{words.dtype} of shape {tuple(words.shape)}", f"uint8 [experts, {size}]")
    inverse = tuple(found.weight_bits.index(bit) for bit in range(8))
    codes = words.new_empty((words.shape[0], rows, k // 2))
    for source, target in zip(words.contiguous(), codes, strict=True):
        for logical, packed in tile_views(target, source, rows // groups, row_tile):
            logical.copy_(packed)
        target.copy_(move_bits(target, inverse))
    return codes


def tile_views(codes: Tensor, words: Tensor, group_rows: int, row_tile: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield equally shaped views of one expert's codes and words, for all tiles of one height and width at a time."""
    rows, row_bytes = codes.shape
    groups = rows // group_rows
    by_group = codes.view(groups, group_rows, row_bytes)
    flat = words.view(groups, group_rows * row_bytes)
    for first, height, tiles in spans(group_rows, row_tile):
        last = first + tiles * height
        tall = by_group[:, first:last].view(groups, tiles, height // 32, 4, 8, row_bytes)
        block = flat[:, first * row_bytes : last * row_bytes].view(groups, tiles, height * row_bytes)
        for start, width, steps in spans(row_bytes, 64):
            stop = start + steps * width
            logical = tall[..., start:stop].unflatten(-1, (steps, width // 16, 4, 4))
            packed = block[..., start * height : stop * height]
            shape = (groups, tiles, steps, width // 16, height // 32, 8, 4, 4, 4)
            # logical (g, t, m, nt, q, k, j, c, byte) -> words (g, t, k, j, m, q, c, nt, byte)
            yield logical.permute(0, 1, 5, 6, 2, 4, 7, 3, 8), packed.unflatten(-1, shape[2:])


def spans(length: int, tile: int) -> list[tuple[int, int, int]]:
    """Split a length into (first, tile size, tiles): the whole tiles, then the shorter last one."""
    whole = length // tile
    found = [(0, tile, whole)] if whole else []
    return [*found, (whole * tile, length % tile, 1)] if length % tile else found


def move_bits(values: Tensor, bits: tuple[int, ...]) -> Tensor:
    """Return bytes whose bit ``i`` is bit ``bits[i]`` of ``values``."""
    if bits == tuple(range(8)):
        return values
    moved = torch.zeros_like(values)
    for shift in sorted({i - bit for i, bit in enumerate(bits)}):
        mask = sum(1 << bit for i, bit in enumerate(bits) if i - bit == shift)
        kept = values & mask
        moved |= kept << shift if shift >= 0 else kept >> -shift
    return moved
