"""Geometry of the MoE kernels: widths, tiles, and the orders in which each architecture stores bytes.

Written down once, for the families, the weight packing and the references alike. Imports nothing heavy.

Clearing of padding
-------------------
The intermediate of a layer with N columns is stored ``padded_width(N)`` columns wide. Columns from N on hold zero
payload and zero scales, and the kernel that writes the last row tile of the intermediate (``micro_act`` or
``split_fc1``) is the one that clears them, in every row it writes. Readers (``micro_fc2``, ``split_fc2``) rely on it
and clear nothing.
``projections`` and route rows have no padding columns.
"""

from typing import Literal

from msgspec import Struct

from planfreeze import errors
from planfreeze.target import target

__all__ = [
    "GROUP",
    "LAYOUTS",
    "ROW_TILE",
    "ArchLayout",
    "ceil_div",
    "check_hidden",
    "check_intermediate",
    "check_top_k",
    "intermediate_bytes",
    "intermediate_scale_offset",
    "is_compact",
    "layout",
    "padded_width",
    "projection_parts",
    "row_tiles",
]

GROUP = 32
"""K elements that share one scale (OCP Microscaling Formats v1.0, block size k = 32)."""
ROW_TILE = 128
"""Rows of one scale tile and columns of one intermediate tile."""
K_STEP = 128
"""K of one step of a projection."""
K_PARTS = (4, 2, 1)
"""Numbers of parts of K there can be."""
MAX_TOP_K = 32


class ArchLayout(Struct, frozen=True, kw_only=True):
    """How one architecture stores activations and weights.

    Parameters
    ----------
    arch : str
        Exact architecture name.
    activation_order : tuple of int
        ``activation_order[p]`` is the K index, inside a group of 32, of the activation byte at position ``p``.
    activation_scale_dtype : str
        ``f32``: the scale 2^(byte-127) as a float; ``u8``: the E8M0 byte itself.
    activation_scale_bytes : int
        Size of one activation scale.
    w13_row_tile, w2_row_tile : int
        Rows of one weight tile of the first and the second projection.
    most_parts : int
        Most parts of K that blocks of the first direct-route projection share among them.
    weight_bits : tuple of int
        ``weight_bits[i]`` is the bit of the logical byte (low nibble = even K) that is stored at bit ``i``.
    """

    arch: str
    activation_order: tuple[int, ...]
    activation_scale_dtype: Literal["u8", "f32"]
    activation_scale_bytes: int
    w13_row_tile: int
    w2_row_tile: int
    most_parts: int
    weight_bits: tuple[int, ...]


LAYOUTS = {
    # wgmma takes K 4c..4c+3 and 16+4c..16+4c+3 from lane c, and one weight word gives that lane K 8c..8c+7: the even
    # ones become the first register, the odd ones the second. The nibble bits are placed so that two masks and two
    # shifts make E4M3 bytes of both (sign to bit 7, e1 e0 m to bits 4..2).
    "sm_90a": ArchLayout(
        arch="sm_90a",
        activation_order=tuple(8 * (p % 16 // 4) + 2 * (p % 4) + p // 16 for p in range(GROUP)),
        activation_scale_dtype="f32",
        activation_scale_bytes=4,
        w13_row_tile=64,
        w2_row_tile=128,
        # A step takes a block as long however little there is to do: at one token only more blocks help.
        most_parts=4,
        weight_bits=(0, 1, 4, 5, 6, 3, 2, 7),
    ),
    "sm_120a": ArchLayout(
        arch="sm_120a",
        activation_order=tuple(range(GROUP)),
        activation_scale_dtype="u8",
        activation_scale_bytes=1,
        w13_row_tile=128,
        w2_row_tile=128,
        most_parts=1,
        weight_bits=tuple(range(8)),
    ),
}


def layout(arch: str) -> ArchLayout:
    """Return the layout of an architecture.

    Raises
    ------
    UnknownArch
        planfreeze does not compile for it.
    """
    return LAYOUTS[target(arch).arch]


def ceil_div(dividend: int, divisor: int) -> int:
    """Divide, rounding up."""
    return -(-dividend // divisor)


def row_tiles(rows: int) -> int:
    """Return the number of 128-row tiles that cover ``rows``."""
    return ceil_div(rows, ROW_TILE)


def padded_width(intermediate: int) -> int:
    """Return the stored width of the intermediate in columns: N rounded up to whole tiles."""
    return ROW_TILE * row_tiles(intermediate)


def projection_parts(arch: str, hidden: int) -> int:
    """Return the equal parts of K, whole steps of 128, that ``micro_fc1`` sums and ``micro_act`` adds."""
    most_parts, steps = layout(arch).most_parts, hidden // K_STEP
    return next(parts for parts in K_PARTS if parts <= most_parts and steps % parts == 0)


def is_compact(intermediate: int) -> bool:
    """Tell whether the last row tile has 64 rows: the only geometry that reads scales inline by default."""
    return intermediate % ROW_TILE == 64


def intermediate_scale_offset(arch: str, rows: int, intermediate: int, row: int, tile: int) -> int:
    """Return the byte offset of the four scales of one row and one 128-column tile of the intermediate.

    The payload, ``rows`` x ``padded_width`` bytes, comes first; one plane of ``rows`` scale quadruples per tile
    follows. ``rows`` is the capacity, never a live count.
    """
    quad_bytes = 4 * layout(arch).activation_scale_bytes
    return rows * padded_width(intermediate) + quad_bytes * (tile * rows + row)


def intermediate_bytes(arch: str, rows: int, intermediate: int) -> int:
    """Return the size of an intermediate of ``rows`` rows, payload and scales."""
    return intermediate_scale_offset(arch, rows, intermediate, 0, row_tiles(intermediate))


def check_hidden(hidden: int) -> None:
    """Refuse a hidden size the kernels do not tile.

    Raises
    ------
    UnsupportedGeometry
        It is not a positive multiple of 256.
    """
    if hidden <= 0 or hidden % 256:
        raise errors.UnsupportedGeometry(f"hidden = {hidden} is not a positive multiple of 256")


def check_intermediate(intermediate: int) -> None:
    """Refuse an intermediate size the kernels do not tile.

    Raises
    ------
    UnsupportedGeometry
        It is not a positive multiple of 64.
    """
    if intermediate <= 0 or intermediate % 64:
        raise errors.UnsupportedGeometry(
            f"intermediate = {intermediate} is not a positive multiple of 64 (remainder {intermediate % 64})"
        )


def check_top_k(top_k: int) -> None:
    """Refuse a number of routes per token the kernels do not cover.

    Raises
    ------
    UnsupportedGeometry
        It is not in 1..32.
    """
    if not 1 <= top_k <= MAX_TOP_K:
        raise errors.UnsupportedGeometry(f"top_k = {top_k} is not in 1..{MAX_TOP_K}")
