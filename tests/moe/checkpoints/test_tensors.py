"""Tensors of a checkpoint that are missing, too many, of another shape or type, or not numbers: refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from planfreeze.errors import (
    ExpertsDiffer,
    NanScale,
    TensorMissing,
    UnexpectedDtype,
    UnexpectedTensor,
)
from planfreeze.kernels.moe.checkpoints import open_checkpoint

from .conftest import DOWN_SCALE, MODEL, STACKED, UP_SCALE, check, read, spoil_checkpoint, write


def test_only_the_slice_is_looked_at(spoiled: Callable[[str, str], Path]) -> None:
    # The last byte of a matrix belongs to the last rank.
    path = spoiled("nan-scale", DOWN_SCALE.format(expert=1))
    spoiled("nan-scale", UP_SCALE.format(expert=2))
    check(read(path, rank=0), 39, 0)
    with pytest.raises(NanScale):
        read(path, rank=1)


@pytest.mark.parametrize(("pattern", "row", "column"), [(DOWN_SCALE, 511, 11), (UP_SCALE, 383, 15)])
def test_a_nan_scale_is_named_with_its_place(
    spoiled: Callable[[str, str], Path], pattern: str, row: int, column: int
) -> None:
    tensor = pattern.format(expert=2)
    with pytest.raises(NanScale, match=rf"scale at row {row}, column {column} is 255") as caught:
        read(spoiled("nan-scale", tensor), rank=1)
    assert (caught.value.tensor, caught.value.row, caught.value.column) == (tensor, row, column)
    assert caught.value.exit_code == 4


def test_a_nan_scale_of_a_stacked_tensor_is_named_with_its_expert(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", layout=STACKED)
    spoil_checkpoint(folder, "nan-scale", STACKED.w13[0].scale.format(layer=39))
    with pytest.raises(NanScale, match="expert 2, row 767, column 15"):
        read(folder, rank=1)


@pytest.mark.parametrize("defect", ["missing-tensor", "missing-from-shard"])
def test_a_missing_tensor_is_named_with_its_shard(spoiled: Callable[[str, str], Path], defect: str) -> None:
    tensor = DOWN_SCALE.format(expert=1)
    shard = open_checkpoint(spoiled("nan-scale", tensor)).shards[tensor]
    reason = "the index does not list it" if defect == "missing-tensor" else "the index names does not hold it"
    with pytest.raises(TensorMissing, match=reason) as caught:
        read(spoiled(defect, tensor))
    assert (caught.value.tensor, caught.value.layer, caught.value.expert) == (tensor, 39, 1)
    assert str(shard) in str(caught.value) and "layer 39, expert 1" in str(caught.value)


def keep_experts(folder: Path, numbers: Mapping[int, int]) -> None:
    """Rename experts of the index's last layer; those that are not named are taken out."""
    index = folder / "model.safetensors.index.json"
    held = json.loads(index.read_text())["weight_map"]
    kept = {name: shard for name, shard in held.items() if ".layers.39." not in name}
    for old, new in numbers.items():
        stem = "model.layers.39.mlp.experts."
        kept |= {
            name.replace(f"{stem}{old}.", f"{stem}{new}."): shard
            for name, shard in held.items()
            if name.startswith(f"{stem}{old}.")
        }
    index.write_text(json.dumps({"weight_map": kept}))


def test_a_missing_expert_is_named_with_the_shards_of_its_layer(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    keep_experts(checkpoint, {0: 0, 2: 2})
    with pytest.raises(TensorMissing) as caught:
        read(checkpoint)
    layer = {
        str(shard)
        for name, shard in opened.shards.items()
        if name.startswith(("model.layers.39.mlp.experts.0.", "model.layers.39.mlp.experts.2."))
    }
    assert caught.value.expert == 1 and set(caught.value.shard.split(", ")) == layer


@pytest.mark.parametrize("experts", [2, 4, 8])
def test_another_number_of_experts_than_the_model_has_is_refused(checkpoint: Path, experts: int) -> None:
    with pytest.raises(ExpertsDiffer, match=rf"has the experts 0\.\.2, the model {experts} experts") as caught:
        read(checkpoint, model=replace(MODEL, experts=experts))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("experts", [2, 3])
def test_an_expert_behind_a_gap_is_not_passed_over(checkpoint: Path, experts: int) -> None:
    keep_experts(checkpoint, {0: 0, 1: 1, 2: 7})
    with pytest.raises(ExpertsDiffer, match=rf"has the experts 0\.\.1, 7, the model {experts} experts"):
        read(checkpoint, model=replace(MODEL, experts=experts))
    # With room for it the numbers in between are what is missing.
    with pytest.raises(TensorMissing) as caught:
        read(checkpoint, model=replace(MODEL, experts=8))
    assert caught.value.expert == 2


@pytest.mark.parametrize("experts", [2, 4])
def test_another_number_of_stacked_experts_than_the_model_has_is_refused(tmp_path: Path, experts: int) -> None:
    folder = write(tmp_path / "checkpoint", layout=STACKED)
    with pytest.raises(ExpertsDiffer, match=rf"has 3, the model {experts} experts"):
        read(folder, model=replace(MODEL, experts=experts))


def test_one_stacked_tensor_with_another_number_of_experts_has_a_wrong_shape(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", layout=STACKED)
    spoil_checkpoint(folder, "wrong-shape", STACKED.w2.scale.format(layer=39))
    with pytest.raises(UnexpectedTensor, match=r"is U8 \[2, 512, 12\], not U8 or F8_E8M0 \[3, 512, 12\]"):
        read(folder)


@pytest.mark.parametrize(
    ("defect", "found", "error", "status", "hint"),
    [
        ("wrong-shape", r"U8 \[511, 12\]", UnexpectedTensor, 2, "--model FILE"),
        ("wrong-dtype", r"I16 \[512, 12\]", UnexpectedDtype, 4, "sha256sum"),
    ],
)
def test_another_shape_or_type_is_refused_before_anything_is_read(
    spoiled: Callable[[str, str], Path], defect: str, found: str, error: type[Exception], status: int, hint: str
) -> None:
    steps: list[int] = []
    with pytest.raises(UnexpectedTensor, match=rf"is {found}, not U8 or F8_E8M0 \[512, 12\]") as caught:
        read(spoiled(defect, DOWN_SCALE.format(expert=2)), progress=lambda done, total: steps.append(done))
    assert steps == [] and caught.value.tensor == DOWN_SCALE.format(expert=2)
    assert type(caught.value) is error and caught.value.exit_code == status and hint in str(caught.value)


def test_another_type_of_another_shape_is_another_model(checkpoint: Path) -> None:
    tensor = DOWN_SCALE.format(expert=2)
    spoil_checkpoint(checkpoint, "wrong-dtype", tensor)
    spoil_checkpoint(checkpoint, "wrong-shape", tensor)
    with pytest.raises(UnexpectedTensor) as caught:
        read(checkpoint)
    assert type(caught.value) is UnexpectedTensor


def test_codes_are_not_taken_for_scales(checkpoint: Path) -> None:
    tensor = "model.layers.39.mlp.experts.0.down_proj.weight"
    shard = open_checkpoint(checkpoint).shards[tensor]
    tensors = {name: held.clone() for name, held in load_file(shard).items()}
    save_file(tensors | {tensor: tensors[tensor].view(torch.float8_e8m0fnu)}, shard)
    with pytest.raises(UnexpectedDtype, match=r"is F8_E8M0 \[512, 192\], not U8 or I8"):
        read(checkpoint)
