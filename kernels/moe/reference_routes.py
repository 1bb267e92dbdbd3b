"""What grouped routing must compute, in torch. For CPU and CUDA tensors."""

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze.kernels.moe.routing import COUNTS, max_m_tiles, rows_cap

__all__ = ["RoutePlan", "plan_routes"]


class RoutePlan(Struct, frozen=True, kw_only=True, eq=False):
    """Routes grouped by expert.

    Parameters
    ----------
    token_map : Tensor
        ``(rows,)`` int32: pair = token * top_k + route of every row, -1 where a row has none.
    row_weight : Tensor
        ``(rows,)`` f32: routing weight of the row's pair, 0 where it has none.
    tile_expert, tile_valid : Tensor
        ``(m_tiles,)`` int32: expert and number of routes of every tile; -1 and 0 beyond the live ones.
    tile_count : Tensor
        ``(COUNTS + m_tiles,)`` int32: live tiles; then zeros, with which nobody waits for the first projection.
    """

    token_map: Tensor
    row_weight: Tensor
    tile_expert: Tensor
    tile_valid: Tensor
    tile_count: Tensor


def plan_routes(topk_ids: Tensor, topk_weights: Tensor, experts: int, tile_m: int, capacity: int) -> RoutePlan:
    """Group the routes of a call by expert.

    Parameters
    ----------
    topk_ids : Tensor
        ``(tokens, top_k)`` int32 or int64. Ids outside 0..experts-1 are routes to nowhere and get no row.
    topk_weights : Tensor
        ``(tokens, top_k)`` f32.
    experts : int
        Number of experts.
    tile_m : int
        Rows of a tile.
    capacity : int
        Tokens the buffers are sized for, at least ``tokens``.

    Returns
    -------
    RoutePlan
        Experts ascending, in each the pairs ascending; every expert starts a tile.
    """
    pairs_cap, device = capacity * topk_ids.shape[1], topk_ids.device
    ids = topk_ids.flatten().long()
    pairs = ((ids >= 0) & (ids < experts)).nonzero().squeeze(1)
    pairs = pairs[ids[pairs].argsort(stable=True)]
    expert = ids[pairs]
    counts = torch.bincount(expert, minlength=experts)
    tiles = (counts + tile_m - 1) // tile_m
    tile_base, pair_base = tiles.cumsum(0) - tiles, counts.cumsum(0) - counts
    row = tile_m * tile_base[expert] + torch.arange(len(pairs), device=device) - pair_base[expert]

    rows = rows_cap(pairs_cap, experts=experts, tile_m=tile_m)
    m_tiles = max_m_tiles(pairs_cap, experts=experts, tile_m=tile_m)
    token_map = torch.full((rows,), -1, dtype=torch.int32, device=device)
    row_weight = torch.zeros(rows, device=device)
    token_map[row] = pairs.int()
    row_weight[row] = topk_weights.flatten()[pairs]
    live = int(tiles.sum())
    tile_expert = torch.full((m_tiles,), -1, dtype=torch.int32, device=device)
    tile_valid = torch.zeros(m_tiles, dtype=torch.int32, device=device)
    owner = torch.arange(experts, device=device).repeat_interleave(tiles)
    number = torch.arange(live, device=device) - tile_base[owner]
    tile_expert[:live] = owner.int()
    tile_valid[:live] = (counts[owner] - number * tile_m).clamp(max=tile_m).int()
    tile_count = torch.zeros(COUNTS + m_tiles, dtype=torch.int32, device=device)
    tile_count[0] = live
    return RoutePlan(
        token_map=token_map,
        row_weight=row_weight,
        tile_expert=tile_expert,
        tile_valid=tile_valid,
        tile_count=tile_count,
    )
