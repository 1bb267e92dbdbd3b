"""Family ``route_plan``: group the routes of a call by expert into tiles of rows, in one launch.

Row ``tile_m * first_tile[e] + i`` belongs to the i-th route of expert e, in pair order; experts ascend. The result is
the same for every grid. Routes with an expert id outside 0..experts-1 get no row, and zeros in ``route_output``.
"""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.moe.geometry import ceil_div
from planfreeze.kernels.moe.routing import COUNTS, TILE_SIZES, max_m_tiles, rows_cap
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["RoutePlanPayload", "route_plan", "shared_bytes"]

THREADS = 1024
"""Every block counts all ids, so it is as wide as a block can be."""
PAIRS_PER_BLOCK, EXPERTS_PER_BLOCK = 512, 64
"""Pairs placed and experts whose tiles are described by a block: scattered stores, which are shared out over SMs."""
MAX_EXPERTS = THREADS
"""A thread sums the tiles of one expert."""


class RoutePlanPayload(Payload):
    """One variant of ``route_plan``.

    Parameters
    ----------
    experts : int
        Number of experts, 1 to 1024.
    top_k : int
        Routes per token, 1 to 32.
    tile_m : int
        Rows of a tile: 8, 16 or 32.
    id_bits : int
        Width of the routing ids, 32 or 64.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "route_plan"
    experts: int
    top_k: int
    tile_m: int
    id_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = explain_refusal(self)
        if reason:
            raise errors.InvalidPayload(self.family_name, reason)


def explain_refusal(payload: RoutePlanPayload) -> str | None:
    """Say why no kernel has this variant, or None."""
    if not 1 <= payload.experts <= MAX_EXPERTS:
        return f"experts = {payload.experts} is not in 1..{MAX_EXPERTS}"
    if not 1 <= payload.top_k <= 32:
        return f"top_k = {payload.top_k} is not in 1..32"
    if payload.tile_m not in TILE_SIZES:
        return f"tile_m = {payload.tile_m} is none of {', '.join(map(str, TILE_SIZES))}"
    if payload.id_bits not in (32, 64):
        return f"id_bits = {payload.id_bits} is neither 32 nor 64"
    return None


def shared_bytes(experts: int) -> int:
    """Return the shared memory of a block: three words and 32 bytes for every expert and one more, and 128 bytes."""
    bins = 4 * ceil_div(experts + 1, 4)
    return 3 * 4 * bins + 32 * 4 + 32 * bins


@family(RoutePlanPayload, version=1)
def route_plan(payload: RoutePlanPayload, target: Target) -> Definition:
    """Define the arguments, program source and grid. Without pairs there is a grid too: it writes that no tile is."""
    least = ceil_div(payload.experts, EXPERTS_PER_BLOCK)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(max(least, ceil_div(scalars["pairs"], PAIRS_PER_BLOCK)), resident_blocks), 1, 1)

    source = CuteSource(
        kernel="planfreeze.kernels.moe.route_plan_cute:RoutePlan",
        constants=(("experts", payload.experts), ("tile_m", payload.tile_m), ("id_bits", payload.id_bits)),
        launch=LaunchInfo(block=(THREADS, 1, 1), shared_bytes=shared_bytes(payload.experts)),
    )
    return Definition(arguments=arguments(payload), source=source, grid=grid)


def arguments(payload: RoutePlanPayload) -> tuple[Argument, ...]:
    """List the kernel parameters in order."""
    experts, tile_m = payload.experts, payload.tile_m

    # Buffers too small for the worst routing of so many pairs are refused, whatever rows and m_tiles say.
    def rows(scalars: Scalars) -> int:
        return max(scalars["rows"], rows_cap(scalars["pairs"], experts=experts, tile_m=tile_m))

    def m_tiles(scalars: Scalars) -> int:
        return max(scalars["m_tiles"], max_m_tiles(scalars["pairs"], experts=experts, tile_m=tile_m))

    return (
        pointer(
            "topk_ids",
            "i32" if payload.id_bits == 32 else "i64",
            lambda s: s["pairs"],
            alignment=payload.id_bits // 8,
        ),
        pointer("topk_weights", "f32", lambda s: s["pairs"], alignment=4),
        pointer("token_map", "i32", rows),
        pointer("row_weight", "f32", rows),
        pointer("tile_expert", "i32", m_tiles),
        pointer("tile_valid", "i32", m_tiles),
        pointer("tile_count", "i32", lambda s: COUNTS + m_tiles(s)),
        pointer("route_output", "bf16", lambda s: s["pairs"] * s["hidden"]),
        scalar("pairs"),
        scalar("hidden"),
        scalar("rows"),
        scalar("m_tiles"),
    )
