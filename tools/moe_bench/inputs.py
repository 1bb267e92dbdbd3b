"""What every candidate is given: weights of one layer, activations and routes."""

from pathlib import Path
from typing import Protocol

import torch
from h200.layer import Sizes, random_bytes, random_routes, serving_scales
from msgspec import Struct
from torch import Tensor

from planfreeze.kernels.moe.checkpoints import LayerWeights, open_checkpoint, read_layer
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.models import Model, load_model

DEVICE = "cuda"


class Inputs(Struct, frozen=True, kw_only=True, eq=False):
    """One call: ``(tokens, hidden)`` bf16, and ``(tokens, top_k)`` int32 ids and f32 factors."""

    x: Tensor
    ids: Tensor
    factors: Tensor


class Call(Protocol):
    """A call that is ready to be captured; it returns what it wrote, or None."""

    def __call__(self) -> Tensor | None:
        """Enqueue the call."""


class Candidate(Protocol):
    """A layer that is measured."""

    name: str
    note: str

    def bind(self, inputs: Inputs) -> Call:
        """Prepare everything that is not to be timed."""


def make_inputs(sizes: Sizes, tokens: int, routings: int, seed: int) -> list[Inputs]:
    """Make the activations of a call and several routings of it; other seeds give fresh ones."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    x = 0.1 * torch.randn(tokens, sizes.hidden, generator=generator, device=DEVICE).bfloat16()
    made = []
    for _ in range(routings):
        ids = random_routes(tokens, sizes.experts, sizes.top_k, generator).int()
        factors = torch.randn(ids.shape, generator=generator, device=DEVICE).softmax(-1)
        made.append(Inputs(x=x, ids=ids, factors=factors))
    return made


def synthetic_weights(sizes: Sizes, seed: int) -> LayerWeights:
    """Make random codes, and scales about as real checkpoints have them."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    experts, hidden, columns = sizes.experts, sizes.hidden, sizes.intermediate
    fc1 = ScaleGeometry(rows=2 * columns, columns=hidden // 32, group_rows=columns)
    fc2 = ScaleGeometry(rows=hidden, columns=columns // 32, group_rows=hidden)
    return LayerWeights(
        w13=random_bytes(generator, 0, 255, experts, 2 * columns, hidden // 2),
        w13_scales=serving_scales(fc1, experts, generator),
        w2=random_bytes(generator, 0, 255, experts, hidden, columns // 2),
        w2_scales=serving_scales(fc2, experts, generator),
        source_order="up_gate",
    )


def match_checkpoint(folder: Path, sizes: Sizes) -> tuple[Model, int]:
    """Return the model of a checkpoint that has its ``model.toml``, and the ranks that give the measured geometry.

    Raises
    ------
    ValueError
        The model, divided over any number of ranks, is not of the measured geometry.
    """
    model = load_model(str(folder / "model.toml"))
    tp = max(1, model.intermediate // sizes.intermediate)
    found = Sizes(experts=model.experts, hidden=model.hidden, intermediate=model.intermediate // tp, top_k=model.top_k)
    if found != sizes or model.intermediate % tp:
        raise ValueError(f"{folder} holds {found} on {tp} ranks, and {sizes} is measured")
    return model, tp


def checkpoint_weights(folder: Path, sizes: Sizes) -> LayerWeights:
    """Read the first layer of a checkpoint, as the first rank holds it, up rows first; errors as before."""
    model, tp = match_checkpoint(folder, sizes)
    checkpoint = open_checkpoint(folder)
    weights = read_layer(checkpoint, model, checkpoint.layers[0], tp=tp, rank=0, device=DEVICE)
    if weights.source_order == "up_gate":
        return weights
    # References and the Triton layer take the up rows first.
    return LayerWeights(
        w13=weights.w13.roll(sizes.intermediate, 1),
        w13_scales=weights.w13_scales.roll(sizes.intermediate, 1),
        w2=weights.w2,
        w2_scales=weights.w2_scales,
        source_order="up_gate",
    )
