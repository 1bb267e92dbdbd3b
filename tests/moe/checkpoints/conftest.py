"""A small checkpoint in every layout, and what each rank must read of it."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS, CheckpointLayout, MatrixNames
from planfreeze.kernels.moe.checkpoints import LayerWeights, read_layer
from planfreeze.models import Model

sys.path.append(str(Path(__file__).parents[3] / "tools"))
generate_checkpoint = import_module("generate_checkpoint")
spoil_checkpoint = import_module("checkpoint_defects").spoil_checkpoint

MODEL = Model(name="small", hidden=512, intermediate=384, experts=3, top_k=2, weight_format="mxfp4_csf")
TP, SHARE = 2, 192
RECIPE = generate_checkpoint.Recipe(model=MODEL, layers=(0, 39), seed=5)
OWN = CheckpointLayout(
    name="own",
    w13=(MatrixNames(weight="block.{layer}.w31.{expert}.q", scale="block.{layer}.w31.{expert}.s"),),
    w2=MatrixNames(weight="block.{layer}.w2.{expert}.q", scale="block.{layer}.w2.{expert}.s"),
    source_order="gate_up",
)
STACKED = next(layout for layout in KNOWN_LAYOUTS if layout.is_stacked)
DOWN_SCALE = "model.layers.39.mlp.experts.{expert}.down_proj.weight_scale"
UP_SCALE = "model.layers.39.mlp.experts.{expert}.up_proj.weight_scale"


def write(folder: Path, **changes: object) -> Path:
    generate_checkpoint.write_checkpoint(folder, replace(RECIPE, **changes))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path / "checkpoint")


@pytest.fixture
def spoiled(checkpoint: Path) -> Callable[[str, str], Path]:
    def spoil(defect: str, tensor: str) -> Path:
        spoil_checkpoint(checkpoint, defect, tensor)
        return checkpoint

    return spoil


def read(path: Path, *, layer: int = 39, rank: int = 0, model: Model = MODEL, **options: object) -> LayerWeights:
    return read_layer(path, model, layer, tp=TP, rank=rank, **options)


def expected(layer: int, rank: int, order: tuple[str, str]) -> dict[str, Tensor]:
    """The rank's slice, cut out of the generator's whole matrices."""
    first, last = rank * SHARE, (rank + 1) * SHARE
    fields: dict[str, list[Tensor]] = {"w13": [], "w13_scales": [], "w2": [], "w2_scales": []}
    for expert in range(MODEL.experts):
        for suffix, make, per_byte in (
            ("", generate_checkpoint.matrix_codes, 2),
            ("_scales", generate_checkpoint.matrix_scales, 32),
        ):
            halves = [make(RECIPE, layer, expert, half)[first:last] for half in order]
            fields[f"w13{suffix}"].append(torch.cat(halves))
            down = make(RECIPE, layer, expert, "down")
            fields[f"w2{suffix}"].append(down[:, first // per_byte : last // per_byte])
    return {name: torch.stack(parts) for name, parts in fields.items()}


def check(weights: LayerWeights, layer: int, rank: int) -> None:
    order = ("up", "gate") if weights.source_order == "up_gate" else ("gate", "up")
    for name, tensor in expected(layer, rank, order).items():
        found = getattr(weights, name)
        assert found.dtype == torch.uint8 and found.is_contiguous()
        assert torch.equal(found, tensor), name
