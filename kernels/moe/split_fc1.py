"""Family ``split_fc1``: first projection of tokens grouped by expert, activated and quantised to MXFP8.

Row ``r`` of the intermediate belongs to m tile ``r // tile_m``, whose expert is ``tile_expert[m]``, and to the token of
pair ``token_map[r]``. Rows from ``tile_valid[m]`` on of a tile, and rows of m tiles from ``tile_count`` on, stay as
they were.
"""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import SwizzledPipeline
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ROW_TILE,
    ceil_div,
    intermediate_bytes,
    is_compact,
    layout,
    row_tiles,
)
from planfreeze.kernels.moe.micro_act import is_limit
from planfreeze.kernels.moe.routing import COUNTS
from planfreeze.kernels.scales.geometry import TILE_BLOCK_BYTES
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = ["SplitFc1Payload", "TokenPipeline", "pipeline_sm_90a", "split_fc1"]

K_TILE = 128
TILE_ROWS = {"sm_90a": (8, 16, 32), "sm_120a": (16,)}
"""Rows an m tile may have. On sm_90a they are the N of a wgmma, on sm_120a the M of an mma."""
STAGES_SM_90A = 4
THREADS_SM_90A = {1: 160, 3: 512}
"""By warpgroups that multiply: they and one warp that fills the stages, or a warpgroup of such warps."""
WIDE_STAGES_SM_90A = 5
BLOCKS_SM_90A = {8: 4, 16: 4, 32: 3}
"""Resident blocks per SM: as many as the registers of the sums and the shared memory of the ring allow."""
SHARED_BYTES_SM_120A = 2 * 11328
"""Two stages of K64: 2048 bytes of activations, 64 of their scales, 4096 of weights and 512 of scales of each half."""


class SplitFc1Payload(Payload):
    """One variant of ``split_fc1``.

    Parameters
    ----------
    hidden : int
        K of the projection, a multiple of 256.
    intermediate : int
        Columns of one half per rank, a multiple of 64.
    top_k : int
        Routes per token, 1 to 32.
    tile_m : int
        Rows of an m tile: 8, 16 or 32 on sm_90a, 16 on sm_120a.
    limit : str
        Activation limit L as Python writes it, such as ``"7.0"``: gate is at most L, up is within -L..L. Text because
        payloads hold no floats; empty for no limit.
    fast_math : bool
        Use the approximate exponential and reciprocal of the hardware.
    csf_inline : bool
        Read the scales from inline storage; needs ``intermediate % 128 == 64``.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "split_fc1"
    hidden: int
    intermediate: int
    top_k: int
    tile_m: int
    limit: str = ""
    fast_math: bool = False
    csf_inline: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = explain_refusal(self)
        if reason:
            raise errors.InvalidPayload(self.family_name, reason)


def explain_refusal(payload: SplitFc1Payload) -> str | None:
    """Say why no kernel has this variant, or None."""
    hidden, intermediate = payload.hidden, payload.intermediate
    if hidden <= 0 or hidden % 256:
        return f"hidden = {hidden} is not a positive multiple of 256"
    if intermediate <= 0 or intermediate % 64:
        return f"intermediate = {intermediate} is not a positive multiple of 64 (remainder {intermediate % 64})"
    if not 1 <= payload.top_k <= 32:
        return f"top_k = {payload.top_k} is not in 1..32"
    if payload.tile_m not in TILE_ROWS["sm_90a"]:
        return f"tile_m = {payload.tile_m} is none of 8, 16 and 32"
    if payload.limit and not is_limit(payload.limit):
        return f"limit = {payload.limit!r} is not a finite positive f32 as Python writes it, such as '7.0'"
    if payload.csf_inline and not is_compact(intermediate):
        return (
            f"csf_inline with intermediate = {intermediate}: scales are read inline only where "
            f"intermediate % 128 == 64, here it is {intermediate % 128}"
        )
    return None


class TokenPipeline(SwizzledPipeline, frozen=True, kw_only=True):
    """Stages with the activations of several tokens, and an area behind the ring.

    Parameters
    ----------
    tokens : int
        Rows of the m tile.
    exchange_bytes : int
        Shared memory behind the ring, for the epilogue.

    Notes
    -----
    A stage also holds the 16 bytes of ``task``: four words about a task.
    """

    tokens: int
    exchange_bytes: int

    @property
    def task(self) -> int:
        """Offset of four words about a task."""
        return self.activation_scales + 16 * self.tokens

    @property
    def exchange(self) -> int:
        """Offset of the area behind the ring, in the block."""
        return self.shared_bytes

    @property
    def block_bytes(self) -> int:
        """Dynamic shared memory of a block; ``shared_bytes`` is the ring's alone."""
        return self.shared_bytes + self.exchange_bytes


def warpgroups_sm_90a(*, tile_m: int, intermediate: int) -> int:
    """Return the warpgroups of a block that multiply, each its own 64-row tile by the rows of the same m tile.

    One, and several blocks an SM, where a tile has few rows: what counts there is how soon weights are asked for. Three
    of many rows, if that divides the tiles: all there is room for in an SM.
    """
    return 3 if tile_m == 32 and intermediate % 192 == 0 else 1


