"""Rules of the MoE layers: how a model is sharded, which kernels serve a capacity, and how scales reach them.

The one place for these decisions; the enumerator of payloads and the runtime both ask here.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import isqrt

from msgspec import Struct

from planfreeze import errors
from planfreeze.kernels.moe.geometry import (
    ceil_div,
    check_hidden,
    check_intermediate,
    check_top_k,
    is_compact,
    projection_parts,
)
from planfreeze.kernels.moe.routing import max_m_tiles
from planfreeze.models import ARMS, Arm, Model, PlanOptions
from planfreeze.target import target

__all__ = [
    "MICRO_TOKENS",
    "Backend",
    "ScaleMode",
    "ShardedModel",
    "choose_arms",
    "choose_backend",
    "choose_scale_mode",
    "choose_tile_m",
    "has_kernels",
    "inline_limit",
    "is_compact",
    "is_prepared_inline",
    "shard",
]

MICRO_TOKENS = 8
"""Largest capacity of the direct-route kernels; above it, grouping routes by expert reads fewer weights."""


TILE_M_STEPS: Mapping[str, tuple[tuple[int | None, int], ...]] = {
    "sm_90a": ((128, 8), (896, 16), (None, 32)),
    "sm_120a": ((None, 16),),
}
"""By architecture: up to how many tokens of capacity (None: any) a tile of grouped routes has how many rows.

On sm_90a, tiles of 32 rows are slower than of 16 at 768 tokens and faster at 1024 (docs/side_by_side.md).
"""
INLINE_LIMITS: Mapping[str, int] = {"sm_90a": 4096, "sm_120a": 1536}
"""By architecture: up to how many tokens of capacity grouped kernels read scales inline, unless options say otherwise.

