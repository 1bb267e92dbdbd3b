"""Family ``expand``: write the native planes of all experts from their inline storage."""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Definition, Grid, Scalars, TritonSource, family, pointer, scalar
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["ExpandPayload", "expand"]

BLOCK_TILES = 8
MAX_TILES = 2**31 - BLOCK_TILES
"""Tiles are counted in 32 bits, and the last block counts past the last tile; byte offsets have 64 bits."""


class ExpandPayload(Payload):
    """Expansion of one projection. The number of raw tiles is data, and no part of it.

    Parameters
    ----------
    experts : int
        Experts of the storage.
    rows, columns, group_rows : int
        Geometry of one expert's scales, as of ``ScaleGeometry``.

    Raises
    ------
    InvalidPayload
        The sizes cannot be tiled, or give more tiles than 32 bits count.
    """

    family_name: ClassVar[str] = "expand"
    experts: int
    rows: int
    columns: int
    group_rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            tiles = self.geometry.tiles
        except errors.InvalidScales as error:
            raise errors.InvalidPayload(self.family_name, error.reason) from error
        if not 0 < self.experts * tiles <= MAX_TILES:
            raise errors.InvalidPayload(
                self.family_name, f"experts = {self.experts} with {tiles} tiles each: not 1..{MAX_TILES} tiles"
            )

    @property
    def geometry(self) -> ScaleGeometry:
        """Geometry of one expert's scales."""
        return ScaleGeometry(rows=self.rows, columns=self.columns, group_rows=self.group_rows)


@family(ExpandPayload, version=1)
def expand(payload: ExpandPayload, target: Target) -> Definition:
    """Arguments ``storage, native, tiles``; eight tiles per block, ``tiles`` is those of all experts."""
    geometry, experts = payload.geometry, payload.experts

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (-(-scalars["tiles"] // BLOCK_TILES), 1, 1)

    return Definition(
        arguments=(
            pointer("storage", "u8", lambda scalars: geometry.inline_bytes(experts)),
            pointer("native", "u8", lambda scalars: geometry.native_bytes(experts)),
            scalar("tiles", maximum=experts * geometry.tiles),
        ),
        source=TritonSource(
            kernel="planfreeze.kernels.scales.expand_triton:expand_kernel",
            constants=(
                ("experts", experts),
                ("rows", payload.rows),
                ("columns", payload.columns),
                ("group_rows", payload.group_rows),
            ),
        ),
        grid=grid,
    )
