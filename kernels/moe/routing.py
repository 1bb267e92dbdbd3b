"""Sizes of grouped routing: how many tiles and rows the routes of a call take at most.

Routes are grouped by expert into tiles of ``tile_m`` rows, one row per route. The last tile of an expert may have
fewer routes than rows.
"""

from planfreeze.kernels.moe.geometry import ceil_div

__all__ = ["COUNTER_START", "COUNTS", "TILE_SIZES", "max_m_tiles", "rows_cap"]

TILE_SIZES = (8, 16, 32)
"""Rows of a tile that kernels exist for."""
COUNTS = 3
"""Words of ``tile_count`` before the counters of the tiles: live tiles, done tasks of the first projection and tasks of
the second that were taken (see :mod:`planfreeze.kernels.moe.progress_cute`)."""
COUNTER_START = 1 << 30
"""What routing sets counters of done tasks to: a number that no count comes near."""


def max_m_tiles(pairs: int, *, experts: int, tile_m: int) -> int:
    """Return a number of tiles that ``pairs`` routes never exceed, however they fall on the experts.

    Every expert with a route has at most one tile that is not full. The bound grows with ``pairs``, so that of a
    capacity holds for every smaller call.

    Examples
    --------
    >>> max_m_tiles(64 * 6, experts=384, tile_m=16)
    407
    """
    return ceil_div(pairs, tile_m) + min(experts, pairs) - 1 if pairs else 0


def rows_cap(pairs: int, *, experts: int, tile_m: int) -> int:
    """Return the rows of :func:`max_m_tiles` tiles."""
    return tile_m * max_m_tiles(pairs, experts=experts, tile_m=tile_m)
