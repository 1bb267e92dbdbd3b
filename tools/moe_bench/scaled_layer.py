"""A baseline written for this benchmark: the layer in Triton, products by ``tl.dot_scaled``, compiled at first use."""

import torch
from moe_bench.inputs import DEVICE, Call, Inputs
from moe_bench.kernels import first_projection, quantise_rows, second_projection
from torch import Tensor

from planfreeze.kernels.moe.checkpoints import LayerWeights
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.routing import COUNTS, max_m_tiles
from planfreeze.kernels.moe.rules import choose_tile_m
from planfreeze.sessions import Session

SMALLEST_TILE_M = 16
"""With fewer rows Triton 3.6 does not use the matrix unit of whole warpgroups."""
FIRST_BLOCK, SECOND_BLOCK = (64, 128), (128, 64)
"""Weight rows and K of a step of both projections."""
STAGES, WARPS = 4, 4
QUANTISED_BLOCK = 1024
ID_BITS = 32


def scales_by_k(scales: Tensor, block_k: int) -> Tensor:
    """Arrange ``(experts, rows, K / 32)`` scales by K steps: ``(experts, K / block_k, rows, block_k / 32)``."""
    return scales.unflatten(-1, (-1, block_k // GROUP)).transpose(1, 2).contiguous()


class ScaledLayer:
    """A candidate over logical weights, up rows first, and the product's route tables."""

    name = "dot_scaled"
    note = "Triton, tl.dot_scaled of e4m3 and e2m1, routing by the product's route_plan, torch's sum over routes"

    def __init__(self, session: Session, weights: LayerWeights, arch: str) -> None:
        self.session = session
        self.arch = arch
        self.w13, self.w2 = weights.w13, weights.w2
        self.w13_scales = scales_by_k(weights.w13_scales, FIRST_BLOCK[1])
        self.w2_scales = scales_by_k(weights.w2_scales, SECOND_BLOCK[1])
        self.scratch: dict[str, Tensor] = {}

    def bind(self, inputs: Inputs) -> Call:
        """Return the call: quantiser, routing, both projections, sum."""
        tokens, hidden = inputs.x.shape
        top_k, experts, columns = inputs.ids.shape[1], len(self.w13), self.w13.shape[1] // 2
        pairs, tile_m = inputs.ids.numel(), max(SMALLEST_TILE_M, choose_tile_m(self.arch, tokens))
        m_tiles = max_m_tiles(pairs, experts=experts, tile_m=tile_m)
        rows = m_tiles * tile_m
        x8, x_scale, middle, middle_scale, routed = self.buffers(tokens, hidden, rows, columns, pairs)
        tables = self.tables(rows, m_tiles)
        token_map, row_weight, tile_expert, tile_valid, tile_count = tables
        payload = RoutePlanPayload(experts=experts, top_k=top_k, tile_m=tile_m, id_bits=ID_BITS)
        operands = (inputs.ids, inputs.factors, *tables, routed, pairs, hidden, rows, m_tiles)
        plan_routes = self.session.program(payload).bind(*operands).launch
        out = torch.empty_like(inputs.x)
        block = min(QUANTISED_BLOCK, hidden & -hidden)
        tiles = (token_map, tile_expert, tile_valid, tile_count)

        def call() -> Tensor:
            quantise_rows[(tokens, hidden // block)](inputs.x, x8, x_scale, hidden, block)
            plan_routes()
            first_projection[(columns // FIRST_BLOCK[0], m_tiles)](
                x8, x_scale, self.w13, self.w13_scales, *tiles, middle, middle_scale, hidden, columns,
                top_k, tile_m, *FIRST_BLOCK, num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
            second_projection[(hidden // SECOND_BLOCK[0], m_tiles)](
                middle, middle_scale, self.w2, self.w2_scales, token_map, row_weight, *tiles[1:], routed,
                hidden, columns, tile_m, *SECOND_BLOCK, num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
            torch.sum(routed.view(tokens, top_k, hidden), dim=1, out=out)
            return out

        return call

    def buffers(self, tokens: int, hidden: int, rows: int, columns: int, pairs: int) -> tuple[Tensor, ...]:
        """Return the scratch of calls of one length, which all of them share."""
        return (
            self.keep("x8", torch.float8_e4m3fn, tokens, hidden),
            self.keep("x_scale", torch.uint8, tokens, hidden // GROUP),
            self.keep("middle", torch.float8_e4m3fn, rows, columns),
            self.keep("middle_scale", torch.uint8, rows, columns // GROUP),
            self.keep("routed", torch.bfloat16, pairs, hidden),
        )

    def tables(self, rows: int, m_tiles: int) -> tuple[Tensor, ...]:
        """Return the route tables of calls of one length, in the order ``route_plan`` takes them."""
        return (
            self.keep("token_map", torch.int32, rows),
            self.keep("row_weight", torch.float32, rows),
            self.keep("tile_expert", torch.int32, m_tiles),
            self.keep("tile_valid", torch.int32, m_tiles),
            self.keep("tile_count", torch.int32, COUNTS + m_tiles),
        )

    def keep(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        found = self.scratch.get(name)
        if found is None or tuple(found.shape) != shape:
            found = self.scratch[name] = torch.empty(shape, dtype=dtype, device=DEVICE)
        return found