On sm_90a reading them inline is faster than expanding them first, with rests between calls, at all counts that were
measured, of which 4096 is the largest (docs/side_by_side.md). sm_120a was not measured.
"""
SMALLEST_ROW_TILE = 64
MAX_COUNT = 2**31 - 1


class Backend(StrEnum):
    """Kernels that serve a capacity: one task per route, or routes grouped by expert."""

    MICRO = "micro"
    DYNAMIC = "dynamic"


class ScaleMode(StrEnum):
    """How scales reach the kernels of one capacity.

    ``INLINE``: kernels read the compressed storage. ``EXPAND``: that storage is expanded once per call, for
    all experts, and native kernels run over the plane. ``DECODE``: native kernels run over scales decoded per
    call for the routed experts. ``NATIVE``: scales were never compressed.
    """

    INLINE = "inline"
    EXPAND = "expand"
    DECODE = "decode"
    NATIVE = "native"


class ShardedModel(Struct, frozen=True, kw_only=True):
    """A model as one of ``tp`` equal ranks sees it; made by :func:`shard`.

    Parameters
    ----------
    model : Model
        The whole model.
    tp : int
        Number of ranks.
    intermediate : int
        Columns of the intermediate per rank: the model's divided by ``tp``.
    """

    model: Model
    tp: int
    intermediate: int

    @property
    def is_compact(self) -> bool:
        """Whether the last row tile has 64 rows, which direct-route kernels and inline scales ask for."""
        return is_compact(self.intermediate)


def shard(model: Model, tp: int) -> ShardedModel:
    """Divide a model over ``tp`` ranks.

    Raises
    ------
    InvalidRanks
        ``tp`` is not a whole number >= 1.
    UntiledModel
        The hidden size or the routes per token are not ones the kernels cover, however it is sharded.
    UnevenShards
        The intermediate size does not divide by ``tp``.
    UntiledShards
        The share of a rank is not a multiple of 64 columns.
    """
    if type(tp) is not int or tp < 1:
        raise errors.InvalidRanks(tp)
    try:
        check_hidden(model.hidden)
        check_top_k(model.top_k)
    except errors.UnsupportedGeometry as error:
        raise errors.UntiledModel(model.name, error.reason) from error
    if model.intermediate % tp:
        raise errors.UnevenShards(model.name, model.intermediate, tp, working_ranks(model.intermediate))
    intermediate = model.intermediate // tp
    if not is_tiled(intermediate):
        raise errors.UntiledShards(model.name, model.intermediate, tp, working_ranks(model.intermediate))
    return ShardedModel(model=model, tp=tp, intermediate=intermediate)


def working_ranks(intermediate: int) -> tuple[int, ...]:
    """Return every number of ranks that leaves equal shares the kernels tile, ascending."""
    small = [tp for tp in range(1, isqrt(intermediate) + 1) if intermediate % tp == 0]
    divisors = sorted({*small, *(intermediate // tp for tp in small)})
    return tuple(tp for tp in divisors if is_tiled(intermediate // tp))


def is_tiled(intermediate: int) -> bool:
    try:
        check_intermediate(intermediate)
    except errors.UnsupportedGeometry:
        return False
    return True


def is_prepared_inline(sharded: ShardedModel, options: PlanOptions) -> bool:
    """Tell whether experts can be prepared with scales that kernels read compressed.

    Compressed weights, the compact geometry, and the switch on; the activation is silu in every model.
    """
    return find_obstacle(sharded, options, "inline") is None


def find_obstacle(sharded: ShardedModel, options: PlanOptions, arm: Arm) -> str | None:
    """Say what keeps a model from having an arm; None when nothing does."""
    if arm == "native":
        return None
    if sharded.model.weight_format != "mxfp4_csf":
        return f"its weights are {sharded.model.weight_format}, whose scales are not compressed"
    if arm == "inline" and not sharded.is_compact:
        n = sharded.intermediate
        return f"{n} % 128 = {n % 128}, and kernels read scales inline where 64 rows are left over"
    if arm == "inline" and not options.is_csf_inline:
        return "inline scales are switched off (PLANFREEZE_CSF_INLINE=0)"
    return None


def choose_arms(sharded: ShardedModel, options: PlanOptions) -> tuple[Arm, ...]:
    """Return the arms to plan.

    Without a choice: inline if experts can be prepared so, else per-call expansion of compressed scales, else
    native. All three named: every arm there is for this model.

    Raises
    ------
    UnavailableArm
        One or two arms are named, and the model does not have one of them.
    """
    obstacles = {arm: find_obstacle(sharded, options, arm) for arm in ARMS}
    available = tuple(arm for arm in ARMS if obstacles[arm] is None)
    if options.arms is None:
        return available[:1]
    if options.arms == ARMS:
        return available
    for arm in options.arms:
        reason = obstacles[arm]
        if reason is not None:
            raise errors.UnavailableArm(sharded.model.name, sharded.tp, arm, reason, available)
    return options.arms


def choose_backend(sharded: ShardedModel, capacity: int) -> Backend:
    """Return the backend of a capacity.

    The number of routes does not matter: 8 tokens of 16 routes each are micro. What else the direct-route
    kernels ask for (hidden size, routes per token, silu) every sharded model has.
    """
    return Backend.MICRO if sharded.is_compact and capacity <= MICRO_TOKENS else Backend.DYNAMIC


def choose_scale_mode(sharded: ShardedModel, arch: str, capacity: int, arm: Arm, options: PlanOptions) -> ScaleMode:
    """Return how scales reach the kernels of a capacity, for experts prepared for ``arm``.

    The limit concerns grouped kernels alone and belongs to the options: direct-route kernels of inline
    experts read inline at any limit.
    """
    if arm == "native":
        return ScaleMode.NATIVE
    if arm == "expand":
        return ScaleMode.DECODE
    if choose_backend(sharded, capacity) is Backend.MICRO or capacity <= inline_limit(arch, options):
        return ScaleMode.INLINE
    return ScaleMode.EXPAND


def inline_limit(arch: str, options: PlanOptions) -> int:
    """Return the largest capacity whose grouped kernels read scales inline, in tokens."""
    return INLINE_LIMITS[target(arch).arch] if options.inline_limit is None else options.inline_limit


def choose_tile_m(arch: str, capacity: int) -> int:
    """Return the rows of a tile of grouped routes.

    A block-scaled product takes 16 tokens and no other number. Tiles of wgmma kernels have 8, 16 or 32 rows: few
    tokens leave most rows of a large tile empty, and many take every weight tile less often through the decoder when
    the tile is large.
    """
    steps = TILE_M_STEPS[target(arch).arch]
    return next(tile_m for largest, tile_m in steps if largest is None or capacity <= largest)


def has_kernels(sharded: ShardedModel, arch: str, capacity: int) -> bool:
    """Tell whether the kernels of a capacity count as far as its calls can need.

    Rows and tasks are counted in 32 bits; offsets in bytes have 64.
    """
    pairs = capacity * sharded.model.top_k
    # A task is one row tile of weights, of 64 rows at least, for one direct route or one tile of grouped ones; or a
    # part of the K of 64 up and 64 gate rows.
    weight_tiles = ceil_div(max(sharded.model.hidden, 2 * sharded.intermediate), SMALLEST_ROW_TILE)
    if choose_backend(sharded, capacity) is Backend.MICRO:
        tile_parts = projection_parts(arch, sharded.model.hidden) * ceil_div(sharded.intermediate, SMALLEST_ROW_TILE)
        return pairs * max(weight_tiles, tile_parts) <= MAX_COUNT
    tile_m = choose_tile_m(arch, capacity)
    m_tiles = max_m_tiles(pairs, experts=sharded.model.experts, tile_m=tile_m)
    return max(m_tiles * tile_m, m_tiles * weight_tiles) <= MAX_COUNT
