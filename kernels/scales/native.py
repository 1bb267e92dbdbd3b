"""Native scale planes: from logical scales to tiles and back, on any device.

A plane is ``(experts, rows * columns)`` uint8, contiguous. ``ScaleGeometry.offset`` says where a scale stands in it;
here whole regions of equal tiles are moved as strided views, so that no index tensor is ever made.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.scales.geometry import (
    MAX_SCALE,
    TILE_COLUMNS,
    TILE_ROWS,
    Region,
    ScaleGeometry,
)

__all__ = ["check_plane", "expert_chunks", "logical_scales", "native_plane", "plane_of_tiles", "staged_tiles"]

CHUNK_BYTES = 256 * 2**20
"""Bound of the intermediates of one step: small beside a model's weights, and a layer takes few steps, for the host
starts a kernel in the time a GPU moves some 30 MiB."""


def native_plane(geometry: ScaleGeometry, scales: Tensor, *, rotation: int = 0) -> Tensor:
    """Build the native planes of all experts.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert.
    scales : Tensor
        ``(experts, rows, columns)`` uint8, E8M0, in the order of the source; any device and strides.
    rotation : int
        Native row r holds source row (r + rotation) mod rows: ``group_rows`` where the source has its second row
        group first, else 0.

    Returns
    -------
    Tensor
        ``(experts, rows * columns)`` uint8, contiguous. Bytes above 247 are clamped to 247.

    Raises
    ------
    InvalidScales
        The tensor has another type or shape, or the rotation is not in 0..rows-1.
    """
    check_rotation(geometry, rotation)
    if scales.dtype != torch.uint8:
        raise errors.InvalidScales(f"scales are {scales.dtype}, not torch.uint8")
    if scales.ndim != 3 or scales.shape[1:] != (geometry.rows, geometry.columns) or not len(scales):
        raise errors.InvalidScales(
            f"scales have shape {tuple(scales.shape)}, not (experts, {geometry.rows}, {geometry.columns})"
        )
    plane = torch.empty(len(scales), geometry.native_bytes(1), dtype=torch.uint8, device=scales.device)
    for first, last in expert_chunks(len(scales), geometry.native_bytes(1)):
        turned = scales[first:last].roll(-rotation, 1) if rotation else scales[first:last]
        for region in geometry.regions():
            copy_bytes(plane_view(geometry, plane[first:last], region), rows_view(geometry, turned, region))
    return plane.clamp_(max=MAX_SCALE)


def logical_scales(geometry: ScaleGeometry, plane: Tensor, *, rotation: int = 0) -> Tensor:
    """Read native planes back: the inverse of :func:`native_plane`, but for bytes it clamped.

    Returns
    -------
    Tensor
        ``(experts, rows, columns)`` uint8, contiguous, in the order of the source.

    Raises
    ------
    InvalidScales
        The plane has another type or shape, or the rotation is not in 0..rows-1.
    """
    check_rotation(geometry, rotation)
    check_plane(geometry, plane)
    scales = torch.empty(len(plane), geometry.rows, geometry.columns, dtype=torch.uint8, device=plane.device)
    for region in geometry.regions():
        copy_bytes(rows_view(geometry, scales, region), plane_view(geometry, plane, region))
    return scales.roll(rotation, 1) if rotation else scales


def staged_tiles(geometry: ScaleGeometry, plane: Tensor) -> Tensor:
    """Return every tile the way a kernel presents it to its products: 128 words in slot order.

    Returns
    -------
    Tensor
        ``(experts, tiles, 128, 4)`` uint8: the bytes of one word, lowest column first, for every slot. Rows and
        columns that a tail tile does not have are zero.

    Raises
    ------
    InvalidScales
        The plane has another type or shape.
    """
    check_plane(geometry, plane)
    experts = len(plane)
    staged = torch.zeros(experts, geometry.tiles, TILE_ROWS, TILE_COLUMNS, dtype=torch.uint8, device=plane.device)
    for region in geometry.regions():
        copy_bytes(slots_view(geometry, staged, region), quads_view(geometry, plane, region))
    return staged


def plane_of_tiles(geometry: ScaleGeometry, staged: Tensor, plane: Tensor) -> None:
    """Write staged tiles, as :func:`staged_tiles` returns them, to the native ``plane`` of the same experts."""
    for region in geometry.regions():
        copy_bytes(quads_view(geometry, plane, region), slots_view(geometry, staged, region))


def check_plane(geometry: ScaleGeometry, plane: Tensor) -> None:
    """Refuse what is not a native plane of this geometry.

    Raises
    ------
    InvalidScales
        The tensor is not uint8, not ``(experts, rows * columns)`` with at least one expert, or not contiguous.
    """
    if plane.dtype != torch.uint8:
        raise errors.InvalidScales(f"the plane is {plane.dtype}, not torch.uint8")
    length = geometry.native_bytes(1)
    if plane.ndim != 2 or plane.shape[1] != length or not len(plane):
        raise errors.InvalidScales(f"the plane has shape {tuple(plane.shape)}, not (experts, {length})")
    if not plane.is_contiguous():
        raise errors.InvalidScales(f"the plane has strides {plane.stride()}: it is not contiguous")


def expert_chunks(experts: int, expert_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide the experts into ranges whose intermediates, ``expert_bytes`` for each, stay within 256 MiB."""
    step = max(1, CHUNK_BYTES // expert_bytes)
    for first in range(0, experts, step):
        yield first, min(first + step, experts)


def check_rotation(geometry: ScaleGeometry, rotation: int) -> None:
    if not 0 <= rotation < geometry.rows:
        raise errors.InvalidScales(f"rotation = {rotation} is not a row of 0..{geometry.rows - 1}")


def copy_bytes(target: Tensor, source: Tensor) -> None:
    """Copy between views of one shape, in words of four or two bytes where both sides have them."""
    for words in (torch.int32, torch.int16):
        if has_words(target, words.itemsize) and has_words(source, words.itemsize):
            target, source = target.view(words), source.view(words)
            break
    target.copy_(source)


def has_words(part: Tensor, size_bytes: int) -> bool:
    """Tell whether the last dimension of a view of bytes consists of whole words at multiples of their size."""
    places = (part.shape[-1], part.storage_offset(), *part.stride()[:-1])
    return part.stride(-1) == 1 and all(place % size_bytes == 0 for place in places)


def plane_view(geometry: ScaleGeometry, plane: Tensor, region: Region) -> Tensor:
    """View a region of planes as [experts, groups, row tiles, K tiles, rows of a tile, columns of a tile]."""
    experts, groups, height, width = len(plane), geometry.groups, region.tile_rows, region.tile_columns
    size = region.row_tiles * height * geometry.columns
    start = region.first_row_tile * TILE_ROWS * geometry.columns
    blocks = plane.view(experts, groups, -1)[:, :, start : start + size]
    blocks = blocks.view(experts, groups, region.row_tiles, height * geometry.columns)
    start = region.first_k_tile * height * TILE_COLUMNS
    tiles = blocks[..., start : start + region.k_tiles * height * width]
    return tiles.view(experts, groups, region.row_tiles, region.k_tiles, height, width)


def rows_view(geometry: ScaleGeometry, scales: Tensor, region: Region) -> Tensor:
    """View a region of [experts, rows, columns] in the dimensions of :func:`plane_view`."""
    row, column = region.first_row_tile * TILE_ROWS, region.first_k_tile * TILE_COLUMNS
    groups = scales.unflatten(1, (geometry.groups, geometry.group_rows))
    part = groups[:, :, row : row + region.row_tiles * region.tile_rows]
    part = part[..., column : column + region.k_tiles * region.tile_columns]
    part = part.unflatten(3, (region.k_tiles, region.tile_columns))
    return part.unflatten(2, (region.row_tiles, region.tile_rows)).transpose(3, 4)


def quads_view(geometry: ScaleGeometry, plane: Tensor, region: Region) -> Tensor:
    """View a region of planes as :func:`plane_view`, the rows split as [32-row chunk, quad, nt]."""
    return plane_view(geometry, plane, region).unflatten(4, (-1, 4, 8)).transpose(5, 6)


def slots_view(geometry: ScaleGeometry, staged: Tensor, region: Region) -> Tensor:
    """View a region of staged tiles in the dimensions of :func:`quads_view`: slot = 32*chunk + 4*quad + nt."""
    split = staged.view(len(staged), geometry.groups, geometry.row_tiles, geometry.k_tiles, 4, 8, 4, TILE_COLUMNS)
    row_tiles = slice(region.first_row_tile, region.first_row_tile + region.row_tiles)
    k_tiles = slice(region.first_k_tile, region.first_k_tile + region.k_tiles)
    return split[:, :, row_tiles, k_tiles, : region.tile_rows // 32, :, :, : region.tile_columns]
