"""What the MoE kernels must compute: exact quantisation in torch, products in float64. For CPU and CUDA tensors."""

from collections.abc import Iterator

import torch
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ROW_TILE,
    intermediate_bytes,
    intermediate_scale_offset,
    layout,
    padded_width,
)

__all__ = [
    "activation_scales",
    "arrange_activations",
    "arrange_intermediate",
    "cosine",
    "dequantise_mxfp4",
    "dequantise_mxfp8",
    "exact_layer",
    "intermediate_planes",
    "join_parts",
    "micro_activation",
    "micro_fc1",
    "micro_fc2",
    "micro_layer",
    "quantise_intermediate",
    "quantise_mxfp8",
    "scale_values",
    "sum_routes",
]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0


def quantise_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise to E4M3 with one E8M0 scale per 32 elements, in K order.

    Parameters
    ----------
    x : Tensor
        ``(rows, K)`` bf16 or f32, K a multiple of 32.

    Returns
    -------
    payload : Tensor
        ``(rows, K)`` uint8.
    scales : Tensor
        ``(rows, K / 32)`` uint8.

    Notes
    -----
    The scale is the power of two at or above ``amax / 448`` (one fp32 multiplication by 1/448), so no finite value
    saturates; subnormal inputs follow the same rule. Elements round to nearest even and zeros keep their sign.
    A block of zeros has scale byte 127. A block that holds an infinity or a NaN has scale byte 255 and
    payload 0x7F throughout: everything computed from it is NaN.
    """
    blocks = x.float().unflatten(-1, (-1, GROUP))
    amax = blocks.abs().amax(-1)
    scaled = amax * torch.tensor(1.0 / E4M3_MAX, dtype=torch.float32, device=x.device)
    scales = (scaled.view(torch.int32) + 0x7FFFFF) >> 23
    scales = torch.where(amax == 0, 127, scales)
    factors = ((254 - scales) << 23).view(torch.float32)
    rounded = (blocks * factors.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    is_finite = torch.isfinite(amax)
    payload = torch.where(is_finite.unsqueeze(-1), rounded.view(torch.uint8), 0x7F)
    scales = torch.where(is_finite, scales, 255)
    return payload.to(torch.uint8).flatten(-2), scales.to(torch.uint8)


def arrange_activations(payload: Tensor, arch: str) -> Tensor:
    """Reorder ``(rows, K)`` bytes from K order to the order an architecture stores."""
    order = torch.tensor(layout(arch).activation_order, device=payload.device)
    return payload.unflatten(-1, (-1, GROUP))[..., order].flatten(-2).contiguous()


def activation_scales(scales: Tensor, arch: str) -> Tensor:
    """Turn E8M0 bytes into the scale plane an architecture stores: the bytes, or ``byte << 23`` as f32."""
    if layout(arch).activation_scale_dtype == "u8":
        return scales.contiguous()
    return (scales.to(torch.int32) << 23).view(torch.float32)


def scale_values(scales: Tensor) -> Tensor:
    """Return 2^(byte-127) in float64; byte 0 counts as 0.0, byte 255 is NaN."""
    # 1023 is the exponent bias of float64: the scale is written as the exponent field, hence exact.
    values = ((scales.to(torch.int64) + (1023 - 127)) << 52).view(torch.float64)
    values = torch.where(scales == 0, 0.0, values)
    return torch.where(scales == 255, torch.nan, values)


def dequantise_mxfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """Return float64 ``(..., K)`` of E2M1 codes and their E8M0 bytes.

    Parameters
    ----------
    codes : Tensor
        ``(..., K / 2)`` uint8, even K in the low nibble.
    scales : Tensor
        ``(..., K / 32)`` uint8.

    Raises
    ------
    InvalidWeights
        The scales do not fit the codes.
    """
    if (*codes.shape[:-1], codes.shape[-1] // 16) != tuple(scales.shape):
        found, expected = f"of shape {tuple(scales.shape)}", f"one byte per 16 code bytes of {tuple(codes.shape)}"
        raise errors.InvalidWeights("scales", found, expected)
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64, device=codes.device)
    elements = table[torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()]
    return (elements.unflatten(-1, (-1, GROUP)) * scale_values(scales).unsqueeze(-1)).flatten(-2)


def dequantise_mxfp8(payload: Tensor, scales: Tensor) -> Tensor:
    """Return float64 ``(rows, K)`` of E4M3 bytes in K order and their E8M0 bytes ``(rows, K / 32)``."""
    elements = payload.contiguous().view(torch.float8_e4m3fn).to(torch.float64)
    return (elements.unflatten(-1, (-1, GROUP)) * scale_values(scales).unsqueeze(-1)).flatten(-2)


def micro_fc1(x: Tensor, codes: Tensor, scales: Tensor, topk_ids: Tensor, *, alpha: Tensor | None = None) -> Tensor:
    """Compute the first projection of every route with the roundings of the micro kernels.

    They sum K in parts, in fp32: ``micro_fc1`` each of them, ``micro_act`` all, which then has these values.

    Parameters
    ----------
    x : Tensor
        ``(tokens, hidden)`` bf16; it is quantised to MXFP8 first.
    codes, scales : Tensor
        ``(experts, 2 * intermediate, hidden / 2)`` and ``(..., hidden / 32)`` uint8, up rows first.
    topk_ids : Tensor
        ``(tokens, top_k)`` int32 or int64.
    alpha : Tensor, optional
        ``(experts,)`` f32 factors; ones by default.

    Returns
    -------
    Tensor
        ``(tokens * top_k, 2 * intermediate)`` bf16, gate columns first. Rows of invalid experts, which the kernels
        leave alone, are NaN.

    Notes
    -----
    Expert by expert, so memory is bounded by one dequantised expert and the result.
    """
    activations = dequantise_mxfp8(*quantise_mxfp8(x))
    experts, rows = codes.shape[:2]
    projections = torch.full((topk_ids.numel(), rows), torch.nan, dtype=torch.bfloat16, device=x.device)
    for expert, pairs in pairs_by_expert(topk_ids, experts):
        weights = dequantise_mxfp4(codes[expert], scales[expert])
        sums = activations[pairs // topk_ids.shape[-1]] @ weights.T
        if alpha is not None:
            sums = sums * alpha[expert].double()
        up, gate = sums.chunk(2, dim=-1)
        projections[pairs] = torch.cat((gate, up), dim=-1).to(torch.bfloat16)
    return projections


def join_parts(parts: Tensor, topk_ids: Tensor, alpha: Tensor) -> Tensor:
    """Join the parts of every route's first projection as ``micro_act`` does, bit for bit.

    Parameters
    ----------
    parts : Tensor
        ``(parts, pairs, 2 * intermediate)`` f32, gate columns first.
    topk_ids : Tensor
        Expert ids, one per pair, of any shape.
    alpha : Tensor
        ``(experts,)`` f32 factors.

    Returns
    -------
    Tensor
        ``(pairs, 2 * intermediate)`` bf16: the sums in the order of the parts, times the factor. Rows of invalid
        experts, which the kernel does not read, are NaN.
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    projections = torch.full_like(total, torch.nan, dtype=torch.bfloat16)
    for expert, pairs in pairs_by_expert(topk_ids, len(alpha)):
        projections[pairs] = (total[pairs] * alpha[expert]).to(torch.bfloat16)
    return projections


