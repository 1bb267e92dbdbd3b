"""Family ``act_quant``: bf16 activations to MXFP8, in the byte order and with the scale plane of the architecture."""

from typing import ClassVar

from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.moe.geometry import GROUP, ceil_div, check_hidden, layout
from planfreeze.kernels.moe.payloads import refuse_geometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["ActQuantPayload", "act_quant"]

THREADS = 128
VECTOR = 8
"""bf16 values of one 16-byte load."""


class ActQuantPayload(Payload):
    """Input quantiser of one hidden size.

    Parameters
    ----------
    hidden : int
        Elements of a token, a multiple of 256.

    Raises
    ------
    InvalidPayload
        ``hidden`` is not a positive multiple of 256.
    """

    family_name: ClassVar[str] = "act_quant"
    hidden: int

    def __post_init__(self) -> None:
        super().__post_init__()
        with refuse_geometry(self):
            check_hidden(self.hidden)


@family(ActQuantPayload, version=1)
def act_quant(payload: ActQuantPayload, target: Target) -> Definition:
    """Arguments ``x, a8, a_scale, tokens``; one thread per eight values, blocks by live tokens."""
    hidden, arch = payload.hidden, layout(target.arch)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (ceil_div(scalars["tokens"] * (hidden // VECTOR), THREADS), 1, 1)

    def elements(scalars: Scalars) -> int:
        return scalars["tokens"] * hidden

    def scale_elements(scalars: Scalars) -> int:
        return scalars["tokens"] * (hidden // GROUP)

    arguments: tuple[Argument, ...] = (
        pointer("x", "bf16", elements),
        pointer("a8", "u8", elements),
        pointer("a_scale", arch.activation_scale_dtype, scale_elements),
        scalar("tokens"),
    )
    source = CuteSource(
        kernel="planfreeze.kernels.moe.act_quant_cute:ActQuant",
        constants=(
            ("hidden", hidden),
            ("is_paired", arch.activation_order != tuple(range(GROUP))),
            ("is_float_scale", arch.activation_scale_dtype == "f32"),
        ),
        launch=LaunchInfo(block=(THREADS, 1, 1)),
    )
    return Definition(arguments=arguments, source=source, grid=grid)
