"""Reading checkpoints: each rank's slice under every layout, in bounded memory, and what names no layout or layer."""

import json
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from planfreeze.errors import (
    AmbiguousLayout,
    CheckpointMissing,
    ExtraMissing,
    InvalidLayout,
    InvalidRanks,
    MalformedIndex,
    RankOutOfRange,
    UnevenShards,
    UnknownLayer,
    UnknownLayout,
)
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS, CheckpointLayout, MatrixNames
from planfreeze.kernels.moe.checkpoints import open_checkpoint, read_layer
from planfreeze.kernels.moe.weights import pack_w13

from .conftest import MODEL, OWN, SHARE, TP, check, read, write


@pytest.mark.parametrize("is_typed", [False, True], ids=["bytes", "typed"])
@pytest.mark.parametrize("layout", [*KNOWN_LAYOUTS, OWN], ids=lambda layout: layout.name)
def test_every_rank_gets_its_slice_of_every_layout(tmp_path: Path, layout: CheckpointLayout, is_typed: bool) -> None:
    folder = write(tmp_path / "checkpoint", layout=layout, is_typed=is_typed)
    opened = open_checkpoint(folder, layouts=(*KNOWN_LAYOUTS, OWN))
    assert opened.layout == layout
    assert opened.layers == (0, 39)
    for layer in opened.layers:
        for rank in range(TP):
            weights = read_layer(opened, MODEL, layer, tp=TP, rank=rank)
            assert weights.source_order == layout.source_order
            check(weights, layer, rank)


