"""Checks of the grouped path's families on a device: routing, both projections, and the decoding of scale batches."""

from typing import Any

import torch
from checks import (
    DEVICE,
    ID_TYPES,
    POISON,
    TOLERANCE,
    generator,
    quantised,
    relative_l2,
    require,
    same_bits,
)
from layer import ARCH, Projection, Sizes, random_routes
from torch import Tensor

from planfreeze.kernels.moe import reference, reference_grouped, reference_rows
from planfreeze.kernels.moe.geometry import intermediate_bytes
from planfreeze.kernels.moe.reference_routes import RoutePlan, plan_routes
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.routing import COUNTER_START, COUNTS, max_m_tiles, rows_cap
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.scales import csf_batch
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.synthetic import synthetic_scales
from planfreeze.sessions import Session

LIVE_TOKENS = (1, 17, 64, 300, 1536)


def spoilt_ids(sizes: Sizes, tokens: int, dtype: torch.dtype) -> Tensor:
    """Draw routes of which some are out of range, one expert has many and most have few."""
    ids = random_routes(tokens, sizes.experts, sizes.top_k, generator(tokens)).to(dtype)
    ids[tokens // 3 : tokens // 2, 0] = 7
    ids.view(-1)[:: 29 if tokens > 8 else 5] = -1
    ids.view(-1)[-1] = sizes.experts
    return ids


def check_route_plan(session: Session, sizes: Sizes, payload: RoutePlanPayload) -> dict[str, Any]:
    """Route tokens over poisoned tables; every live entry equals the reference's, routes to nowhere give zero rows."""
    for tokens in (*LIVE_TOKENS, 4096):
        ids = spoilt_ids(sizes, tokens, ID_TYPES[payload.id_bits])
        weights = torch.rand(ids.shape, generator=generator(tokens), device=DEVICE)
        wanted = plan_routes(ids, weights, sizes.experts, payload.tile_m, tokens)
        pairs, hidden = ids.numel(), 256
        route_output = torch.full((pairs, hidden), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        found = RoutePlan(
            token_map=torch.full_like(wanted.token_map, -77),
            row_weight=torch.full_like(wanted.row_weight, torch.nan),
            tile_expert=torch.full_like(wanted.tile_expert, -77),
            tile_valid=torch.full_like(wanted.tile_valid, -77),
            tile_count=torch.full_like(wanted.tile_count, -77),
        )
        rows, m_tiles = len(wanted.token_map), len(wanted.tile_expert)
        tables = (found.token_map, found.row_weight, found.tile_expert, found.tile_valid, found.tile_count)
        session.program(payload).bind(ids, weights, *tables, route_output, pairs, hidden, rows, m_tiles).launch()
        torch.cuda.synchronize()
        live = int(wanted.tile_count[0])
        require(int(found.tile_count[0]) == live, f"{int(found.tile_count[0])} live tiles, not {live}")
        counts = found.tile_count[1 : COUNTS + live].tolist()
        require(counts == [COUNTER_START, 0] + [COUNTER_START] * live, "a counter is not at its start")
        for name, size in (("token_map", live * payload.tile_m), ("row_weight", live * payload.tile_m)):
            same = torch.equal(getattr(found, name)[:size], getattr(wanted, name)[:size])
            require(same, f"{name} of {tokens} tokens differs")
        for name in ("tile_expert", "tile_valid"):
            require(torch.equal(getattr(found, name)[:live], getattr(wanted, name)[:live]), f"{name} differs")
        is_nowhere = ((ids < 0) | (ids >= sizes.experts)).view(-1)
        require(not bool(route_output[is_nowhere].any()), "a row of a route to nowhere is not zero")
        require(bool(route_output[~is_nowhere].isnan().all()), "a row of a live route was written")
    return {"compared_with": "torch reference", "tokens": (*LIVE_TOKENS, 4096)}


def forms(layer: Projection) -> tuple[tuple[bool, tuple[Tensor, ...]], ...]:
    """Return both forms of scales with their flag."""
    return (True, layer.inline.parts()), (False, (layer.native,))


def check_split_fc1(session: Session, layer: Projection, tile_m: int) -> dict[str, Any]:
    """Compare inline with native bit for bit, and the intermediate with float64."""
    sizes = layer.sizes
    errors = []
    for tokens in LIVE_TOKENS:
        ids = spoilt_ids(sizes, tokens, torch.int32)
        weights = torch.rand(ids.shape, generator=generator(tokens), device=DEVICE)
        plan = plan_routes(ids, weights, sizes.experts, tile_m, tokens)
        pairs = ids.numel()
        rows = rows_cap(pairs, experts=sizes.experts, tile_m=tile_m)
        m_tiles = max_m_tiles(pairs, experts=sizes.experts, tile_m=tile_m)
        x = 0.1 * torch.randn(tokens, sizes.hidden, generator=generator(tokens), device=DEVICE).bfloat16()
        a8, a_scale = quantised(x)
        alpha = 0.5 + torch.rand(sizes.experts, generator=generator(tokens), device=DEVICE)
        size_bytes = intermediate_bytes(ARCH, rows, sizes.intermediate)
        found = torch.full((2, size_bytes), POISON, dtype=torch.uint8, device=DEVICE)
        for out, (csf_inline, scales) in zip(found, forms(layer), strict=True):
            payload = SplitFc1Payload(
                hidden=sizes.hidden,
                intermediate=sizes.intermediate,
                top_k=sizes.top_k,
                tile_m=tile_m,
                csf_inline=csf_inline,
            )
            tables = (plan.token_map, plan.tile_expert, plan.tile_valid, plan.tile_count)
            session.program(payload).bind(
                a8, a_scale, layer.words, *scales, *tables, alpha, out, tokens, sizes.experts, rows, m_tiles
            ).launch()
        torch.cuda.synchronize()
        require(torch.equal(found[0], found[1]), f"forms differ in {int((found[0] != found[1]).sum())} bytes")
        routes = reference_grouped.place_routes(ids, weights, experts=sizes.experts, tile_m=tile_m)
        wanted = reference_grouped.split_fc1(
            *reference.quantise_mxfp8(x), layer.codes, layer.scales, routes, sizes.top_k, alpha=alpha
        )
        live = routes.is_live.nonzero().squeeze(-1)
        expected = reference.dequantise_mxfp8(*reference.quantise_intermediate(wanted[live]))
        payloads, payload_scales = reference_rows.read_rows(found[0], ARCH, rows, sizes.intermediate, tile_m)
        errors.append(relative_l2(reference.dequantise_mxfp8(payloads[live], payload_scales[live]), expected))
        require(errors[-1] <= TOLERANCE, f"relative L2 error {errors[-1]:.3e} against float64")
        places, _ = reference_rows.row_places(ARCH, rows, sizes.intermediate, tile_m, DEVICE)
        is_filler = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        is_filler[live] = False
        require(bool((found[0][places[is_filler]] == POISON).all()), "a row without a route was written")
    return {
        "compared_with": "the other form of scales bit for bit, float64 reference",
        "live_tokens": LIVE_TOKENS,
        "relative_l2_max": max(errors),
        "tolerance": TOLERANCE,
    }


def check_split_fc2(session: Session, layer: Projection, tile_m: int) -> dict[str, Any]:
    """Compare inline with native bit for bit and both with float64, from the reference's own intermediate."""
    sizes = layer.sizes
    errors = []
    for tokens in LIVE_TOKENS:
        ids = spoilt_ids(sizes, tokens, torch.int32)
        weights = torch.rand(ids.shape, generator=generator(tokens), device=DEVICE)
        plan = plan_routes(ids, weights, sizes.experts, tile_m, tokens)
        routes = reference_grouped.place_routes(ids, weights, experts=sizes.experts, tile_m=tile_m)
        pairs = ids.numel()
        rows = rows_cap(pairs, experts=sizes.experts, tile_m=tile_m)
        m_tiles = max_m_tiles(pairs, experts=sizes.experts, tile_m=tile_m)
        activations = torch.randn(routes.rows, sizes.intermediate, generator=generator(tokens), device=DEVICE)
        quantised_rows = reference.quantise_intermediate(activations.bfloat16())
        buffer = reference_rows.arrange_rows(*quantised_rows, ARCH, rows, tile_m)
        alpha = 0.5 + torch.rand(sizes.experts, generator=generator(tokens), device=DEVICE)
        found = torch.full((2, pairs, sizes.hidden), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        for out, (csf_inline, scales) in zip(found, forms(layer), strict=True):
            payload = SplitFc2Payload(
                hidden=sizes.hidden, intermediate=sizes.intermediate, tile_m=tile_m, csf_inline=csf_inline
            )
            tables = (plan.token_map, plan.row_weight, plan.tile_expert, plan.tile_valid, plan.tile_count)
            session.program(payload).bind(
                buffer, layer.words, *scales, *tables, alpha, out, pairs, sizes.experts, rows, m_tiles
            ).launch()
        torch.cuda.synchronize()
        require(same_bits(found[0], found[1]), f"forms differ in {int((found[0] != found[1]).sum())} places")
        is_nowhere = ((ids < 0) | (ids >= sizes.experts)).view(-1)
        require(bool(found[0][is_nowhere].isnan().all()), "a row of a route to nowhere was written")
        wanted = reference_grouped.split_fc2(*quantised_rows, layer.codes, layer.scales, routes, pairs, alpha=alpha)
        live, live_wanted = found[0][~is_nowhere], wanted[~is_nowhere]
        require(bool(live.isfinite().all()) and bool(live.any()), "results are not finite, or all zero")
        errors.append(relative_l2(live, live_wanted))
        require(errors[-1] <= TOLERANCE, f"relative L2 error {errors[-1]:.3e} against float64")
    return {
        "compared_with": "the other form of scales bit for bit, float64 reference",
        "live_tokens": LIVE_TOKENS,
        "relative_l2_max": max(errors),
        "tolerance": TOLERANCE,
    }


def check_csf_decode(session: Session, experts: int, payload: CsfDecodePayload) -> dict[str, Any]:
    """Decode a batch over 0xFF; present experts give the native plane, absent ones keep their bytes."""
    geometry = ScaleGeometry(rows=payload.rows, columns=payload.columns, group_rows=payload.group_rows)
    plane = native_plane(geometry, synthetic_scales(geometry, experts, generator(1)))
    batch = csf_batch.encode(geometry, plane)
    presence = (torch.rand(experts, generator=generator(2), device=DEVICE) < 0.5).to(torch.uint8)
    found = torch.full_like(plane, POISON)
    parts = (batch.bases, batch.selectors, batch.exceptions.view(torch.int32), batch.task_offsets)
    session.program(payload).bind(*parts, presence, found, experts).launch()
    torch.cuda.synchronize()
    wanted = torch.where(presence.bool().unsqueeze(-1), plane, torch.full_like(plane, POISON))
    require(torch.equal(found, wanted), f"{int((found != wanted).sum())} bytes differ")
    return {"compared_with": "native plane", "experts": experts}


def check_csf_presence(session: Session, payload: CsfPresencePayload, sizes: Sizes) -> dict[str, Any]:
    """Mark the experts of routes over 0xFF; exactly those of valid routes are marked."""
    for tokens in LIVE_TOKENS:
        ids = spoilt_ids(sizes, tokens, ID_TYPES[payload.id_bits])
        found = torch.full((payload.experts,), POISON, dtype=torch.uint8, device=DEVICE)
        session.program(payload).bind(ids, found, ids.numel()).launch()
        wanted = torch.zeros_like(found)
        wanted[ids[(ids >= 0) & (ids < payload.experts)].long().unique()] = 1
        require(torch.equal(found, wanted), f"presence of {tokens} tokens differs")
    return {"compared_with": "torch reference", "tokens": LIVE_TOKENS}
