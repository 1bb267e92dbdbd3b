"""Family ``split_fc2``: second projection of routes that are grouped by expert, ``tile_m`` intermediate rows per tile.

``route_output[token_map[row]] = bf16(alpha[e] * row_weight[row] * (W2[e] @ intermediate[row]))`` with
``e = tile_expert[row // tile_m]``, for the first ``tile_valid`` rows of every live tile. The tables are what
``route_plan`` writes, the intermediate is what ``split_fc1`` writes.
"""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import SwizzledPipeline
from planfreeze.kernels.moe.geometry import GROUP, ROW_TILE, intermediate_bytes, is_compact, row_tiles
from planfreeze.kernels.moe.routing import COUNTS
from planfreeze.kernels.scales.geometry import TILE_BLOCK_BYTES
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = ["RECORDS", "TILES_M", "RowPipeline", "SplitFc2Payload", "pipeline_sm_90a", "split_fc2"]

TILES_M = {"sm_90a": (8, 16, 32), "sm_120a": (16,)}
"""Rows per tile that the kernels of an architecture are written for."""
THREADS_SM_90A = 160
"""Four warps that multiply and one that fills the stages."""
STAGES_SM_90A = 4
BLOCKS_SM_90A = {8: 4, 16: 4, 32: 3}
"""Resident blocks per SM: what the registers of ``tile_m`` sums and the shared memory leave room for."""
RECORDS = 8
"""Records of tasks on sm_90a: a power of two, and more than the stages, of which a short task takes only one."""
SHARED_BYTES_SM_120A = 22_528
"""Two stages of K128: 16 rows of activations and their scale words, 8192 bytes of weights, 512 of scales."""


class SplitFc2Payload(Payload):
    """One variant of ``split_fc2``.

    Parameters
    ----------
    hidden : int
        Rows of the projection, a multiple of 256.
    intermediate : int
        K of the projection: columns of the intermediate per rank, a multiple of 64.
    tile_m : int
        Intermediate rows per tile: 8, 16 or 32 on sm_90a, 16 on sm_120a.
    csf_inline : bool
        Read the scales from inline storage; needs ``intermediate % 128 == 64``.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "split_fc2"
    hidden: int
    intermediate: int
    tile_m: int
    csf_inline: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = explain_refusal(self)
        if reason:
            raise errors.InvalidPayload(self.family_name, reason)


def explain_refusal(payload: SplitFc2Payload) -> str | None:
    """Say why no kernel has this geometry, or None."""
    hidden, intermediate = payload.hidden, payload.intermediate
    if hidden <= 0 or hidden % 256:
        return f"hidden = {hidden} is not a positive multiple of 256"
    if intermediate <= 0 or intermediate % 64:
        return f"intermediate = {intermediate} is not a positive multiple of 64 (remainder {intermediate % 64})"
    if payload.tile_m not in TILES_M["sm_90a"]:
        return f"tile_m = {payload.tile_m} is not 8, 16 or 32"
    if payload.csf_inline and not is_compact(intermediate):
        return (
            f"csf_inline with intermediate = {intermediate}: scales are read inline only where "
            f"intermediate % 128 == 64, here it is {intermediate % 128}"
        )
    return None


class RowPipeline(SwizzledPipeline, frozen=True, kw_only=True):
    """Stages with intermediate rows, and records of tasks behind the ring.

    Parameters
    ----------
    rows : int
        Rows of the m tile.

    Notes
    -----
    A record is four words about a task, then its rows' pairs and weights, four bytes each.
    """

    rows: int

    @property
    def records(self) -> int:
        """Offset of the first record, in the block."""
        return self.shared_bytes

    @property
    def pairs(self) -> int:
        """Offset of the pairs in a record."""
        return 16

    @property
    def row_weights(self) -> int:
        """Offset of the weights in a record."""
        return self.pairs + 4 * self.rows

    @property
    def record_bytes(self) -> int:
        """Distance between records."""
        return self.row_weights + 4 * self.rows

    @property
    def block_bytes(self) -> int:
        """Dynamic shared memory of a block; ``shared_bytes`` is the ring's alone."""
        return self.records + RECORDS * self.record_bytes


