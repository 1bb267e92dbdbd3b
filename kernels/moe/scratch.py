"""Scratch of a call: the sizes of its buffers and their places in one workspace. Imports nothing heavy."""

from msgspec import Struct

from planfreeze.kernels.moe.geometry import GROUP, ceil_div, intermediate_bytes, layout, projection_parts
from planfreeze.kernels.moe.routing import COUNTS, max_m_tiles
from planfreeze.kernels.moe.rules import Backend, ScaleMode, ShardedModel, choose_backend, choose_tile_m
from planfreeze.kernels.moe.stages import w2_geometry, w13_geometry

__all__ = ["Counts", "ScratchSizes", "count_rows", "size_scratch"]

PART_ALIGNMENT_BYTES = 256
"""Parts of a workspace start at multiples of it: what torch's allocator gives, and a multiple of a sector."""
BF16_BYTES = 2
WORD_BYTES = 4


class Counts(Struct, frozen=True, kw_only=True):
    """Rows of a capacity; what its kernels are told, whatever the live count.

    Parameters
    ----------
    rows : int
        Rows of the intermediate: one per route, or as many whole tiles as routes grouped by expert can need.
    m_tiles : int
        Those tiles; 0 where routes are not grouped.
    """

    rows: int
    m_tiles: int


class ScratchSizes(Struct, frozen=True, kw_only=True):
    """Bytes of each scratch buffer of a call; 0 for one that it does not use.

    Parameters
    ----------
    a8, a_scale : int
        Quantised activations, one row per token, and their scales.
    projections : int
        Sums of gate and up columns in fp32, one row per part of K and route.
    token_map, row_weight : int
        Route and routing weight of every row of grouped routes.
    tile_expert, tile_valid, tile_count : int
        Expert and live rows of every tile of grouped routes, the number of live tiles and their progress.
    intermediate : int
        Quantised intermediate with its scale planes.
    route_output : int
        Weighted results in bf16, one row per route.
    presence : int
        A byte per expert: whether a call routes to it.
    w13_plane, w2_plane : int
        Native scale planes that a call writes from compressed scales before it multiplies. Layers that share a
        workspace share them.
    """

    a8: int
    a_scale: int
    projections: int
    token_map: int
    row_weight: int
    tile_expert: int
    tile_valid: int
    tile_count: int
    intermediate: int
    route_output: int
    presence: int
    w13_plane: int
    w2_plane: int

    @property
    def workspace(self) -> int:
        """Bytes of one workspace that holds every buffer."""
        return sum(align(size) for _, size in self.items())

    def items(self) -> tuple[tuple[str, int], ...]:
        """Return the name and size of each buffer, in the order of a workspace."""
        return tuple((name, getattr(self, name)) for name in self.__struct_fields__)

    def places(self) -> dict[str, tuple[int, int]]:
        """Return the first byte of each buffer in a workspace, and the one behind its last."""
        found, first = {}, 0
        for name, size in self.items():
            found[name] = (first, first + size)
            first += align(size)
        return found

    def cover(self, other: "ScratchSizes") -> "ScratchSizes":
        """Return the sizes that hold both: of each buffer the larger."""
        return ScratchSizes(**{name: max(size, getattr(other, name)) for name, size in self.items()})


def align(size_bytes: int) -> int:
    return PART_ALIGNMENT_BYTES * ceil_div(size_bytes, PART_ALIGNMENT_BYTES)


def count_rows(sharded: ShardedModel, arch: str, capacity: int) -> Counts:
    """Return the rows of a capacity."""
    pairs = capacity * sharded.model.top_k
    if choose_backend(sharded, capacity) is Backend.MICRO:
        return Counts(rows=pairs, m_tiles=0)
    tile_m = choose_tile_m(arch, capacity)
    m_tiles = max_m_tiles(pairs, experts=sharded.model.experts, tile_m=tile_m)
    return Counts(rows=tile_m * m_tiles, m_tiles=m_tiles)


def size_scratch(sharded: ShardedModel, arch: str, capacity: int, mode: ScaleMode) -> ScratchSizes:
    """Return the scratch of ``capacity`` tokens whose scales reach the kernels by ``mode``."""
    hidden, experts, pairs = sharded.model.hidden, sharded.model.experts, capacity * sharded.model.top_k
    counts = count_rows(sharded, arch, capacity)
    is_grouped, has_planes = counts.m_tiles > 0, mode in (ScaleMode.EXPAND, ScaleMode.DECODE)
    row_words = WORD_BYTES * counts.rows if is_grouped else 0
    tile_words = WORD_BYTES * counts.m_tiles
    return ScratchSizes(
        a8=capacity * hidden,
        a_scale=capacity * (hidden // GROUP) * layout(arch).activation_scale_bytes,
        projections=0 if is_grouped else projection_parts(arch, hidden) * pairs * 2 * sharded.intermediate * WORD_BYTES,
        token_map=row_words,
        row_weight=row_words,
        tile_expert=tile_words,
        tile_valid=tile_words,
        tile_count=COUNTS * WORD_BYTES + tile_words if is_grouped else 0,
        intermediate=intermediate_bytes(arch, counts.rows, sharded.intermediate),
        route_output=pairs * hidden * BF16_BYTES,
        presence=experts if mode is ScaleMode.DECODE else 0,
        w13_plane=w13_geometry(sharded).native_bytes(experts) if has_planes else 0,
        w2_plane=w2_geometry(sharded).native_bytes(experts) if has_planes else 0,
    )
