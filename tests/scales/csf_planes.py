"""Planes of scales for batches."""

import torch
from torch import Tensor

from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.synthetic import synthetic_scales

LAYERS = [
    (1152, 160, 576, 576),
    (5120, 18, 5120, 0),
    (384, 112, 192, 192),
    (3584, 6, 3584, 0),
    (512, 16, 256, 256),
    (512, 8, 512, 0),
]
"""Both projections of three layers; the last has no tail tiles."""


def make_plane(rows: int, columns: int, group_rows: int, rotation: int = 0, experts: int = 3) -> Tensor:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    return native_plane(
        geometry, synthetic_scales(geometry, experts, torch.Generator().manual_seed(7)), rotation=rotation
    )


def exceptions_of(batch: CsfBatch) -> list[int]:
    return [word & 0xFFFFFFFF for word in batch.exceptions.view(torch.int32).tolist()]
