"""Synthetic scales that take every road of the inline storage: records, raw tiles, the clamp, ties, tails."""

import torch
from torch import Tensor

from planfreeze.kernels.scales.geometry import ScaleGeometry

__all__ = ["synthetic_scales"]

SPARSE_STRIDE = 97
DENSE_ROWS = 4


def synthetic_scales(geometry: ScaleGeometry, experts: int, generator: torch.Generator) -> Tensor:
    """Make logical scales with the outliers of real ones, and more of them.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert.
    experts : int
        Number of experts.
    generator : torch.Generator
        Source of all randomness; its device is that of the result.

    Returns
    -------
    Tensor
        ``(experts, rows, columns)`` uint8. A row is a base of 112..123 plus a random bit. Every 97th byte is random in
        0..247. Three runs of four rows in every group are random in 114..131 from the middle column on. Row 0 is 250,
        row 1 is 0, row 2 alternates 247 and 0.
    """
    shape = (experts, geometry.rows, geometry.columns)

    def draw(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high + 1, size, generator=generator, device=generator.device, dtype=torch.uint8)

    scales = draw(112, 123, experts, geometry.rows, 1) + draw(0, 1, *shape)
    sparse = scales.view(-1)[::SPARSE_STRIDE]
    sparse.copy_(draw(0, 247, len(sparse)))
    for group in range(0, geometry.rows, geometry.group_rows):
        # One run in the first tile; two adjacent ones in the last, so that a tile of two columns becomes raw too.
        for row in (40, geometry.group_rows - 2 * DENSE_ROWS, geometry.group_rows - DENSE_ROWS):
            run = scales[:, group + row : group + row + DENSE_ROWS, geometry.columns // 2 :]
            run.copy_(draw(114, 131, *run.shape))
    scales[:, 0] = 250
    scales[:, 1] = 0
    scales[:, 2, 0::2] = 247
    scales[:, 2, 1::2] = 0
    return scales
