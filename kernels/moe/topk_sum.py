"""Family ``topk_sum``: sum the route rows of every token in a fixed order."""

from typing import ClassVar

from planfreeze.family import CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.moe.geometry import ceil_div, check_hidden, check_top_k
from planfreeze.kernels.moe.payloads import refuse_geometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["TopkSumPayload", "topk_sum"]

THREADS = 128
VECTOR = 8
"""bf16 values of one 16-byte load."""


class TopkSumPayload(Payload):
    """Sum over routes.

    Parameters
    ----------
    hidden : int
        Elements of a token, a multiple of 256.
    top_k : int
        Routes per token, 1..32.

    Raises
    ------
    InvalidPayload
        ``hidden`` or ``top_k`` is out of range.
    """

    family_name: ClassVar[str] = "topk_sum"
    hidden: int
    top_k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        with refuse_geometry(self):
            check_hidden(self.hidden)
            check_top_k(self.top_k)


@family(TopkSumPayload, version=1)
def topk_sum(payload: TopkSumPayload, target: Target) -> Definition:
    """Arguments ``route_output, out, tokens``; one thread per eight columns, blocks by live tokens."""
    hidden, top_k = payload.hidden, payload.top_k

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (ceil_div(scalars["tokens"] * (hidden // VECTOR), THREADS), 1, 1)

    return Definition(
        arguments=(
            pointer("route_output", "bf16", lambda scalars: scalars["tokens"] * top_k * hidden),
            pointer("out", "bf16", lambda scalars: scalars["tokens"] * hidden),
            scalar("tokens"),
        ),
        source=CuteSource(
            kernel="planfreeze.kernels.moe.topk_sum_cute:TopkSum",
            constants=(("hidden", hidden), ("top_k", top_k)),
            launch=LaunchInfo(block=(THREADS, 1, 1)),
        ),
        grid=grid,
    )
