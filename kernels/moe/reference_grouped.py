"""What the kernels of the grouped path must compute: routes placed by expert, products in float64. CPU and CUDA.

Unlike few tokens (see :mod:`planfreeze.kernels.moe.reference`), gate and up are not rounded to bf16 before the
activation.
"""

from collections.abc import Iterator

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.reference import (
    dequantise_mxfp4,
    dequantise_mxfp8,
    quantise_intermediate,
    quantise_mxfp8,
    silu_product,
    sum_routes,
)
from planfreeze.kernels.moe.reference_routes import plan_routes

__all__ = [
    "Routes",
    "grouped_layer",
    "place_routes",
    "split_activation",
    "split_fc1",
    "split_fc2",
]


class Routes(Struct, frozen=True, kw_only=True, eq=False):
    """Routes of all tokens in m tiles: rows of one expert each. Live tiles only.

    Parameters
    ----------
    token_map : Tensor
        ``(rows,)`` int32 pair indices, -1 in the rows that fill up a tile.
    row_weight : Tensor
        ``(rows,)`` f32 factors, zero in the rows that fill up a tile.
    tile_expert, tile_valid : Tensor
        ``(tiles,)`` int32: expert of each tile, and how many of its rows, the first ones, are routes.
    tile_m : int
        Rows of a tile; ``rows == tile_m * tiles``.
    """

    token_map: Tensor
    row_weight: Tensor
    tile_expert: Tensor
    tile_valid: Tensor
    tile_m: int

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return len(self.tile_expert)

    @property
    def rows(self) -> int:
        """Number of rows, those that fill up tiles included."""
        return self.tile_m * self.tiles

    @property
    def is_live(self) -> Tensor:
        """``(rows,)`` bool: whether a row is a route."""
        order = torch.arange(self.tile_m, device=self.tile_valid.device)
        return (order < self.tile_valid.unsqueeze(-1)).flatten()

    def by_expert(self) -> Iterator[tuple[int, Tensor]]:
        """Yield every expert that has tiles, with the indices of its live rows."""
        experts = self.tile_expert.repeat_interleave(self.tile_m)
        for expert in self.tile_expert.unique().tolist():
            yield expert, (self.is_live & (experts == expert)).nonzero().squeeze(-1)


def place_routes(topk_ids: Tensor, topk_weights: Tensor, *, experts: int, tile_m: int) -> Routes:
    """Place every valid route in a row: experts ascending, in pair order inside an expert, whole tiles.

    Parameters
    ----------
    topk_ids, topk_weights : Tensor
        Expert ids, int32 or int64, and f32 factors, one per pair, of any shape.
    experts : int
        Ids outside 0..experts-1 are invalid and get no row.
    tile_m : int
        Rows of a tile.
    """
    pairs = topk_ids.numel()
    plan = plan_routes(topk_ids.reshape(-1, 1), topk_weights.reshape(-1, 1), experts, tile_m, pairs)
    tiles = int(plan.tile_count[0])
    return Routes(
        token_map=plan.token_map[: tile_m * tiles],
        row_weight=plan.row_weight[: tile_m * tiles],
        tile_expert=plan.tile_expert[:tiles],
        tile_valid=plan.tile_valid[:tiles],
        tile_m=tile_m,
    )


def split_activation(gate: Tensor, up: Tensor, *, limit: float | None = None) -> Tensor:
    """Compute ``bf16(silu(gate) * up)`` from columns that are not rounded before.

    Parameters
    ----------
    gate, up : Tensor
        ``(rows, intermediate)`` float32 or float64.
    limit : float, optional
        Bound L: gate is at most L, up within -L..L. None: unbounded.

    Returns
    -------
    Tensor
        ``(rows, intermediate)`` bf16.
    """
    return silu_product(gate.double(), up.double(), limit).to(torch.bfloat16)


