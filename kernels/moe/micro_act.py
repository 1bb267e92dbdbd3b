"""Family ``micro_act``: silu of the gate times up, quantised to MXFP8 as the second projection of few tokens reads it.

Row ``pair`` of the intermediate is made from rows ``pair`` of all parts of ``projections``: their sum, times the factor
of the expert, is gate and up. Routes with an expert id outside 0..experts-1 are skipped: their rows stay as they were.
"""

import math
import struct
from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.moe.arguments import id_argument, intermediate_argument
from planfreeze.kernels.moe.geometry import (
    GROUP,
    check_hidden,
    check_intermediate,
    layout,
    projection_parts,
    row_tiles,
)
from planfreeze.kernels.moe.payloads import check_id_bits, refuse_geometry
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = ["MicroActPayload", "micro_act"]

THREADS = 32
"""One warp per route and 128-column tile, four columns a lane."""


class MicroActPayload(Payload):
    """One variant of ``micro_act``.

    Parameters
    ----------
    hidden : int
        K of the first projection, a multiple of 256: it decides in how many parts the projections come.
    intermediate : int
        Columns of each half of the projections, a multiple of 64.
    id_bits : int
        Width of the routing ids, 32 or 64.
    limit : str
        Activation limit L as Python writes it, such as ``"7.0"``: gate is at most L, up is within -L..L. Text because
        payloads hold no floats; empty for no limit.
    fast_math : bool
        Use the approximate exponential and reciprocal of the hardware.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "micro_act"
    hidden: int
    intermediate: int
    id_bits: int
    limit: str = ""
    fast_math: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        with refuse_geometry(self):
            check_hidden(self.hidden)
            check_intermediate(self.intermediate)
        check_id_bits(self, self.id_bits)
        if self.limit and not is_limit(self.limit):
            raise errors.InvalidPayload(
                self.family_name,
                f"limit = {self.limit!r} is not a finite positive f32 as Python writes it, such as '7.0'",
            )


def is_limit(text: str) -> bool:
    """Tell whether a text is the one spelling of a float that is finite and above zero in f32 too."""
    try:
        value = float(text)
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except (ValueError, OverflowError):
        return False
    return str(value) == text and math.isfinite(rounded) and rounded > 0


@family(MicroActPayload, version=2)
def micro_act(payload: MicroActPayload, target: Target) -> Definition:
    """Arguments ``projections, topk_ids, alpha, intermediate, pairs, experts, rows``; a block per route and tile."""
    tiles = row_tiles(payload.intermediate)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (scalars["pairs"] * tiles, 1, 1)

    return Definition(arguments=arguments(payload, target), source=source(payload, target), grid=grid)


def arguments(payload: MicroActPayload, target: Target) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    parts = projection_parts(target.arch, payload.hidden)
    return (
        pointer("projections", "f32", lambda s: parts * s["pairs"] * 2 * payload.intermediate),
        id_argument(payload.id_bits),
        pointer("alpha", "f32", lambda s: s["experts"]),
        intermediate_argument(target.arch, payload.intermediate),
        scalar("pairs"),
        scalar("experts"),
        scalar("rows"),
    )


def source(payload: MicroActPayload, target: Target) -> CuteSource:
    """Name the kernel class and its launch facts."""
    arch = layout(target.arch)
    constants: tuple[tuple[str, Field], ...] = (
        ("intermediate", payload.intermediate),
        ("id_bits", payload.id_bits),
        ("parts", projection_parts(target.arch, payload.hidden)),
        ("is_paired", arch.activation_order != tuple(range(GROUP))),
        ("is_float_scale", arch.activation_scale_dtype == "f32"),
    )
    if payload.limit:
        constants += (("limit", payload.limit),)
    if payload.fast_math:
        constants += (("fast_math", True),)
    return CuteSource(
        kernel="planfreeze.kernels.moe.micro_act_cute:MicroAct",
        constants=constants,
        launch=LaunchInfo(block=(THREADS, 1, 1)),
    )
