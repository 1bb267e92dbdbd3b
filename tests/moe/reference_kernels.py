"""The kernels of the reference device: what each family computes, over the memory its arguments point to."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.geometry import GROUP, layout, projection_parts
from planfreeze.kernels.moe.reference_rows import read_rows, store_rows
from planfreeze.kernels.moe.weights import unpack_w2, unpack_w13
from planfreeze.kernels.scales import csf_batch
from planfreeze.kernels.scales.geometry import TILE_BLOCK_BYTES, ScaleGeometry
from planfreeze.kernels.scales.inline import decode
from planfreeze.kernels.scales.native import logical_scales
from planfreeze.kernels.scales.storage import InlineScales

ARCH = "sm_90a"


def memory(address: int, size_bytes: int) -> Tensor:
    """View host memory."""
    if not size_bytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype=torch.uint8)


def run_act_quant(payload: Any, values: Any, words: dict[str, int]) -> None:
    quantised, scales = reference.quantise_mxfp8(values.x.view(-1, payload.hidden))
    values.a8.copy_(reference.arrange_activations(quantised, ARCH).flatten())
    values.a_scale.copy_(reference.activation_scales(scales, ARCH).flatten())


def run_micro_fc1(payload: Any, values: Any, words: dict[str, int]) -> None:
    activations = restore(values.a8.view(-1, payload.hidden)).view(torch.float8_e4m3fn).double()
    activations = activations * values.a_scale.double().repeat_interleave(GROUP).view(activations.shape)
    codes = unpack_w13(
        values.w13.view(values.experts, -1), ARCH, hidden=payload.hidden, intermediate=payload.intermediate
    )
    scales = read_scales(w13_geometry(payload), payload, values, words)
    parts = projection_parts(ARCH, payload.hidden)
    projections = values.projections.view(parts, values.pairs, -1)
    for expert, pairs in reference.pairs_by_expert(values.topk_ids, values.experts):
        weights = reference.dequantise_mxfp4(codes[expert], scales[expert])
        slices = zip(activations[pairs // payload.top_k].chunk(parts, -1), weights.chunk(parts, -1), strict=True)
        for part, (a, w) in zip(projections, slices, strict=True):
            up, gate = (a @ w.T).chunk(2, dim=-1)
            part[pairs] = torch.cat((gate, up), dim=-1).float()


def run_micro_act(payload: Any, values: Any, words: dict[str, int]) -> None:
    limit = float(payload.limit) if payload.limit else None
    parts = values.projections.view(projection_parts(ARCH, payload.hidden), values.pairs, -1)
    projections = reference.join_parts(parts, values.topk_ids, values.alpha)
    activations = reference.micro_activation(projections, values.topk_ids, values.experts, limit=limit)
    quantised, scales = reference.quantise_intermediate(activations)
    stored, stored_scales = reference.intermediate_planes(values.intermediate, ARCH, values.rows, payload.intermediate)
    for _, pairs in reference.pairs_by_expert(values.topk_ids, values.experts):
        stored[pairs] = reference.arrange_activations(quantised[pairs], ARCH)
        stored_scales[pairs] = reference.activation_scales(scales[pairs], ARCH).view(len(pairs), -1, 4)


def run_micro_fc2(payload: Any, values: Any, words: dict[str, int]) -> None:
    stored, stored_scales = reference.intermediate_planes(values.intermediate, ARCH, values.rows, payload.intermediate)
    quantised = restore(stored[: values.pairs].contiguous())
    bytes_of_scales = scale_bytes(stored_scales[: values.pairs])
    codes = unpack_w2(
        values.w2.view(values.experts, -1), ARCH, hidden=payload.hidden, intermediate=payload.intermediate
    )
    routes = reference.micro_fc2(
        quantised,
        bytes_of_scales.flatten(1),
        codes,
        read_scales(w2_geometry(payload), payload, values, words),
        values.topk_ids,
        values.topk_weights,
        alpha=values.alpha,
    )
    values.route_output.copy_(routes.flatten())


def run_route_plan(payload: Any, values: Any, words: dict[str, int]) -> None:
    ids, tile_m = values.topk_ids, payload.tile_m
    routes = reference_grouped.place_routes(ids, values.topk_weights, experts=payload.experts, tile_m=tile_m)
    assert routes.tiles <= values.m_tiles
    assert values.rows == values.m_tiles * tile_m
    values.token_map[: routes.rows] = routes.token_map
    values.row_weight[: routes.rows][routes.is_live] = routes.row_weight[routes.is_live]
    values.tile_expert[: routes.tiles] = routes.tile_expert
    values.tile_valid[: routes.tiles] = routes.tile_valid
    values.tile_count[0] = routes.tiles
    values.route_output.view(values.pairs, values.hidden)[(ids < 0) | (ids >= payload.experts)] = 0


def read_routes(payload: Any, values: Any) -> reference_grouped.Routes:
    """Return the live tiles that a routing wrote."""
    tiles = int(values.tile_count[0])
    assert 0 <= tiles <= values.m_tiles
    weights = getattr(values, "row_weight", torch.zeros(values.rows))
    return reference_grouped.Routes(
        token_map=values.token_map[: tiles * payload.tile_m],
        row_weight=weights[: tiles * payload.tile_m],
        tile_expert=values.tile_expert[:tiles],
        tile_valid=values.tile_valid[:tiles],
        tile_m=payload.tile_m,
    )


def run_split_fc1(payload: Any, values: Any, words: dict[str, int]) -> None:
    hidden, columns = payload.hidden, payload.intermediate
    routes = read_routes(payload, values)
    activations = reference_grouped.split_fc1(
        restore(values.a8.view(-1, hidden)),
        scale_bytes(values.a_scale).view(-1, hidden // GROUP),
        unpack_w13(values.w13.view(values.experts, -1), ARCH, hidden=hidden, intermediate=columns),
        read_scales(w13_geometry(payload), payload, values, words),
        routes,
        payload.top_k,
        alpha=values.alpha,
        limit=float(payload.limit) if payload.limit else None,
    )
    quantised, scales = reference.quantise_intermediate(activations)
    live = routes.is_live.nonzero().squeeze(-1)
    store_rows(values.intermediate, live, quantised[live], scales[live], ARCH, values.rows, payload.tile_m)


def run_split_fc2(payload: Any, values: Any, words: dict[str, int]) -> None:
    routes = read_routes(payload, values)
    products = reference_grouped.split_fc2(
        *read_rows(values.intermediate, ARCH, values.rows, payload.intermediate, payload.tile_m),
        unpack_w2(values.w2.view(values.experts, -1), ARCH, hidden=payload.hidden, intermediate=payload.intermediate),
        read_scales(w2_geometry(payload), payload, values, words),
        routes,
        values.pairs,
        alpha=values.alpha,
    )
    placed = routes.token_map[routes.is_live].long()
    values.route_output.view(values.pairs, -1)[placed] = products[placed]


def run_expand(payload: Any, values: Any, words: dict[str, int]) -> None:
    assert values.tiles == payload.experts * payload.geometry.tiles
    inline = read_inline(payload.geometry, payload.experts, words["storage"])
    values.native.copy_(decode(inline).flatten())


def run_csf_presence(payload: Any, values: Any, words: dict[str, int]) -> None:
    values.presence.zero_()
    for expert, _ in reference.pairs_by_expert(values.topk_ids, payload.experts):
        values.presence[expert] = 1


def run_csf_decode(payload: Any, values: Any, words: dict[str, int]) -> None:
    experts = values.experts
    offsets = values.task_offsets.view(experts, -1)
    batch = csf_batch.CsfBatch(
        geometry=ScaleGeometry(rows=payload.rows, columns=payload.columns, group_rows=payload.group_rows),
        experts=experts,
        bases=values.bases.view(experts, -1),
        selectors=values.selectors.view(experts, -1),
        exceptions=memory(words["exceptions"], 4 * int(offsets[-1, -1])).view(torch.uint32),
        task_offsets=offsets,
    )
    touched = values.presence != 0
    values.native.view(experts, -1)[touched] = csf_batch.decode(batch)[touched]


def run_topk_sum(payload: Any, values: Any, words: dict[str, int]) -> None:
    rows = values.route_output.view(-1, payload.hidden)
    values.out.copy_(reference.sum_routes(rows, payload.top_k).flatten())


KERNELS: dict[str, Callable[[Any, Any, dict[str, int]], None]] = {
    "act_quant": run_act_quant,
    "micro_fc1": run_micro_fc1,
    "micro_act": run_micro_act,
    "micro_fc2": run_micro_fc2,
    "route_plan": run_route_plan,
    "split_fc1": run_split_fc1,
    "split_fc2": run_split_fc2,
    "expand": run_expand,
    "csf_presence": run_csf_presence,
    "csf_decode": run_csf_decode,
    "topk_sum": run_topk_sum,
}


def restore(stored: Tensor) -> Tensor:
    """Bring activation bytes back to K order."""
    order = torch.tensor(layout(ARCH).activation_order).argsort()
    return stored.unflatten(-1, (-1, GROUP))[..., order].flatten(-2).contiguous()


def scale_bytes(scales: Tensor) -> Tensor:
    """Return the E8M0 bytes of scales stored as floats."""
    return (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def w13_geometry(payload: Any) -> ScaleGeometry:
    columns = payload.intermediate
    return ScaleGeometry(rows=2 * columns, columns=payload.hidden // GROUP, group_rows=columns)


def w2_geometry(payload: Any) -> ScaleGeometry:
    return ScaleGeometry(rows=payload.hidden, columns=payload.intermediate // GROUP, group_rows=payload.hidden)


def read_inline(geometry: ScaleGeometry, experts: int, address: int) -> InlineScales:
    """Return the inline storage at an address; its headers tell how many raw tiles it has."""
    blocks = memory(address, geometry.tile_bytes(experts)).view(-1, TILE_BLOCK_BYTES)
    raw_tiles = int((blocks[:, 64:68].contiguous().view(torch.int32) < 0).sum())
    storage = memory(address, geometry.inline_bytes(experts, raw_tiles))
    return InlineScales(geometry=geometry, experts=experts, storage=storage, raw_tiles=raw_tiles)


def read_scales(geometry: ScaleGeometry, payload: Any, values: Any, words: dict[str, int]) -> Tensor:
    """Return the logical scales that a projection's arguments point to."""
    if not payload.csf_inline:
        return logical_scales(geometry, values.scales.view(values.experts, -1))
    inline = read_inline(geometry, values.experts, words["tiles"])
    assert words["bases"] == words["tiles"] + len(values.tiles)
    assert not inline.raw_tiles or words["raw"] == words["bases"] + len(values.bases)
    return logical_scales(geometry, decode(inline))