def split_fc1(
    payload: Tensor,
    payload_scales: Tensor,
    codes: Tensor,
    scales: Tensor,
    routes: Routes,
    top_k: int,
    *,
    alpha: Tensor | None = None,
    limit: float | None = None,
) -> Tensor:
    """Compute the first projection and the activation of every row, before its quantisation.

    Parameters
    ----------
    payload, payload_scales : Tensor
        ``(tokens, hidden)`` and ``(tokens, hidden / 32)`` uint8, in K order, as
        :func:`planfreeze.kernels.moe.reference.quantise_mxfp8` makes them.
    codes, scales : Tensor
        ``(experts, 2 * intermediate, hidden / 2)`` and ``(..., hidden / 32)`` uint8, up rows first.
    routes : Routes
        Row r belongs to token ``token_map[r] // top_k``.
    top_k : int
        Routes per token.
    alpha : Tensor, optional
        ``(experts,)`` f32 factors; ones by default.
    limit : float, optional
        As for :func:`split_activation`.

    Returns
    -------
    Tensor
        ``(rows, intermediate)`` bf16. Rows that fill up a tile, which the kernels leave alone, are NaN.
        :func:`planfreeze.kernels.moe.reference.quantise_intermediate` makes the intermediate of it.
    """
    activations = dequantise_mxfp8(payload, payload_scales)
    intermediate = codes.shape[1] // 2
    made = torch.full((routes.rows, intermediate), torch.nan, dtype=torch.bfloat16, device=codes.device)
    for expert, rows in routes.by_expert():
        sums = activations[routes.token_map[rows].long() // top_k] @ dequantise_mxfp4(codes[expert], scales[expert]).T
        if alpha is not None:
            sums = sums * alpha[expert].double()
        up, gate = sums.chunk(2, dim=-1)
        made[rows] = split_activation(gate, up, limit=limit)
    return made


def split_fc2(
    payload: Tensor,
    payload_scales: Tensor,
    codes: Tensor,
    scales: Tensor,
    routes: Routes,
    pairs: int,
    *,
    alpha: Tensor | None = None,
) -> Tensor:
    """Compute the second projection of every row, and put it where its pair is.

    Parameters
    ----------
    payload, payload_scales : Tensor
        ``(rows, padded_width)`` and ``(rows, padded_width / 32)`` uint8, in K order, of at least the rows of
        ``routes``. Padding columns and rows that fill up a tile are not read.
    codes, scales : Tensor
        ``(experts, hidden, intermediate / 2)`` and ``(..., intermediate / 32)`` uint8.
    routes : Routes
        Row r gives the result of pair ``token_map[r]``, times ``row_weight[r]``.
    pairs : int
        Rows of the result.
    alpha : Tensor, optional
        ``(experts,)`` f32 factors; ones by default.

    Returns
    -------
    Tensor
        ``(pairs, hidden)`` bf16, ``bf16(alpha * weight * product)``; zeros for pairs without a row.
    """
    hidden, intermediate = codes.shape[1], 2 * codes.shape[-1]
    activations = dequantise_mxfp8(payload[:, :intermediate], payload_scales[:, : intermediate // GROUP])
    made = torch.zeros((pairs, hidden), dtype=torch.bfloat16, device=codes.device)
    for expert, rows in routes.by_expert():
        sums = activations[rows] @ dequantise_mxfp4(codes[expert], scales[expert]).T
        sums = sums * routes.row_weight[rows].double().unsqueeze(-1)
        if alpha is not None:
            sums = sums * alpha[expert].double()
        made[routes.token_map[rows].long()] = sums.to(torch.bfloat16)
    return made


def grouped_layer(
    x: Tensor,
    w13_codes: Tensor,
    w13_scales: Tensor,
    w2_codes: Tensor,
    w2_scales: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    alpha1: Tensor | None = None,
    alpha2: Tensor | None = None,
    limit: float | None = None,
) -> Tensor:
    """Compute a whole MoE layer with every rounding of the grouped kernels.

    The input is quantised to MXFP8, the silu product of unrounded gate and up is bf16 and then MXFP8, route rows are
    bf16, and their sum in route order is fp32, rounded once. How rows are tiled does not matter.

    Parameters
    ----------
    x : Tensor
        ``(tokens, hidden)`` bf16.
    w13_codes, w13_scales, w2_codes, w2_scales : Tensor
        Logical codes and E8M0 bytes of both projections, as for :func:`split_fc1` and :func:`split_fc2`.
    topk_ids, topk_weights : Tensor
        ``(tokens, top_k)`` expert ids and f32 factors. Routes with an id outside the experts contribute zero.
    alpha1, alpha2 : Tensor, optional
        ``(experts,)`` f32 factors of the projections; ones by default.
    limit : float, optional
        Bound of gate and up, as for :func:`split_activation`.

    Returns
    -------
    Tensor
        ``(tokens, hidden)`` bf16.
    """
    top_k = topk_ids.shape[-1]
    # One row a tile: no row is there only to fill one up.
    routes = place_routes(topk_ids, topk_weights, experts=len(w13_codes), tile_m=1)
    inputs = quantise_mxfp8(x)
    activations = split_fc1(*inputs, w13_codes, w13_scales, routes, top_k, alpha=alpha1, limit=limit)
    intermediate = quantise_intermediate(activations)
    products = split_fc2(*intermediate, w2_codes, w2_scales, routes, topk_ids.numel(), alpha=alpha2)
    return sum_routes(products, top_k)