def pipeline_sm_90a(*, tile_m: int, csf_inline: bool, warpgroups: int = 1) -> TokenPipeline:
    """Return the shared memory of the sm_90a kernels.

    A stage has one K128 of every row of the m tile, their fp32 scales and the words of the task; the exchange area has
    one fp32 value per consumer thread and two result columns of it.
    """
    return TokenPipeline(
        stages=STAGES_SM_90A if warpgroups == 1 else WIDE_STAGES_SM_90A,
        is_inline=csf_inline,
        activation_bytes=tile_m * K_TILE,
        activation_scale_bytes=16 * tile_m + 16,
        warpgroups=warpgroups,
        tokens=tile_m,
        exchange_bytes=warpgroups * 4 * 64 * tile_m,
    )


@family(SplitFc1Payload, version=1)
def split_fc1(payload: SplitFc1Payload, target: Target) -> Definition:
    """Define the arguments, program source and grid of one variant.

    Raises
    ------
    InvalidPayload
        The architecture has no kernel for ``tile_m``.
    """
    rows = TILE_ROWS[target.arch]
    if payload.tile_m not in rows:
        found = " or ".join(map(str, rows))
        raise errors.InvalidPayload(
            payload.family_name, f"tile_m = {payload.tile_m} on {target.arch}, which has {found}"
        )
    tasks = tasks_per_tile(payload, target)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["m_tiles"] * tasks, resident_blocks), 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def tasks_per_tile(payload: SplitFc1Payload, target: Target) -> int:
    """Return the tasks of one m tile: row tiles of 64 or, on sm_120a, 128 rows of both halves, or threes of them."""
    tiles = ceil_div(payload.intermediate, layout(target.arch).w13_row_tile)
    return tiles // warpgroups(payload) if target.arch == "sm_90a" else tiles


def warpgroups(payload: SplitFc1Payload) -> int:
    """Return the warpgroups of a block that multiply on sm_90a."""
    return warpgroups_sm_90a(tile_m=payload.tile_m, intermediate=payload.intermediate)


def arguments(payload: SplitFc1Payload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    hidden, weight_rows = payload.hidden, 2 * payload.intermediate
    blocks = 2 * row_tiles(payload.intermediate)
    tile_bytes = blocks * (hidden // K_TILE) * TILE_BLOCK_BYTES

    def rows(scalars: Scalars) -> int:
        # A buffer of fewer rows than the m tiles have is too small: every m tile has its rows.
        return max(scalars["rows"], payload.tile_m * scalars["m_tiles"])

    scales: tuple[Argument, ...]
    if payload.csf_inline:
        scales = (
            pointer("tiles", "u8", lambda s: s["experts"] * tile_bytes),
            pointer("bases", "u8", lambda s: s["experts"] * blocks * ROW_TILE),
            pointer("raw", "u8", lambda s: 0),
        )
    else:
        scales = (pointer("scales", "u8", lambda s: s["experts"] * weight_rows * hidden // GROUP),)
    return (
        pointer("a8", "u8", lambda s: s["tokens"] * hidden),
        pointer("a_scale", layout(target.arch).activation_scale_dtype, lambda s: s["tokens"] * hidden // GROUP),
        pointer("w13", "u8", lambda s: s["experts"] * weight_rows * hidden // 2),
        *scales,
        pointer("token_map", "i32", rows),
        pointer("tile_expert", "i32", lambda s: s["m_tiles"]),
        pointer("tile_valid", "i32", lambda s: s["m_tiles"]),
        pointer("tile_count", "i32", lambda s: COUNTS + s["m_tiles"]),
        pointer("alpha", "f32", lambda s: s["experts"]),
        pointer("intermediate", "u8", lambda s: intermediate_bytes(target.arch, rows(s), payload.intermediate)),
        scalar("tokens"),
        scalar("experts"),
        scalar("rows"),
        scalar("m_tiles"),
    )


def source(payload: SplitFc1Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    constants: tuple[tuple[str, Field], ...] = (
        ("hidden", payload.hidden),
        ("intermediate", payload.intermediate),
        ("top_k", payload.top_k),
        ("tile_m", payload.tile_m),
    )
    if payload.limit:
        constants += (("limit", payload.limit),)
    if payload.fast_math:
        constants += (("fast_math", True),)
    if payload.csf_inline:
        constants += (("csf_inline", True),)
    kernel = f"planfreeze.kernels.moe.split_fc1_{target.arch}_cute:SplitFc1"
    if target.arch == "sm_90a" and warpgroups(payload) > 1:
        kernel = "planfreeze.kernels.moe.split_fc1_wide_sm_90a_cute:WideSplitFc1"
    return CuteSource(
        kernel=kernel,
        constants=constants,
        launch=LAUNCHES[target.arch](payload),
    )


def launch_sm_90a(payload: SplitFc1Payload) -> LaunchInfo:
    count = warpgroups(payload)
    pipeline = pipeline_sm_90a(tile_m=payload.tile_m, csf_inline=payload.csf_inline, warpgroups=count)
    return LaunchInfo(
        block=(THREADS_SM_90A[count], 1, 1),
        shared_bytes=pipeline.block_bytes,
        min_blocks=BLOCKS_SM_90A[payload.tile_m] if count == 1 else 1,
        carveout_percent=100,
    )


def launch_sm_120a(payload: SplitFc1Payload) -> LaunchInfo:
    # A stage has the same size for both kinds of scale storage.
    return LaunchInfo(block=(128, 1, 1), shared_bytes=SHARED_BYTES_SM_120A, min_blocks=2, carveout_percent=100)


LAUNCHES = {"sm_90a": launch_sm_90a, "sm_120a": launch_sm_120a}
