"""Family ``micro_fc2``: second projection of a few tokens, one intermediate row per route.

``route_output[pair] = bf16(alpha[e] * topk_weights[pair] * (W2[e] @ intermediate[pair]))`` with ``e = topk_ids[pair]``.
Routes with an expert id outside 0..experts-1 get a row of zeros. The intermediate is what ``micro_act`` writes.
"""

from dataclasses import dataclass
from typing import ClassVar

from planfreeze.errors import InvalidPayload
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import TILE_BLOCK_BYTES, Pipeline
from planfreeze.kernels.moe.geometry import GROUP, ROW_TILE, intermediate_bytes, is_compact, row_tiles
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = ["MicroFc2Payload", "micro_fc2", "pipeline_sm_90a"]

STAGES_SM_90A = 4
THREADS_SM_90A = 160
"""Four warps that multiply and one that fills the stages."""
SHARED_BYTES_SM_120A = 4 * 8960
"""Four stages of K128: 128 bytes of activations, 128 around their scale word, 8192 of weights, 512 of scales."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroFc2Payload(Payload):
    """One variant of ``micro_fc2``.

    Parameters
    ----------
    hidden : int
        Rows of the projection, a multiple of 256.
    intermediate : int
        K of the projection: columns of the intermediate per rank, a multiple of 64.
    id_bits : int
        Width of the routing ids, 32 or 64.
    csf_inline : bool
        Read the scales from inline storage; needs ``intermediate % 128 == 64``.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "micro_fc2"
    hidden: int
    intermediate: int
    id_bits: int
    csf_inline: bool = False

    def __post_init__(self) -> None:
        # A slotted dataclass is a second class object, so super() without arguments does not work here.
        super(MicroFc2Payload, self).__post_init__()
        reason = explain_refusal(self)
        if reason:
            raise InvalidPayload(self.family_name, reason)


def explain_refusal(payload: MicroFc2Payload) -> str | None:
    """Say why no kernel has this geometry, or None."""
    hidden, intermediate = payload.hidden, payload.intermediate
    if hidden <= 0 or hidden % 256:
        return f"hidden = {hidden} is not a positive multiple of 256"
    if intermediate <= 0 or intermediate % 64:
        return f"intermediate = {intermediate} is not a positive multiple of 64 (remainder {intermediate % 64})"
    if payload.id_bits not in (32, 64):
        return f"id_bits = {payload.id_bits} is neither 32 nor 64"
    if payload.csf_inline and not is_compact(intermediate):
        return (
            f"csf_inline with intermediate = {intermediate}: scales are read inline only where "
            f"intermediate % 128 == 64, here it is {intermediate % 128}"
        )
    return None


def pipeline_sm_90a(*, csf_inline: bool) -> Pipeline:
    """Return the shared memory of the sm_90a kernels: one intermediate row of K128, its four fp32 scales a stage."""
    return Pipeline(
        stages=STAGES_SM_90A, is_inline=csf_inline, activation_bytes=128, activation_scale_bytes=16, row_groups=1
    )


@family(MicroFc2Payload, version=1)
def micro_fc2(payload: MicroFc2Payload, target: Target) -> Definition:
    """Define the arguments, program source and grid of one variant."""
    tiles = row_tiles(payload.hidden)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["pairs"] * tiles, resident_blocks), 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def arguments(payload: MicroFc2Payload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    hidden, intermediate = payload.hidden, payload.intermediate
    blocks = row_tiles(hidden)
    tile_bytes = blocks * row_tiles(intermediate) * TILE_BLOCK_BYTES

    def intermediate_elements(scalars: Scalars) -> int:
        # A buffer of fewer rows than there are pairs is too small: every pair has a row.
        rows = max(scalars["rows"], scalars["pairs"])
        return intermediate_bytes(target.arch, rows, intermediate)

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
        pointer("intermediate", "u8", intermediate_elements),
        pointer("w2", "u8", lambda s: s["experts"] * hidden * intermediate // 2),
        *scales,
        pointer(
            "topk_ids",
            "i32" if payload.id_bits == 32 else "i64",
            lambda s: s["pairs"],
            alignment=payload.id_bits // 8,
        ),
        pointer("topk_weights", "f32", lambda s: s["pairs"], alignment=4),
        pointer("alpha", "f32", lambda s: s["experts"]),
        pointer("route_output", "bf16", lambda s: s["pairs"] * hidden),
        scalar("pairs"),
        scalar("experts"),
        scalar("rows"),
    )


def source(payload: MicroFc2Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    constants: tuple[tuple[str, Field], ...] = (
        ("hidden", payload.hidden),
        ("intermediate", payload.intermediate),
        ("id_bits", payload.id_bits),
    )
    if payload.csf_inline:
        constants += (("csf_inline", True),)
    return CuteSource(
        kernel=f"planfreeze.kernels.moe.micro_fc2_{target.arch}_cute:MicroFc2",
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
    return LaunchInfo(block=(128, 1, 1), shared_bytes=SHARED_BYTES_SM_120A, min_blocks=2, carveout_percent=100)


LAUNCHES = {"sm_90a": launch_sm_90a, "sm_120a": launch_sm_120a}
