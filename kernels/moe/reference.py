"""What the MoE kernels must compute: exact quantisation in torch, products in float64. For CPU and CUDA tensors."""

import torch
from torch import Tensor

from planfreeze.errors import InvalidWeights
from planfreeze.kernels.moe.geometry import GROUP, layout

__all__ = [
    "activation_scales",
    "arrange_activations",
    "dequantise_mxfp4",
    "dequantise_mxfp8",
    "micro_fc1",
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
        raise InvalidWeights("scales", found, expected)
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64, device=codes.device)
    elements = table[torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()]
    return (elements.unflatten(-1, (-1, GROUP)) * scale_values(scales).unsqueeze(-1)).flatten(-2)


def dequantise_mxfp8(payload: Tensor, scales: Tensor) -> Tensor:
    """Return float64 ``(rows, K)`` of E4M3 bytes in K order and their E8M0 bytes ``(rows, K / 32)``."""
    elements = payload.contiguous().view(torch.float8_e4m3fn).to(torch.float64)
    return (elements.unflatten(-1, (-1, GROUP)) * scale_values(scales).unsqueeze(-1)).flatten(-2)


def micro_fc1(x: Tensor, codes: Tensor, scales: Tensor, topk_ids: Tensor, *, alpha: Tensor | None = None) -> Tensor:
    """Compute the first projection of every route with the roundings of the micro kernels.

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
    ids = topk_ids.reshape(-1)
    projections = torch.full((ids.numel(), rows), torch.nan, dtype=torch.bfloat16, device=x.device)
    for expert in ids.unique().tolist():
        if not 0 <= expert < experts:
            continue
        pairs = (ids == expert).nonzero().squeeze(-1)
        weights = dequantise_mxfp4(codes[expert], scales[expert])
        sums = activations[pairs // topk_ids.shape[-1]] @ weights.T
        if alpha is not None:
            sums = sums * alpha[expert].double()
        up, gate = sums.chunk(2, dim=-1)
        projections[pairs] = torch.cat((gate, up), dim=-1).to(torch.bfloat16)
    return projections


def sum_routes(route_output: Tensor, top_k: int) -> Tensor:
    """Sum ``(tokens * top_k, hidden)`` bf16 rows per token in fp32, in route order, rounded once to bf16."""
    routes = route_output.unflatten(0, (-1, top_k)).float()
    total = routes[:, 0]
    for j in range(1, top_k):
        total = total + routes[:, j]
    return total.to(torch.bfloat16)
