"""Family ``micro_fc1``: first projection of a few tokens, one activation row per route.

``projections[part, pair] = W13[e] @ activations[pair // top_k]`` over one part of K, with ``e = topk_ids[pair]``, in
fp32; :func:`~planfreeze.kernels.moe.geometry.projection_parts` says how many parts there are. Routes with an expert id
outside 0..experts-1 are skipped: their rows of ``projections`` stay as they were. Gate columns come first.
"""

from typing import ClassVar

from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import Pipeline, row_pipeline
from planfreeze.kernels.moe.arguments import id_argument, scale_arguments
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ceil_div,
    check_hidden,
    check_intermediate,
    check_top_k,
    layout,
    projection_parts,
)
from planfreeze.kernels.moe.payloads import check_csf_inline, check_id_bits, constants_of, refuse_geometry
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["MicroFc1Payload", "micro_fc1", "pipeline_sm_90a"]

LAUNCH_SM_120A = LaunchInfo(block=(128, 1, 1), shared_bytes=4 * 4736, min_blocks=4, carveout_percent=100)
"""Four stages of K64: 64 bytes of activations, 64 around their scale word, 4096 of weights, 512 for either storage of
scales."""


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
        super().__post_init__()
        with refuse_geometry(self):
            check_hidden(self.hidden)
            check_intermediate(self.intermediate)
            check_top_k(self.top_k)
        check_id_bits(self, self.id_bits)
        check_csf_inline(self, self.csf_inline, self.intermediate)


def pipeline_sm_90a(*, csf_inline: bool) -> Pipeline:
    """Return the stages of the sm_90a kernels: 64 up and 64 gate rows of K128, and one activation row."""
    return row_pipeline(is_inline=csf_inline)


@family(MicroFc1Payload, version=2)
def micro_fc1(payload: MicroFc1Payload, target: Target) -> Definition:
    """Define the arguments, program source and grid of one variant."""
    tasks = tasks_per_pair(payload, target)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["pairs"] * tasks, resident_blocks), 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def tasks_per_pair(payload: MicroFc1Payload, target: Target) -> int:
    """Return the tasks of one pair: the parts of K of its row tiles.

    A row tile has 64 up with 64 gate rows on sm_90a, 128 rows of one half on sm_120a.
    """
    row_tile = layout(target.arch).w13_row_tile
    tiles = ceil_div(payload.intermediate, row_tile)
    return (tiles if row_tile == 64 else 2 * tiles) * projection_parts(target.arch, payload.hidden)


def arguments(payload: MicroFc1Payload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    hidden, rows = payload.hidden, 2 * payload.intermediate
    geometry = ScaleGeometry(rows=rows, columns=hidden // GROUP, group_rows=payload.intermediate)
    parts = projection_parts(target.arch, hidden)

    def tokens(scalars: Scalars) -> int:
        return ceil_div(scalars["pairs"], payload.top_k)

    return (
        pointer("a8", "u8", lambda s: tokens(s) * hidden),
        pointer("a_scale", layout(target.arch).activation_scale_dtype, lambda s: tokens(s) * hidden // GROUP),
        pointer("w13", "u8", lambda s: s["experts"] * rows * hidden // 2),
        *scale_arguments(geometry, csf_inline=payload.csf_inline),
        id_argument(payload.id_bits),
        pointer("projections", "f32", lambda s: parts * s["pairs"] * rows),
        scalar("pairs"),
        scalar("experts"),
    )


def source(payload: MicroFc1Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    parts = projection_parts(target.arch, payload.hidden)
    launches = {
        "sm_90a": pipeline_sm_90a(csf_inline=payload.csf_inline).launch,
        "sm_120a": LAUNCH_SM_120A,
    }
    return CuteSource(
        kernel=f"planfreeze.kernels.moe.micro_fc1_{target.arch}_cute:MicroFc1",
        constants=constants_of(payload) + ((("parts", parts),) if parts > 1 else ()),
        launch=launches[target.arch],
    )
