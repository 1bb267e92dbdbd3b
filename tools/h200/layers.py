"""Whole layers on a device: every arm at every token count, compared bit for bit and with float64, and timed."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from checks import DEVICE, TOLERANCE, generator, relative_l2, require, same_bits
from layer import ARCH, Sizes, random_bytes, random_routes, serving_scales
from timings import median_us
from torch import Tensor

from planfreeze.kernels.moe import op, plan, reference, reference_grouped
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.geometry import is_compact
from planfreeze.kernels.moe.rules import Backend
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.sessions import Session
from planfreeze.target import target

ARMS: dict[Arm, dict[str, Any]] = {
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
}
TOKENS = (1, 8, 17, 64, 512, 1536, 2048)
INLINE_LIMIT = 1536


def check_layer(session: Session, model: Model, sizes: Sizes, *, tp: int) -> dict[str, Any]:
    """Run all arms of a model's layer; return per token count the error, and microseconds of every arm."""
    weights = make_weights(sizes)
    arms: tuple[Arm, ...] = tuple(arm for arm in ARMS if arm != "inline" or is_compact(sizes.intermediate))
    figures: dict[str, Any] = {}
    layers = {arm: bind_arm(session, model, tp, arm, prepare_arm(weights, arm)) for arm in arms}
    for tokens in TOKENS:
        seed = generator(tokens)
        x = 0.1 * torch.randn(tokens, sizes.hidden, generator=seed, device=DEVICE).bfloat16()
        ids = random_routes(tokens, sizes.experts, sizes.top_k, seed)
        ids[-1, 0] = sizes.experts
        factors = torch.randn(ids.shape, generator=seed, device=DEVICE).softmax(-1)
        outs = {arm: torch.full_like(x, torch.nan) for arm in arms}
        calls: dict[str, list[Callable[[], None]]] = {}
        for arm, layer in layers.items():
            layer.workspace.fill_(0xFF)
            layer.run(x, ids, factors, outs[arm])
            calls[arm] = [partial(run, layer, x, ids, factors, outs[arm])]
        torch.cuda.synchronize()
        for arm, out in outs.items():
            require(same_bits(out, outs["native"]), f"{arm} differs from native at {tokens} tokens")
        is_micro = layers["native"].plan.choose(tokens).backend is Backend.MICRO
        compute = reference.micro_layer if is_micro else reference_grouped.grouped_layer
        error = relative_l2(outs["native"], compute(x, *weights.values(), ids, factors))
        require(error <= TOLERANCE, f"relative L2 error {error:.3e} against float64 at {tokens} tokens")
        figures[str(tokens)] = {"relative_l2": error, "us": median_us(calls)}
    return figures


def run(layer: op.MoELayer, x: Tensor, ids: Tensor, factors: Tensor, out: Tensor) -> None:
    """Run one call."""
    layer.run(x, ids, factors, out)


def make_weights(sizes: Sizes) -> dict[str, Tensor]:
    """Make logical weights of both projections, scales about as real checkpoints have them."""
    seed = generator(7)
    experts, hidden, columns = sizes.experts, sizes.hidden, sizes.intermediate
    fc1 = ScaleGeometry(rows=2 * columns, columns=hidden // 32, group_rows=columns)
    fc2 = ScaleGeometry(rows=hidden, columns=columns // 32, group_rows=hidden)
    return {
        "w13": random_bytes(seed, 0, 255, experts, 2 * columns, hidden // 2),
        "w13_scales": serving_scales(fc1, experts, seed),
        "w2": random_bytes(seed, 0, 255, experts, hidden, columns // 2),
        "w2_scales": serving_scales(fc2, experts, seed),
    }


def prepare_arm(weights: dict[str, Tensor], arm: Arm) -> PreparedExperts:
    """Prepare the experts of one arm."""
    return prepare_experts(**weights, arch=ARCH, **ARMS[arm])


def bind_arm(session: Session, model: Model, tp: int, arm: Arm, experts: PreparedExperts) -> op.MoELayer:
    """Bind the layer of one arm at the model's capacities."""
    options = PlanOptions(inline_limit=INLINE_LIMIT, arms=(arm,))
    return op.bind(plan.declare(model, tp=tp, target=target(ARCH), options=options), session, experts)


def print_layers(figures: dict[str, dict[str, Any]]) -> None:
    """Print geometry by tokens by arms."""
    for name, by_tokens in figures.items():
        for tokens, found in by_tokens.items():
            arms = "  ".join(f"{arm} {timed['median']:8.1f} us" for arm, timed in found["us"].items())
            sys.stdout.write(f"{name:24} {tokens:>5}  same bits  error {found['relative_l2']:.1e}  {arms}\n")
