"""Family ``micro_fc1``: first projection of a few tokens, one activation row per route.

``projections[pair] = bf16(alpha[e] * (W13[e] @ activations[pair // top_k]))`` with ``e = topk_ids[pair]``. Routes
with an expert id outside 0..experts-1 are skipped: their rows of ``projections`` stay as they were. Gate columns come
first.
"""

from dataclasses import dataclass
from typing import ClassVar

from planfreeze.errors import InvalidPayload
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import TILE_BLOCK_BYTES, Pipeline
from planfreeze.kernels.moe.geometry import GROUP, ROW_TILE, ceil_div, is_compact, layout, row_tiles
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = ["MicroFc1Payload", "micro_fc1", "pipeline_sm_90a"]

K_TILE = 128
STAGES_SM_90A = 4
THREADS_SM_90A = 160
"""Four warps that multiply and one that fills the stages."""
SHARED_BYTES_SM_120A = 4 * 4736
"""Four stages of K64: 64 bytes of activations, 64 around their scale word, 4096 of weights, 512 of scales."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroFc1Payload(Payload):
    """One variant of ``micro_fc1``.

    Parameters
    ----------
    hidden : int
        K of the projection, a multiple of 256.
    intermediate : int
        Columns of one half per rank, a multiple of 64.
    top_k : int
        Routes per token, 1 to 32.
    id_bits : int
        Width of the routing ids, 32 or 64.
    csf_inline : bool
        Read the scales from inline storage; needs ``intermediate % 128 == 64``.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "micro_fc1"
    hidden: int
    intermediate: int
    top_k: int
    id_bits: int
    csf_inline: bool = False

    def __post_init__(self) -> None:
        # A slotted dataclass is a second class object, so super() without arguments does not work here.
        super(MicroFc1Payload, self).__post_init__()
        reason = explain_refusal(self)
        if reason:
            raise InvalidPayload(self.family_name, reason)


def explain_refusal(payload: MicroFc1Payload) -> str | None:
    """Say why no kernel has this geometry, or None."""
    hidden, intermediate = payload.hidden, payload.intermediate
    if hidden <= 0 or hidden % 256:
        return f"hidden = {hidden} is not a positive multiple of 256"
    if intermediate <= 0 or intermediate % 64:
        return f"intermediate = {intermediate} is not a positive multiple of 64 (remainder {intermediate % 64})"
    if not 1 <= payload.top_k <= 32:
        return f"top_k = {payload.top_k} is not in 1..32"
    if payload.id_bits not in (32, 64):
        return f"id_bits = {payload.id_bits} is neither 32 nor 64"
    if payload.csf_inline and not is_compact(intermediate):
        return (
            f"csf_inline with intermediate = {intermediate}: scales are read inline only where "
            f"intermediate % 128 == 64, here it is {intermediate % 128}"
        )
    return None


def pipeline_sm_90a(*, csf_inline: bool) -> Pipeline:
    """Return the shared memory of the sm_90a kernels: one activation row of K128 and its four fp32 scales a stage."""
    return Pipeline(stages=STAGES_SM_90A, is_inline=csf_inline, activation_bytes=128, activation_scale_bytes=16)


@family(MicroFc1Payload, version=1)
def micro_fc1(payload: MicroFc1Payload, target: Target) -> Definition:
    """Define the arguments, program source and grid of one variant."""
    tiles = tasks_per_pair(payload, target)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["pairs"] * tiles, resident_blocks), 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def tasks_per_pair(payload: MicroFc1Payload, target: Target) -> int:
    """Return the row tiles of one pair: 64 up with 64 gate rows on sm_90a, 128 rows of one half on sm_120a."""
    row_tile = layout(target.arch).w13_row_tile
    tiles = ceil_div(payload.intermediate, row_tile)
    return tiles if row_tile == 64 else 2 * tiles


def arguments(payload: MicroFc1Payload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    hidden, rows = payload.hidden, 2 * payload.intermediate
    blocks = 2 * row_tiles(payload.intermediate)
    tile_bytes = blocks * (hidden // K_TILE) * TILE_BLOCK_BYTES

    def tokens(scalars: Scalars) -> int:
        return ceil_div(scalars["pairs"], payload.top_k)

    scales: tuple[Argument, ...]
    if payload.csf_inline:
        scales = (
            pointer("tiles", "u8", lambda s: s["experts"] * tile_bytes),
            pointer("bases", "u8", lambda s: s["experts"] * blocks * ROW_TILE),
            pointer("raw", "u8", lambda s: 0),
        )
    else:
        scales = (pointer("scales", "u8", lambda s: s["experts"] * rows * hidden // GROUP),)
    return (
        pointer("a8", "u8", lambda s: tokens(s) * hidden),
        pointer("a_scale", layout(target.arch).activation_scale_dtype, lambda s: tokens(s) * hidden // GROUP),
        pointer("w13", "u8", lambda s: s["experts"] * rows * hidden // 2),
        *scales,
        pointer(
            "topk_ids",
            "i32" if payload.id_bits == 32 else "i64",
            lambda s: s["pairs"],
            alignment=payload.id_bits // 8,
        ),
        pointer("alpha", "f32", lambda s: s["experts"]),
        pointer("projections", "bf16", lambda s: s["pairs"] * rows),
        scalar("pairs"),
        scalar("experts"),
    )


def source(payload: MicroFc1Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    constants: tuple[tuple[str, Field], ...] = (
        ("hidden", payload.hidden),
        ("intermediate", payload.intermediate),
        ("top_k", payload.top_k),
        ("id_bits", payload.id_bits),
    )
    if payload.csf_inline:
        constants += (("csf_inline", True),)
    return CuteSource(
        kernel=f"planfreeze.kernels.moe.micro_fc1_{target.arch}_cute:MicroFc1",
        constants=constants,
        launch=LAUNCHES[target.arch](payload.csf_inline),
    )


def launch_sm_90a(csf_inline: bool) -> LaunchInfo:
    return LaunchInfo(
        block=(THREADS_SM_90A, 1, 1),
        shared_bytes=pipeline_sm_90a(csf_inline=csf_inline).shared_bytes,
        min_blocks=4,
        carveout_percent=100,
    )


def launch_sm_120a(csf_inline: bool) -> LaunchInfo:
    # The stage has the same size for both kinds of scale storage.
    return LaunchInfo(block=(128, 1, 1), shared_bytes=SHARED_BYTES_SM_120A, min_blocks=4, carveout_percent=100)


LAUNCHES = {"sm_90a": launch_sm_90a, "sm_120a": launch_sm_120a}
