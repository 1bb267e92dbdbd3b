"""Layers computed route by route, which the references are held against, and where they may round."""

import torch

from planfreeze.kernels.moe.reference import dequantise_mxfp4, dequantise_mxfp8, quantise_mxfp8


def compute_by_route(layer, *, round_input, round_projections, round_activations, round_routes, limit=None):
    """Compute a layer route by route; each rounding is a function of its own."""
    w13, w2 = dequantise_mxfp4(*layer.w13), dequantise_mxfp4(*layer.w2)
    out = torch.zeros(layer.tokens, layer.hidden, dtype=torch.float64)
    for token in range(layer.tokens):
        for j in range(layer.top_k):
            expert = int(layer.ids[token, j])
            if not 0 <= expert < layer.experts:
                continue
            x = round_input(layer.x[token].double())
            rows = round_projections(w13[expert] @ x * layer.alpha1[expert].double())
            up, gate = rows[: layer.intermediate], rows[layer.intermediate :]
            if limit is not None:
                up, gate = up.clip(-limit, limit), gate.clip(max=limit)
            activations = round_activations(gate * torch.sigmoid(gate) * up)
            factor = layer.weights[token, j].double() * layer.alpha2[expert].double()
            out[token] += round_routes(w2[expert] @ activations * factor)
    return out


def exactly(values):
    return values


def to_bf16(values):
    return values.bfloat16().double()


def to_mxfp8(values):
    return dequantise_mxfp8(*quantise_mxfp8(values.bfloat16().view(1, -1)))[0]


def relative_l2(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()
