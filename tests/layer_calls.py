"""Calls of layers under test: random ones, what a reference makes of them, and how results are compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from planfreeze.models import Model


def random_call(model: Model, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, routes and factors on the GPU; one route of the last token goes to no expert."""
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = 0.1 * torch.randn(tokens, model.hidden, generator=generator, device="cuda")
    ranks = torch.rand(tokens, model.experts, generator=generator, device="cuda")
    ids = ranks.argsort(1)[:, : model.top_k].to(dtype).contiguous()
    ids[-1:, 0] = model.experts
    factors = torch.randn(tokens, model.top_k, generator=generator, device="cuda").softmax(-1)
    return x.bfloat16(), ids, factors


def reference_layer(
    compute: Callable[..., Tensor], model: Model, weights: Any, alphas: Any, x: Tensor, ids: Tensor, factors: Tensor
) -> Tensor:
    """What a reference makes of a call; ``weights`` has codes and scales, ``alphas`` the factors of experts."""
    operands = (x, weights.w13, weights.w13_scales, weights.w2, weights.w2_scales, ids, factors)
    return compute(*operands, alpha1=alphas.alpha1, alpha2=alphas.alpha2, limit=model.activation_limit)


def relative_l2(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))
