"""Scales for the scale probes, and what the probes must write, computed in torch from the native plane alone."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from planfreeze.kernels.scales.geometry import TILE_COLUMNS, TILE_ROWS, ScaleGeometry, row_of_slot
from planfreeze.kernels.scales.native import logical_scales
from planfreeze.kernels.scales.synthetic import synthetic_scales
from probes.scale_probe import paired_geometry

__all__ = ["expected_planes", "expected_words", "probe_scales"]

COUNTED_ROW_TILES = 8
OUTLIER = 200


def probe_scales(geometry: ScaleGeometry, experts: int, generator: torch.Generator) -> Tensor:
    """Make logical scales with every kind of tile block: 0, 1, .. 7 records, and raw tiles.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert, of at least two row tiles a group.
    experts : int
        Number of experts.
    generator : torch.Generator
        Source of all randomness; its device is that of the result.

    Returns
    -------
    Tensor
        ``(experts, rows, columns)`` uint8. Synthetic scales, of which row tiles 1..8 of the first group are replaced:
        there tile (row tile t, K tile k) has exactly (t + k) % 8 outliers. Eight K tiles or row tiles give every count.
    """
    scales = synthetic_scales(geometry, experts, generator)
    device = generator.device
    for row_tile in range(1, min(COUNTED_ROW_TILES + 1, geometry.row_tiles)):
        rows = scales[:, row_tile * TILE_ROWS : min((row_tile + 1) * TILE_ROWS, geometry.group_rows)]
        rows.copy_(torch.randint(100, 110, (*rows.shape[:2], 1), generator=generator, device=device))
        rows += torch.randint(0, 2, rows.shape, generator=generator, device=device, dtype=torch.uint8)
        for k_tile, tile in enumerate(rows.split(TILE_COLUMNS, dim=2)):
            count = (row_tile + k_tile) % 8
            chosen = torch.randperm(rows.shape[1], generator=generator, device=device)[:count]
            columns = torch.randint(0, tile.shape[2], (count,), generator=generator, device=device)
            tile[:, chosen, columns] = OUTLIER
    return scales


def expected_words(geometry: ScaleGeometry, plane: Tensor) -> Tensor:
    """Return the words of ``scale_words``.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert.
    plane : Tensor
        ``(experts, rows * columns)`` uint8, the native planes.

    Returns
    -------
    Tensor
        ``(experts * tiles, 128)`` int32 on the device of the plane: tiles in storage order, rows of a tile in order.

    Raises
    ------
    InvalidScales
        The plane has another type or shape.
    """
    return tile_bytes(geometry, plane).view(torch.int32).view(-1, TILE_ROWS)


def expected_planes(geometry: ScaleGeometry, plane: Tensor) -> Tensor:
    """Return the planes of ``scale_planes``, of either storage.

    Returns
    -------
    Tensor
        ``(experts * group_rows / 64 * k_tiles, 4, 128)`` float32, with the group rows of two groups: the scale
        2^(byte-127) of every column and slot, 0 for byte 0 and where there is no column.

    Raises
    ------
    InvalidScales
        As :func:`expected_words`.
    """
    paired = paired_geometry(geometry.rows, geometry.columns, geometry.group_rows)
    slots = torch.tensor([row_of_slot(slot) for slot in range(TILE_ROWS)], device=plane.device)
    tiles = tile_bytes(paired, plane)[..., slots, :]
    # [experts, group, row tile, K tile, half, slot of the half, column]
    tiles = tiles.view(len(plane), 2, paired.row_tiles, paired.k_tiles, 2, TILE_ROWS // 2, TILE_COLUMNS)
    stages = tiles.permute(0, 2, 4, 3, 6, 1, 5).flatten(1, 2)[:, : paired.group_rows // (TILE_ROWS // 2)]
    return (stages.int() << 23).contiguous().view(torch.float32).view(-1, TILE_COLUMNS, TILE_ROWS)


def tile_bytes(geometry: ScaleGeometry, plane: Tensor) -> Tensor:
    """Return the zero-padded tiles, contiguous: [experts, row blocks, K tiles, rows of a tile, columns of a tile]."""
    grouped = logical_scales(geometry, plane).unflatten(1, (geometry.groups, geometry.group_rows))
    missing_rows = geometry.row_tiles * TILE_ROWS - geometry.group_rows
    missing_columns = geometry.k_tiles * TILE_COLUMNS - geometry.columns
    padded = pad(grouped, (0, missing_columns, 0, missing_rows))
    tiled = padded.view(len(plane), geometry.row_blocks, TILE_ROWS, geometry.k_tiles, TILE_COLUMNS)
    return tiled.transpose(2, 3).contiguous()