GATE, UP, DOWN = 1, 2, 3
MLP, BLOCK, FEED = "model.layers.4.mlp.experts", "model.layers.4.block_sparse_moe.experts", "layers.4.ffn.experts"
WRITTEN = {
    "projections": (f"{MLP}.0.%s_proj.weight", f"{MLP}.0.%s_proj.weight_scale", ("gate", "up", "down")),
    "projections-scales": (f"{MLP}.0.%s_proj.weight", f"{MLP}.0.%s_proj.scales", ("gate", "up", "down")),
    "projections-packed": (f"{MLP}.0.%s_proj.weight_packed", f"{MLP}.0.%s_proj.weight_scale", ("gate", "up", "down")),
    "block-sparse": (f"{BLOCK}.0.%s.weight", f"{BLOCK}.0.%s.weight_scale", ("w1", "w3", "w2")),
    "block-sparse-scales": (f"{BLOCK}.0.%s.weight", f"{BLOCK}.0.%s.scales", ("w1", "w3", "w2")),
    "feed-forward": (f"{FEED}.0.%s.weight", f"{FEED}.0.%s.scale", ("w1", "w3", "w2")),
    "stacked": (f"{MLP}.%s_proj.weight", f"{MLP}.%s_proj.weight_scale", ("gate_up", "down")),
    "stacked-parameters": (f"{MLP}.%s_proj", f"{MLP}.%s_proj_scale", ("gate_up", "down")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_names_mean_gate_up_and_down(tmp_path: Path, name: str) -> None:
    weight, scale, parts = WRITTEN[name]

    def matrix(value: int, rows: int, columns: int) -> Tensor:
        return torch.full((rows, columns), value, dtype=torch.uint8)

    tensors = {}
    for pattern, per_byte, raised in ((weight, 2, 0), (scale, 32, 100)):
        gate, up = (matrix(value + raised, 384, 512 // per_byte) for value in (GATE, UP))
        down = matrix(DOWN + raised, 512, 384 // per_byte)
        matrices = (gate, up, down) if len(parts) == 3 else (torch.cat((gate, up))[None], down[None])
        tensors |= {pattern % part: held for part, held in zip(parts, matrices, strict=True)}
    save_file(tensors, tmp_path / "model.safetensors")
    opened = open_checkpoint(tmp_path)
    assert opened.layout.name == name and {layout.name for layout in KNOWN_LAYOUTS} == set(WRITTEN)
    weights = read_layer(opened, replace(MODEL, experts=1), 4, tp=TP, rank=1)
    halves = (UP, GATE) if weights.source_order == "up_gate" else (GATE, UP)
    for raised, w13, w2 in ((0, weights.w13, weights.w2), (100, weights.w13_scales, weights.w2_scales)):
        assert [half.unique().tolist() for half in w13[0].split(SHARE)] == [[half + raised] for half in halves]
        assert w2.unique().tolist() == [DOWN + raised]


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_the_number_of_files_does_not_matter(tmp_path: Path, shards: int) -> None:
    folder = write(tmp_path / "checkpoint", shards=shards)
    assert len(list(folder.glob("*.safetensors"))) == shards
    check(read(folder, rank=1), 39, 1)


def test_a_single_file_is_a_checkpoint(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", shards=1)
    check(read(folder / "model.safetensors"), 39, 0)
    renamed = (folder / "model.safetensors").rename(folder / "other.safetensors")
    check(read(renamed), 39, 0)


def test_layouts_of_either_order_pack_to_one_plane(tmp_path: Path) -> None:
    planes = []
    for layout in (KNOWN_LAYOUTS[0], OWN):
        folder = write(tmp_path / layout.name, layout=layout)
        weights = read_layer(open_checkpoint(folder, layouts=(layout,)), MODEL, 0, tp=TP, rank=1)
        planes.append(pack_w13(weights.w13, "sm_90a", source_order=weights.source_order))
    assert torch.equal(*planes)


def test_progress_counts_the_bytes_of_the_result(checkpoint: Path) -> None:
    steps: list[tuple[int, int]] = []
    weights = read(checkpoint, progress=lambda done, total: steps.append((done, total)))
    done = [step[0] for step in steps]
    assert len(steps) == 6 * MODEL.experts and done == sorted(set(done))
    assert {total for _, total in steps} == {weights.size_bytes} == {done[-1]}


def test_memory_is_the_result_and_one_slice(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    read_layer(opened, MODEL, 39, tp=TP, rank=0)  # imports and caches
    tracemalloc.start()
    read_layer(opened, MODEL, 39, tp=TP, rank=1)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        weights = read_layer(opened, MODEL, 39, tp=TP, rank=1)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    # The mapping of a shard counts as an allocation of its size; it is no memory of this process.
    mapped = {path.stat().st_size for path in opened.shards.values()}
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if abs(event.nbytes()) not in mapped:
            held += event.nbytes()
            peak = max(peak, held)
    one_slice = max(weights.w13[0].nbytes // 2, weights.w2[0].nbytes)
    assert weights.size_bytes <= peak <= weights.size_bytes + one_slice
    assert python_peak < one_slice + 64 * 1024  # names and headers


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="neither a folder nor a file"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(CheckpointMissing, match=r"neither model\.safetensors\.index\.json.* and 1 other") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.exit_code == 3
    (tmp_path / "weights.bin").touch()
    with pytest.raises(CheckpointMissing, match=r"does not end in \.safetensors"):
        open_checkpoint(tmp_path / "weights.bin")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": 3}}', "puts a into 3"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "which is no file name"),
        ('{"weight_map": {"a": ".."}}', "which is no file name"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(MalformedIndex, match=reason) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.exit_code == 4


def test_names_of_no_layout_are_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", layout=OWN)
    with pytest.raises(UnknownLayout) as caught:
        open_checkpoint(folder)
    text = str(caught.value)
    assert all(pattern in text for layout in KNOWN_LAYOUTS for pattern in layout.patterns)
    assert "block.0.w2.0.q" in text and caught.value.exit_code == 2


def test_names_of_two_layouts_are_refused(checkpoint: Path) -> None:
    same = replace(KNOWN_LAYOUTS[0], name="same", source_order="gate_up")
    with pytest.raises(AmbiguousLayout, match="projections, same"):
        open_checkpoint(checkpoint, layouts=(*KNOWN_LAYOUTS, same))


NAMES = OWN.w2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w13": ()}, "0 matrices, not 1 or 2"),
        ({"w13": OWN.w13 * 2}, "two tensors have one pattern"),
        ({"source_order": "gate"}, "'gate' is not up_gate or gate_up"),
        ({"w2": MatrixNames(weight="{layer}.q", scale="{layer}.s")}, "w31"),
        ({"w2": MatrixNames(weight="a.{expert}", scale=NAMES.scale)}, "fields"),
        ({"w2": MatrixNames(weight="{layer}.{expert}.{shard}", scale=NAMES.scale)}, "shard"),
        ({"w2": MatrixNames(weight="{layer}.{expert}.{", scale=NAMES.scale)}, "is no pattern"),
    ],
)
def test_a_layout_that_names_no_layer_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidLayout, match=reason):
        replace(OWN, **changes)


def test_numbers_of_names_are_whole(tmp_path: Path) -> None:
    held = {"block.01.w2.0.q": "a", "block.1.w2.0.qq": "a"} | {p.format(layer=2, expert=0): "a" for p in OWN.patterns}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    assert open_checkpoint(tmp_path, layouts=(OWN,)).layers == (2,)


@pytest.mark.parametrize("rank", [-1, 2, True, 1.0])
def test_a_rank_out_of_range_is_refused(checkpoint: Path, rank: object) -> None:
    with pytest.raises(RankOutOfRange, match=r"is not one of 0\.\.1"):
        read_layer(checkpoint, MODEL, 0, tp=TP, rank=rank)


@pytest.mark.parametrize("layer", [1, 38, 40, -1])
def test_a_layer_without_experts_is_refused(checkpoint: Path, layer: int) -> None:
    with pytest.raises(UnknownLayer, match=rf"layer {layer} of .* Layers with experts: 0, 39") as caught:
        read(checkpoint, layer=layer)
    assert caught.value.exit_code == 2


def test_layers_are_listed_as_ranges() -> None:
    assert "experts: 3..5, 9. Name one of them: --layers 3" in str(UnknownLayer("p", 1, (3, 4, 5, 9)))


def test_ranks_that_do_not_divide_the_model_are_refused(checkpoint: Path) -> None:
    with pytest.raises(InvalidRanks):
        read_layer(checkpoint, MODEL, 0, tp=0, rank=0)
    with pytest.raises(UnevenShards):
        read_layer(checkpoint, MODEL, 0, tp=5, rank=0)


def test_without_safetensors_the_extra_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ExtraMissing, match=r"planfreeze\[serve\]"):
        read(checkpoint)