def pipeline_sm_90a(*, tile_m: int, csf_inline: bool) -> RowPipeline:
    """Return the shared memory of the sm_90a kernels: ``tile_m`` rows of K128 and their four fp32 scales a stage."""
    return RowPipeline(
        stages=STAGES_SM_90A,
        is_inline=csf_inline,
        activation_bytes=tile_m * 128,
        activation_scale_bytes=tile_m * 16,
        rows=tile_m,
    )


@family(SplitFc2Payload, version=1)
def split_fc2(payload: SplitFc2Payload, target: Target) -> Definition:
    """Define the arguments, program source and grid of one variant.

    Raises
    ------
    InvalidPayload
        The architecture has no kernel for this ``tile_m``.
    """
    if payload.tile_m not in TILES_M[target.arch]:
        known = " or ".join(str(tile_m) for tile_m in TILES_M[target.arch])
        raise errors.InvalidPayload(payload.family_name, f"tile_m = {payload.tile_m} is not {known} on {target.arch}")
    tiles = row_tiles(payload.hidden)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        # How many tiles are live is known on the device alone; blocks without a task leave at once.
        return (min(scalars["m_tiles"] * tiles, resident_blocks), 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def arguments(payload: SplitFc2Payload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    hidden, intermediate = payload.hidden, payload.intermediate
    blocks = row_tiles(hidden)
    tile_bytes = blocks * row_tiles(intermediate) * TILE_BLOCK_BYTES

    def rows(scalars: Scalars) -> int:
        # Buffers of fewer rows than the tiles have are too small: a tile is read as a whole.
        return max(scalars["rows"], scalars["m_tiles"] * payload.tile_m)

    scales: tuple[Argument, ...]
    if payload.csf_inline:
        scales = (
            pointer("tiles", "u8", lambda s: s["experts"] * tile_bytes),
            pointer("bases", "u8", lambda s: s["experts"] * blocks * ROW_TILE),
            pointer("raw", "u8", lambda s: 0),
        )
    else:
        scales = (pointer("scales", "u8", lambda s: s["experts"] * hidden * intermediate // GROUP),)
    return (
        pointer("intermediate", "u8", lambda s: intermediate_bytes(target.arch, rows(s), intermediate)),
        pointer("w2", "u8", lambda s: s["experts"] * hidden * intermediate // 2),
        *scales,
        pointer("token_map", "i32", rows),
        pointer("row_weight", "f32", rows),
        pointer("tile_expert", "i32", lambda s: s["m_tiles"], alignment=4),
        pointer("tile_valid", "i32", lambda s: s["m_tiles"], alignment=4),
        pointer("tile_count", "i32", lambda s: COUNTS + s["m_tiles"], alignment=4),
        pointer("alpha", "f32", lambda s: s["experts"]),
        pointer("route_output", "bf16", lambda s: s["pairs"] * hidden),
        scalar("pairs"),
        scalar("experts"),
        scalar("rows"),
        scalar("m_tiles"),
    )


def source(payload: SplitFc2Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    constants: tuple[tuple[str, Field], ...] = (
        ("hidden", payload.hidden),
        ("intermediate", payload.intermediate),
        ("tile_m", payload.tile_m),
    )
    if payload.csf_inline:
        constants += (("csf_inline", True),)
    return CuteSource(
        kernel=f"planfreeze.kernels.moe.split_fc2_{target.arch}_cute:SplitFc2",
        constants=constants,
        launch=LAUNCHES[target.arch](payload.tile_m, payload.csf_inline),
    )


def launch_sm_90a(tile_m: int, csf_inline: bool) -> LaunchInfo:
    return LaunchInfo(
        block=(THREADS_SM_90A, 1, 1),
        shared_bytes=pipeline_sm_90a(tile_m=tile_m, csf_inline=csf_inline).block_bytes,
        min_blocks=BLOCKS_SM_90A[tile_m],
        carveout_percent=100,
    )


def launch_sm_120a(tile_m: int, csf_inline: bool) -> LaunchInfo:
    # The stages have the same size for both kinds of scale storage.
    return LaunchInfo(block=(128, 1, 1), shared_bytes=SHARED_BYTES_SM_120A, min_blocks=2, carveout_percent=100)


LAUNCHES = {"sm_90a": launch_sm_90a, "sm_120a": launch_sm_120a}
