"""Where an intermediate of grouped routes has its rows, written down once for references and tests. CPU and CUDA.

On sm_120a row r is where an intermediate of few tokens has it. On sm_90a an m tile is stored as ``split_fc2`` copies
it: of every 128 columns the operand of a wgmma in 128-byte swizzle, and its scales in the order of
:class:`planfreeze.kernels.mma.tokens_sm_90a.ScalePlane`.
"""

import torch
from torch import Tensor

from planfreeze.kernels.moe.geometry import GROUP, ROW_TILE, intermediate_bytes, layout, padded_width
from planfreeze.kernels.moe.reference import activation_scales, arrange_activations

__all__ = ["arrange_rows", "read_rows", "row_places", "store_rows"]

CHUNK_BYTES = 16
GROUPS = ROW_TILE // GROUP
VECTOR = 4
"""Scales that a lane loads at once."""


def row_places(
    arch: str, rows: int, intermediate: int, tile_m: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Tell where the rows of all whole m tiles are in an intermediate of ``rows`` capacity rows.

    Returns
    -------
    payload : Tensor
        ``(whole rows, padded_width)`` int64: the byte that has a column, columns in the byte order of the architecture.
    scales : Tensor
        ``(whole rows, padded_width / 32)`` int64: the place of a scale among all scales, which follow the payload.
    """
    width = padded_width(intermediate)
    row = torch.arange(rows // tile_m * tile_m, device=device).unsqueeze(-1)
    column = torch.arange(width, device=device)
    group = torch.arange(width // GROUP, device=device)
    if arch == "sm_120a":
        return row * width + column, (group // GROUPS * rows + row) * GROUPS + group % GROUPS
    m_tile, token = row // tile_m, row % tile_m
    slot, lane = token // 4, token % 4
    operand_row = 8 * (slot // 2) + 2 * lane + slot % 2
    chunk = column % ROW_TILE // CHUNK_BYTES ^ operand_row % 8
    tile = (m_tile * (width // ROW_TILE) + column // ROW_TILE) * tile_m + operand_row
    payload = tile * ROW_TILE + chunk * CHUNK_BYTES + column % CHUNK_BYTES
    # A lane's scales of up to four of its slots lie together, those of as many groups as fill a vector.
    slots = min(VECTOR, tile_m // 4)
    groups = VECTOR // slots
    vectors = tile_m // slots
    place = group % GROUPS // groups * vectors * VECTOR + group % groups * slots
    place = place + slot // slots * 4 * VECTOR + lane * VECTOR + slot % slots
    return payload, (group // GROUPS * rows + m_tile * tile_m) * GROUPS + place


def arrange_rows(payload: Tensor, scales: Tensor, arch: str, rows: int, tile_m: int) -> Tensor:
    """Store the rows of a quantised intermediate as ``split_fc1`` does.

    Parameters
    ----------
    payload, scales : Tensor
        ``(some rows, padded_width)`` and ``(some rows, padded_width / 32)`` uint8, in K order, as
        :func:`planfreeze.kernels.moe.reference.quantise_intermediate` makes them.
    rows : int
        Capacity. Bytes of other rows are 0xFF.
    tile_m : int
        Rows of an m tile.

    Returns
    -------
    Tensor
        ``(intermediate_bytes,)`` uint8.
    """
    count, width = payload.shape
    size_bytes = intermediate_bytes(arch, rows, width)
    buffer = torch.full((size_bytes,), 0xFF, dtype=torch.uint8, device=payload.device)
    store_rows(buffer, torch.arange(count, device=payload.device), payload, scales, arch, rows, tile_m)
    return buffer


def store_rows(
    buffer: Tensor, indices: Tensor, payload: Tensor, scales: Tensor, arch: str, rows: int, tile_m: int
) -> None:
    """Store rows of these indices, which are in whole m tiles, in an intermediate; as :func:`arrange_rows`."""
    width = payload.shape[-1]
    payload_places, scale_places = row_places(arch, rows, width, tile_m, payload.device)
    buffer[payload_places[indices]] = arrange_activations(payload, arch)
    scale_plane(buffer, arch, rows, width)[scale_places[indices]] = activation_scales(scales, arch)


def read_rows(buffer: Tensor, arch: str, rows: int, intermediate: int, tile_m: int) -> tuple[Tensor, Tensor]:
    """Read the rows of all whole m tiles back to K order and scale bytes; the inverse of :func:`arrange_rows`.

    Returns
    -------
    payload : Tensor
        ``(whole rows, padded_width)`` uint8.
    scales : Tensor
        ``(whole rows, padded_width / 32)`` uint8.
    """
    payload_places, scale_places = row_places(arch, rows, intermediate, tile_m, buffer.device)
    position = torch.tensor(layout(arch).activation_order, device=buffer.device).argsort()
    payload = buffer[payload_places].unflatten(-1, (-1, GROUP))[..., position].flatten(-2)
    scales = scale_plane(buffer, arch, rows, intermediate)[scale_places]
    if scales.dtype == torch.float32:
        scales = scales.view(torch.int32) >> 23
    return payload, scales.to(torch.uint8)


def scale_plane(buffer: Tensor, arch: str, rows: int, intermediate: int) -> Tensor:
    """View the scales of a stored intermediate: bytes, or f32 where the architecture stores floats."""
    plane = buffer[rows * padded_width(intermediate) :]
    return plane.view(torch.float32 if layout(arch).activation_scale_dtype == "f32" else torch.uint8)
