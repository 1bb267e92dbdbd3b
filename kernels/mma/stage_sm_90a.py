"""Shared memory of the sm_90a kernels: one record per pipeline stage. Imports no compiler.

Launch facts and kernels take their offsets from here, so that they cannot disagree.
"""

from msgspec import Struct

from planfreeze.family import LaunchInfo
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES

__all__ = [
    "BARRIER_BYTES",
    "CONSUMERS",
    "GROUP_SCALE_BYTES",
    "NATIVE_SCALE_BYTES",
    "ROWS",
    "ROW_BYTES",
    "ROW_SCALE_BYTES",
    "SCALE_PLANE_BYTES",
    "STAGED_BLOCK_BYTES",
    "SWIZZLE_BYTES",
    "WEIGHT_BYTES",
    "Pipeline",
    "SwizzledPipeline",
    "row_pipeline",
]

ROWS = 128
"""Weight rows a warpgroup has of one stage: 64 of the up and 64 of the gate group, or 128 of one group."""
WEIGHT_BYTES = ROWS * 128 // 2
"""FP4 weights of 128 rows and K128."""
SCALE_PLANE_BYTES = 4 * ROWS * 4
"""Rebuilt fp32 scales, ``[K32 column][slot]``."""
NATIVE_SCALE_BYTES = ROWS * 4
"""Scale words of 128 rows: native ones, or those of a raw tile."""
GROUP_SCALE_BYTES = NATIVE_SCALE_BYTES // 2
"""Scale words of each of two row groups."""
STAGED_BLOCK_BYTES = 128
"""Distance of the tile blocks of two row groups."""
ROW_BYTES, ROW_SCALE_BYTES = 128, 16
"""One activation row of K128 and its four fp32 scales."""
CONSUMERS = 128
"""Threads of a warpgroup. One, or several, multiply; the warps behind them fill the stages."""
BARRIER_BYTES = 8
SWIZZLE_BYTES = 1024
"""Period of the 128-byte swizzle: an operand starts at a multiple of it (PTX ISA, matrix descriptor)."""

STAGE_ALIGNMENT = 128


class Pipeline(Struct, frozen=True, kw_only=True):
    """Byte offsets inside a stage, and the size of all stages.

    Parameters
    ----------
    stages : int
        Stages of the ring.
    is_inline : bool
        Inline scale storage is staged (a tile block of each of up to two row groups, and 128 row bases), else native
        scale words.
    activation_bytes : int
        Activations of K128, a multiple of 16.
    activation_scale_bytes : int
        Their fp32 scales, a multiple of 16.
    warpgroups : int
        Warpgroups that multiply the same activations, each with rows of its own.

    Notes
    -----
    A stage holds, in this order: weights, rebuilt scales, activations, staged scales, row bases (inline), activation
    scales, and three barriers. What belongs to rows is there once for every warpgroup. ``full``: everything a consumer
    reads is there. ``empty``: all consumers are done. ``landed``: the staged scales are there; only who rebuilds them
    waits for it. Words of raw tiles, where a warp copies them ahead, are staged where their scales are rebuilt, which
    consumers have read by then.
    """

    stages: int
    is_inline: bool
    activation_bytes: int
    activation_scale_bytes: int
    warpgroups: int = 1

    @property
    def weights(self) -> int:
        return 0

    @property
    def scales(self) -> int:
        return self.warpgroups * WEIGHT_BYTES

    @property
    def activations(self) -> int:
        return self.scales + self.warpgroups * SCALE_PLANE_BYTES

    @property
    def staged_scales(self) -> int:
        return self.activations + self.activation_bytes

    @property
    def staged_scale_bytes(self) -> int:
        """Size of the staged scales of one warpgroup."""
        return 2 * STAGED_BLOCK_BYTES if self.is_inline else NATIVE_SCALE_BYTES

    @property
    def bases(self) -> int:
        return self.staged_scales + self.warpgroups * self.staged_scale_bytes

    @property
    def activation_scales(self) -> int:
        return self.bases + (self.warpgroups * BASE_BLOCK_BYTES if self.is_inline else 0)

    @property
    def full(self) -> int:
        return self.activation_scales + self.activation_scale_bytes

    @property
    def empty(self) -> int:
        return self.full + BARRIER_BYTES

    @property
    def landed(self) -> int:
        return self.empty + BARRIER_BYTES

    @property
    def stage_bytes(self) -> int:
        """Distance between stages."""
        used = self.landed + BARRIER_BYTES
        return -(-used // STAGE_ALIGNMENT) * STAGE_ALIGNMENT

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * self.stage_bytes

    @property
    def launch(self) -> LaunchInfo:
        """Launch facts of a kernel in which one more warp copies, and one rebuilds scales: four blocks fit an SM."""
        return LaunchInfo(
            block=(CONSUMERS + 64, 1, 1), shared_bytes=self.shared_bytes, min_blocks=4, carveout_percent=100
        )


class SwizzledPipeline(Pipeline, frozen=True, kw_only=True):
    """Stages whose activations are an operand in 128-byte swizzle.

    Activations are at a multiple of ``SWIZZLE_BYTES``, because weights and rebuilt scales fill whole ones and so does a
    stage.
    """

    @property
    def stage_bytes(self) -> int:
        """Distance between stages."""
        used = self.landed + BARRIER_BYTES
        return -(-used // SWIZZLE_BYTES) * SWIZZLE_BYTES


def row_pipeline(*, is_inline: bool) -> Pipeline:
    """Return the stages of a direct-route kernel: four, each with one activation row of K128 and its scales."""
    return Pipeline(
        stages=4,
        is_inline=is_inline,
        activation_bytes=ROW_BYTES,
        activation_scale_bytes=ROW_SCALE_BYTES,
    )
