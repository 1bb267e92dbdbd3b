"""Family ``micro_fc2``: second projection of a few tokens, one intermediate row per route.

``route_output[pair] = bf16(alpha[e] * topk_weights[pair] * (W2[e] @ intermediate[pair]))`` with ``e = topk_ids[pair]``.
Routes with an expert id outside 0..experts-1 get a row of zeros. The intermediate is what ``micro_act`` writes.
"""

from typing import ClassVar

from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import Pipeline, row_pipeline
from planfreeze.kernels.moe.arguments import id_argument, intermediate_argument, scale_arguments
from planfreeze.kernels.moe.geometry import GROUP, check_hidden, check_intermediate, row_tiles
from planfreeze.kernels.moe.payloads import check_csf_inline, check_id_bits, constants_of, refuse_geometry
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["MicroFc2Payload", "micro_fc2", "pipeline_sm_90a"]

LAUNCH_SM_120A = LaunchInfo(block=(128, 1, 1), shared_bytes=4 * 8960, min_blocks=2, carveout_percent=100)
"""Four stages of K128: 128 bytes of activations, 128 around their scale word, 8192 of weights, 512 for either storage
of scales."""


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
        super().__post_init__()
        with refuse_geometry(self):
            check_hidden(self.hidden)
            check_intermediate(self.intermediate)
        check_id_bits(self, self.id_bits)
        check_csf_inline(self, self.csf_inline, self.intermediate)


def pipeline_sm_90a(*, csf_inline: bool) -> Pipeline:
    """Return the stages of the sm_90a kernels: 128 rows of K128, and one row of the intermediate."""
    return row_pipeline(is_inline=csf_inline)


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
    geometry = ScaleGeometry(rows=hidden, columns=intermediate // GROUP, group_rows=hidden)
    return (
        intermediate_argument(target.arch, intermediate),
        pointer("w2", "u8", lambda s: s["experts"] * hidden * intermediate // 2),
        *scale_arguments(geometry, csf_inline=payload.csf_inline),
        id_argument(payload.id_bits),
        pointer("topk_weights", "f32", lambda s: s["pairs"], alignment=4),
        pointer("alpha", "f32", lambda s: s["experts"]),
        pointer("route_output", "bf16", lambda s: s["pairs"] * hidden),
        scalar("pairs"),
        scalar("experts"),
        scalar("rows"),
    )


def source(payload: MicroFc2Payload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    launches = {
        "sm_90a": pipeline_sm_90a(csf_inline=payload.csf_inline).launch,
        "sm_120a": LAUNCH_SM_120A,
    }
    return CuteSource(
        kernel=f"planfreeze.kernels.moe.micro_fc2_{target.arch}_cute:MicroFc2",
        constants=constants_of(payload),
        launch=launches[target.arch],
    )
