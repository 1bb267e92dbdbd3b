"""Reading checkpoints: each rank's slice under every layout, in bounded memory, and every damage refused by name."""

import json
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from planfreeze.errors import (
    AmbiguousLayout,
    CheckpointMissing,
    DamagedShard,
    ExpertsDiffer,
    ExtraMissing,
    InvalidLayout,
    InvalidRanks,
    MalformedIndex,
    NanScale,
    RankOutOfRange,
    ShardIsText,
    ShardMissing,
    TensorMissing,
    TruncatedShard,
    UnevenShards,
    UnexpectedDtype,
    UnexpectedTensor,
    UnknownLayer,
    UnknownLayout,
)
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS, CheckpointLayout, MatrixNames
from planfreeze.kernels.moe.checkpoints import LayerWeights, open_checkpoint, read_layer
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.models import Model

sys.path.append(str(Path(__file__).parents[2] / "tools"))
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


def test_a_missing_shard_is_named(spoiled: Callable[[str, str], Path]) -> None:
    with pytest.raises(ShardMissing, match=r"model-0000.-of-00003\.safetensors cannot be read: No such file") as caught:
        read(spoiled("missing-shard", DOWN_SCALE.format(expert=2)))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kept", ["half", "all but one", "half a header", "four bytes", "nothing"])
def test_a_shard_that_is_cut_off_is_refused_with_both_lengths(checkpoint: Path, kept: str) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    whole = shard.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    length = {
        "half": len(whole) // 2,
        "all but one": len(whole) - 1,
        "half a header": header // 2,
        "four bytes": 4,
        "nothing": 0,
    }[kept]
    needed = {"half": len(whole), "all but one": len(whole), "half a header": header}.get(kept)
    shard.write_bytes(whole[:length])
    with pytest.raises(TruncatedShard, match=f"has {length} bytes") as caught:
        read(checkpoint)
    assert needed is None or caught.value.expected_bytes == needed
    assert caught.value.shard == str(shard)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda whole: whole + b"\0\0", "2 bytes follow the last tensor"),
        (lambda whole: whole.replace(b'"dtype"', b'"dtipe"', 1), "KeyError"),
        (lambda whole: whole[:8] + b"[" + whole[9:], "header cannot be read"),
    ],
)
def test_a_shard_with_another_header_is_refused(
    checkpoint: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    shard.write_bytes(change(shard.read_bytes()))
    with pytest.raises(DamagedShard, match=reason):
        read(checkpoint)


POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


@pytest.mark.parametrize(
    ("content", "shown", "is_pointer", "command"),
    [
        (POINTER, "version https://git-lfs.github.com/spec/v1", True, "git lfs pull"),
        (b"<!DOCTYPE html>\n<title>Sign in</title>", "<!DOCTYPE html>", False, "head "),
        (b"404", "404", False, "head "),
        (b"x" * 59 + "\N{GREEK SMALL LETTER ALPHA}".encode(), "x" * 59, False, "head "),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_text_in_place_of_a_shard_is_named(
    tmp_path: Path, shards: int, content: bytes, shown: str, is_pointer: bool, command: str
) -> None:
    folder = write(tmp_path / "checkpoint", shards=shards)
    shard = open_checkpoint(folder).shards[DOWN_SCALE.format(expert=2)]
    shard.write_bytes(content)
    with pytest.raises(ShardIsText) as caught:
        read(folder)
    assert (caught.value.shard, caught.value.is_pointer, caught.value.exit_code) == (str(shard), is_pointer, 4)
    assert shown in str(caught.value) and command in str(caught.value)


def test_a_header_longer_than_safetensors_reads_is_no_header(checkpoint: Path) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    length = 100_000_001
    with shard.open("r+b") as file:  # a hole: it takes no room
        file.write(length.to_bytes(8, "little"))
        file.truncate(8 + length)
    tracemalloc.start()
    with pytest.raises(DamagedShard, match="header would have 100000001 bytes, and has 100000000 at most"):
        read(checkpoint)
    assert tracemalloc.get_traced_memory()[1] < length // 10
    tracemalloc.stop()


def test_a_header_that_contradicts_itself_is_refused(checkpoint: Path) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    # A tensor nobody asked for: only safetensors itself looks at it.
    shard.write_bytes(shard.read_bytes().replace(b'"dtype":"BF16","shape":[512]', b'"dtype":"BF16","shape":[511]'))
    with pytest.raises(DamagedShard, match=r"safetensors \d.* says: "):
        read(checkpoint)


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