def pairs_by_expert(topk_ids: Tensor, experts: int) -> Iterator[tuple[int, Tensor]]:
    """Yield every expert some route asks for, with the indices of its pairs; invalid ids are left out."""
    ids = topk_ids.reshape(-1)
    for expert in ids.unique().tolist():
        if 0 <= expert < experts:
            yield expert, (ids == expert).nonzero().squeeze(-1)


def silu_product(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """Return silu(gate) * up of float64 columns; NaN stays NaN under the limit."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def micro_activation(projections: Tensor, topk_ids: Tensor, experts: int, *, limit: float | None = None) -> Tensor:
    """Compute ``bf16(silu(gate) * up)`` of every route.

    Parameters
    ----------
    projections : Tensor
        ``(pairs, 2 * intermediate)`` bf16, gate columns first.
    topk_ids : Tensor
        Expert ids, one per pair, of any shape.
    experts : int
        Ids outside 0..experts-1 are invalid.
    limit : float, optional
        Bound L: gate is at most L, up within -L..L. None: unbounded.

    Returns
    -------
    Tensor
        ``(pairs, intermediate)`` bf16. Rows of invalid experts, which the kernels leave alone, are NaN.
    """
    gate, up = projections.double().chunk(2, dim=-1)
    ids = topk_ids.reshape(-1, 1)
    is_valid = (ids >= 0) & (ids < experts)
    return torch.where(is_valid, silu_product(gate, up, limit), torch.nan).to(torch.bfloat16)


def quantise_intermediate(activations: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``(pairs, intermediate)`` bf16 to MXFP8 of whole tiles.

    Returns
    -------
    payload : Tensor
        ``(pairs, padded_width)`` uint8, in K order.
    scales : Tensor
        ``(pairs, padded_width / 32)`` uint8.

    Notes
    -----
    As :func:`quantise_mxfp8`; columns that only pad the last tile have zero payload and zero scale bytes.
    """
    payload, scales = quantise_mxfp8(activations)
    missing = padded_width(activations.shape[-1]) - activations.shape[-1]
    pad = torch.nn.functional.pad
    return pad(payload, (0, missing)), pad(scales, (0, missing // GROUP))


def intermediate_planes(buffer: Tensor, arch: str, rows: int, intermediate: int) -> tuple[Tensor, Tensor]:
    """View a stored intermediate of ``rows`` capacity rows as its payload and its scales.

    Returns
    -------
    payload : Tensor
        ``(rows, padded_width)`` uint8 view, in the byte order of the architecture.
    scales : Tensor
        ``(rows, tiles, 4)`` view, the four scales of a row and a 128-column tile: uint8, or f32 where the
        architecture stores floats.
    """
    width = padded_width(intermediate)
    first = intermediate_scale_offset(arch, rows, intermediate, 0, 0)
    plane = buffer[first : intermediate_bytes(arch, rows, intermediate)]
    plane = plane.view(torch.float32 if layout(arch).activation_scale_dtype == "f32" else torch.uint8)
    scales = plane.view(width // ROW_TILE, rows, ROW_TILE // GROUP).transpose(0, 1)
    return buffer[: rows * width].view(rows, width), scales


def arrange_intermediate(payload: Tensor, scales: Tensor, arch: str, rows: int) -> Tensor:
    """Store a quantised intermediate as an architecture does.

    Parameters
    ----------
    payload, scales : Tensor
        ``(pairs, padded_width)`` and ``(pairs, padded_width / 32)`` uint8, in K order, as
        :func:`quantise_intermediate` makes them.
    rows : int
        Capacity, at least ``pairs``. Bytes of rows from ``pairs`` on are 0xFF.

    Returns
    -------
    Tensor
        ``(intermediate_bytes,)`` uint8.
    """
    pairs, width = payload.shape
    size = intermediate_bytes(arch, rows, width)
    buffer = torch.full((size,), 0xFF, dtype=torch.uint8, device=payload.device)
    stored, stored_scales = intermediate_planes(buffer, arch, rows, width)
    stored[:pairs] = arrange_activations(payload, arch)
    stored_scales[:pairs] = activation_scales(scales, arch).view(pairs, width // ROW_TILE, ROW_TILE // GROUP)
    return buffer


def micro_fc2(
    payload: Tensor,
    payload_scales: Tensor,
    codes: Tensor,
    scales: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    alpha: Tensor | None = None,
) -> Tensor:
    """Compute the second projection of every route from a quantised intermediate.

    Parameters
    ----------
    payload, payload_scales : Tensor
        ``(pairs, padded_width)`` and ``(pairs, padded_width / 32)`` uint8, in K order. Padding is not read.
    codes, scales : Tensor
        ``(experts, hidden, intermediate / 2)`` and ``(..., intermediate / 32)`` uint8.
    topk_ids, topk_weights : Tensor
        Expert ids, int32 or int64, and f32 factors, one per pair, of any shape.
    alpha : Tensor, optional
        ``(experts,)`` f32 factors; ones by default.

    Returns
    -------
    Tensor
        ``(pairs, hidden)`` bf16, ``bf16(alpha * weight * product)``; zeros for invalid experts.
    """
    experts, hidden = codes.shape[:2]
    intermediate = 2 * codes.shape[-1]
    activations = dequantise_mxfp8(payload[:, :intermediate], payload_scales[:, : intermediate // GROUP])
    routes = torch.zeros((topk_ids.numel(), hidden), dtype=torch.bfloat16, device=codes.device)
    factors = topk_weights.reshape(-1, 1).double()
    for expert, pairs in pairs_by_expert(topk_ids, experts):
        sums = activations[pairs] @ dequantise_mxfp4(codes[expert], scales[expert]).T * factors[pairs]
        if alpha is not None:
            sums = sums * alpha[expert].double()
        routes[pairs] = sums.to(torch.bfloat16)
    return routes


def micro_layer(
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
    """Compute a whole MoE layer with every rounding of the micro kernels.

    The input is quantised to MXFP8, gate and up are bf16, their silu product is bf16 and then MXFP8, route rows are
    bf16, and their sum in route order is fp32, rounded once.

    Parameters
    ----------
    x : Tensor
        ``(tokens, hidden)`` bf16.
    w13_codes, w13_scales, w2_codes, w2_scales : Tensor
        Logical codes and E8M0 bytes of both projections, as for :func:`micro_fc1` and :func:`micro_fc2`.
    topk_ids, topk_weights : Tensor
        ``(tokens, top_k)`` expert ids and f32 factors. Routes with an id outside the experts contribute zero.
    alpha1, alpha2 : Tensor, optional
        ``(experts,)`` f32 factors of the projections; ones by default.
    limit : float, optional
        Bound of gate and up, as for :func:`micro_activation`.

    Returns
    -------
    Tensor
        ``(tokens, hidden)`` bf16.
    """
    projections = micro_fc1(x, w13_codes, w13_scales, topk_ids, alpha=alpha1)
    activations = micro_activation(projections, topk_ids, len(w13_codes), limit=limit)
    intermediate = quantise_intermediate(activations)
    routes = micro_fc2(*intermediate, w2_codes, w2_scales, topk_ids, topk_weights, alpha=alpha2)
    return sum_routes(routes, topk_ids.shape[-1])


def exact_layer(
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
    """Compute a whole MoE layer in float64 without any rounding of activations: a coarse bar for every backend.

    Parameters as for :func:`micro_layer`; returns ``(tokens, hidden)`` float64.
    """
    tokens, top_k = topk_ids.shape
    total = torch.zeros((tokens, x.shape[-1]), dtype=torch.float64, device=x.device)
    factors = topk_weights.reshape(-1, 1).double()
    for expert, pairs in pairs_by_expert(topk_ids, len(w13_codes)):
        rows = x[pairs // top_k].double() @ dequantise_mxfp4(w13_codes[expert], w13_scales[expert]).T
        if alpha1 is not None:
            rows = rows * alpha1[expert].double()
        up, gate = rows.chunk(2, dim=-1)
        activations = silu_product(gate, up, limit)
        sums = activations @ dequantise_mxfp4(w2_codes[expert], w2_scales[expert]).T * factors[pairs]
        if alpha2 is not None:
            sums = sums * alpha2[expert].double()
        total.index_add_(0, pairs // top_k, sums)
    return total


def cosine(found: Tensor, expected: Tensor) -> float:
    """Return the cosine of two tensors taken as vectors, accumulated in float64."""
    a, b = found.double().flatten(), expected.double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


def sum_routes(route_output: Tensor, top_k: int) -> Tensor:
    """Sum ``(tokens * top_k, hidden)`` bf16 rows per token in fp32, in route order, rounded once to bf16."""
    routes = route_output.unflatten(0, (-1, top_k)).float()
    total = routes[:, 0]
    for j in range(1, top_k):
        total = total + routes[:, j]
    return total.to(torch.bfloat16)
