"""Inline scale storage as a value: one buffer in three parts."""

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.scales.geometry import ScaleGeometry

__all__ = ["InlineScales"]

ALIGNMENT_BYTES = 16
"""Kernels read blocks and raw words in 16-byte loads; all three parts start at multiples of it."""


class InlineScales(Struct, frozen=True, kw_only=True, eq=False):
    """Inline storage of the scales of one projection.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert.
    experts : int
        Experts of the storage.
    storage : Tensor
        ``(geometry.inline_bytes(experts, raw_tiles),)`` uint8, contiguous, 16-byte aligned.
    raw_tiles : int
        Tiles kept verbatim.

    Raises
    ------
    InvalidScales
        The storage has another type, length or alignment.
    """

    geometry: ScaleGeometry
    experts: int
    storage: Tensor
    raw_tiles: int

    def __post_init__(self) -> None:
        if self.experts < 1 or self.raw_tiles < 0:
            raise errors.InvalidScales(f"{self.experts} experts with {self.raw_tiles} raw tiles cannot be stored")
        if self.storage.dtype != torch.uint8:
            raise errors.InvalidScales(f"the storage is {self.storage.dtype}, not torch.uint8")
        size_bytes = self.geometry.inline_bytes(self.experts, self.raw_tiles)
        if tuple(self.storage.shape) != (size_bytes,):
            raise errors.InvalidScales(
                f"the storage has shape {tuple(self.storage.shape)}, not ({size_bytes},) as {self.experts} experts "
                f"with {self.raw_tiles} raw tiles need"
            )
        if not self.storage.is_contiguous():
            raise errors.InvalidScales(f"the storage has stride {self.storage.stride(0)}: it is not contiguous")
        if self.storage.data_ptr() % ALIGNMENT_BYTES:
            raise errors.InvalidScales(
                f"the storage starts at {self.storage.data_ptr():#x}, which is no multiple of {ALIGNMENT_BYTES}"
            )

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of the three parts: tile blocks, base blocks, raw tiles (empty without raw tiles)."""
        tiles, bases = self.geometry.tile_bytes(self.experts), self.geometry.base_bytes(self.experts)
        return self.storage[:tiles], self.storage[tiles : tiles + bases], self.storage[tiles + bases :]
