"""Random layers for examples/serving_loop.py, and how many of them a device holds."""

from typing import Any

import torch
from torch import Tensor

from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.plan import MoEPlan
from planfreeze.kernels.moe.rules import ShardedModel
from planfreeze.models import Arm

HEADROOM_BYTES = 4 * 2**30
"""For what is no weight: activations, graphs, intermediates of the preparation, cuBLAS."""
FORMATS: dict[Arm, dict[str, Any]] = {
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "native": {"weight_format": "mxfp4", "is_csf_inline": False},
}
"""What experts of an arm are prepared from. A served model has one format; here the same weights are given in each."""

LOW_SCALE, HIGH_SCALE = 117, 120
DENSE_LOW, DENSE_HIGH, DENSE_ROWS = 107, 122, 2
"""Rows about as large as each other: where a few columns outgrow the rest, all tokens come to the same experts."""
EXCEPTION_STRIDE = 3331
"""One scale in so many is off the two values of its row, 0.03 %; checkpoints have about as many. A prime number."""


def source_shapes(sharded: ShardedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's logical weights, all of them bytes, as :func:`prepare_experts` takes them."""
    experts, hidden, columns = sharded.model.experts, sharded.model.hidden, sharded.intermediate
    return {
        "w13": (experts, 2 * columns, hidden // 2),
        "w13_scales": (experts, 2 * columns, hidden // GROUP),
        "w2": (experts, hidden, columns // 2),
        "w2_scales": (experts, hidden, columns // GROUP),
    }


def layer_bytes(sharded: ShardedModel) -> int:
    """Return what one layer takes at most: the codes, and scales that were never compressed."""
    return sum(torch.Size(shape).numel() for shape in source_shapes(sharded).values())


def count_weight_sets(plan: MoEPlan, layers: int, free_bytes: int) -> int:
    """Return how many layers get weights of their own; the others take turns on these.

    Parameters
    ----------
    plan : MoEPlan
        How the layers are served.
    layers : int
        Layers of the model.
    free_bytes : int
        What the device has left.
    """
    each = layer_bytes(plan.sharded)
    # Beside them: the layer that is being prepared, and the scratch that all share.
    usable = free_bytes - each - plan.scratch.workspace - HEADROOM_BYTES
    return max(1, min(layers, usable // each))


def allocate_sources(sharded: ShardedModel, device: str) -> dict[str, Tensor]:
    """Allocate the logical weights of one layer. All layers are drawn into them, one after the other."""
    return {
        name: torch.empty(shape, dtype=torch.uint8, device=device) for name, shape in source_shapes(sharded).items()
    }


def draw_layer(sources: dict[str, Tensor], number: int) -> None:
    """Draw the layer of a number, the same one for every arm: any codes, and scales about as checkpoints have them."""
    generator = torch.Generator(sources["w13"].device).manual_seed(number)
    for name, tensor in sources.items():
        if not name.endswith("_scales"):
            tensor.random_(0, 256, generator=generator)
            continue
        experts, rows, columns = tensor.shape
        base = torch.empty(experts, rows, 1, dtype=torch.uint8, device=tensor.device)
        tensor.random_(0, 2, generator=generator).add_(base.random_(LOW_SCALE, HIGH_SCALE + 1, generator=generator))
        tensor.view(-1)[::EXCEPTION_STRIDE] += 2
        dense = torch.empty(experts, DENSE_ROWS, columns, dtype=torch.uint8, device=tensor.device)
        middle = rows // 2
        tensor[:, middle : middle + DENSE_ROWS] = dense.random_(DENSE_LOW, DENSE_HIGH + 1, generator=generator)


def prepare_layers(plan: MoEPlan, count: int, device: str) -> list[PreparedExperts]:
    """Draw and prepare layers for the arm of a plan."""
    sources = allocate_sources(plan.sharded, device)
    prepared = []
    for number in range(count):
        draw_layer(sources, number)
        prepared.append(prepare_experts(**sources, arch=plan.arch, **FORMATS[plan.arm]))
    return prepared
