"""Layers of direct routes under test: their plans and inputs, and how results are compared."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from planfreeze.kernels.moe.experts import PreparedExperts
from planfreeze.kernels.moe.op import MoELayer
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.models import Arm, PlanOptions, load_model
from planfreeze.target import target

ROOT = Path(__file__).parents[2]
PLAN, ARCH, TP = "ds41-tp4-sm_90a", "sm_90a", 4
# No direct-route program knows the number of experts: eight of them take the programs of all 384.
MODEL = dataclasses.replace(load_model("ds41"), experts=8)
ARMS: tuple[Arm, ...] = ("inline", "native")
DTYPES = (torch.int32, torch.int64)
LIVE_TOKENS = (1, 3, 5, 8)
POISON = 0xFF


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("micro_decode", ROOT / "examples/micro_decode.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = load_example()


def plan(arm: Arm, *, capacities: tuple[int, ...] = (8,), **changes: Any) -> MoEPlan:
    options = PlanOptions(inline_limit=1536, capacities=capacities, arms=(arm,))
    return declare(dataclasses.replace(MODEL, **changes), tp=TP, target=target(ARCH), options=options)


def inputs(tokens: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, routes and factors; one route of the last token goes to no expert."""
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = 0.1 * torch.randn(tokens, MODEL.hidden, generator=generator, device="cuda")
    ranks = torch.rand(tokens, MODEL.experts, generator=generator, device="cuda")
    ids = ranks.argsort(1)[:, : MODEL.top_k].to(dtype).contiguous()
    ids[-1:, 0] = MODEL.experts
    factors = torch.randn(tokens, MODEL.top_k, generator=generator, device="cuda").softmax(-1)
    return x.bfloat16(), ids, factors


def reference_layer(
    compute: Callable[..., Tensor], weights: Any, experts: PreparedExperts, x: Tensor, ids: Tensor, factors: Tensor
) -> Tensor:
    return compute(
        x,
        weights.w13,
        weights.w13_scales,
        weights.w2,
        weights.w2_scales,
        ids,
        factors,
        alpha1=experts.alpha1,
        alpha2=experts.alpha2,
        limit=MODEL.activation_limit,
    )


def relative_l2(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def poison(layer: MoELayer) -> None:
    layer.workspace.fill_(POISON)
