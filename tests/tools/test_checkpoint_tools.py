"""The tools for checkpoints: what is generated has the published statistics, and what is damaged is reported."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from planfreeze.budgets import Budget
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import ArmsDiffer, OutputNotFinite, UnavailableArm, UnservedCapacity
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS
from planfreeze.kernels.moe.checkpoints import open_checkpoint, read_layer
from planfreeze.kernels.moe.rules import shard
from planfreeze.models import Model, PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.process_session import session
from planfreeze.target import target

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))
generate_checkpoint = import_module("generate_checkpoint")
validate_checkpoint = import_module("validate_checkpoint")
validate_arms = import_module("validate_arms")
defects = import_module("checkpoint_defects")

SMALL = Model(name="small", hidden=512, intermediate=384, experts=3, top_k=2, weight_format="mxfp4_csf")
RECIPE = generate_checkpoint.Recipe(model=SMALL, layers=(0, 39), seed=5)
REAL = generate_checkpoint.Recipe(model=load_model("ds41"), layers=tuple(range(40)), seed=1)
FIRST_UP = "model.layers.0.mlp.experts.0.up_proj"
DOWN_SCALE = "model.layers.39.mlp.experts.1.down_proj.weight_scale"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    generate_checkpoint.write_checkpoint(tmp_path / "checkpoint", RECIPE)
    return tmp_path / "checkpoint"


def validate(path: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = validate_checkpoint.main([str(path), "--model", str(path / "model.toml"), "--tp", "2", *options])
    return status, *capsys.readouterr()


def exceptions_of(scales: Tensor) -> np.ndarray:
    """Mark scales outside of the best two neighbouring values of their row, row by row."""
    marks = np.zeros(scales.shape, dtype=bool)
    for row, mark in zip(scales.numpy().astype(int), marks, strict=True):
        counts = np.bincount(row, minlength=256)
        base = int(np.argmax(counts[:-1] + counts[1:]))
        mark[:] = (row != base) & (row != base + 1)
    return marks


@pytest.mark.parametrize("matrix", ["gate", "up", "down"])
def test_typical_matrices_have_180_to_240_exceptions(matrix: str) -> None:
    found = [exceptions_of(generate_checkpoint.matrix_scales(REAL, 20, e, matrix)).sum() for e in range(3)]
    assert len(set(found)) > 1 and all(180 <= count <= 240 for count in found), found


@pytest.mark.parametrize(("matrix", "mean", "largest"), [("gate", 0.54, 6), ("down", 0.28, 5)])
def test_the_first_layer_has_the_published_exceptions_a_tile(matrix: str, mean: float, largest: int) -> None:
    marks = exceptions_of(generate_checkpoint.matrix_scales(REAL, 0, 3, matrix))
    rows, columns = marks.shape
    tiles = marks.reshape(rows // 128, 128, columns // 4, 4).sum((1, 3))
    assert tiles.mean() == pytest.approx(mean, abs=0.01)
    assert tiles.max() <= largest
    # Published: 60 to 74 % of the tiles have none.
    assert 0.55 <= (tiles == 0).mean() <= 0.79


def test_the_worst_matrix_has_the_published_share_and_only_raw_tiles() -> None:
    marks = exceptions_of(generate_checkpoint.matrix_scales(REAL, 39, 7, "down"))
    assert marks.mean() == pytest.approx(0.273, abs=0.002)
    assert marks.reshape(40, 128, 18, 4).sum((1, 3)).min() > 7


def test_the_share_over_all_matrices_is_the_published_one() -> None:
    layers, experts = range(40), range(0, REAL.model.experts)
    counts = {layer: 0 for layer in layers}
    for layer in layers:
        # A layer without heavy experts is like any other; count those in full, of the rest a sample.
        heavy = any(generate_checkpoint.heavy_experts(REAL, layer, matrix) for matrix in ("gate", "up", "down"))
        sample = experts if heavy else range(0, REAL.model.experts, 16)
        for matrix in ("gate", "up", "down"):
            for expert in sample:
                generator = torch.Generator().manual_seed(layer * 1000 + expert)
                count = generate_checkpoint.count_exceptions(REAL, layer, expert, matrix, generator)
                counts[layer] += count * len(experts) // len(sample)
    share = sum(counts.values()) / (46080 * 2304 * 160)
    assert share == pytest.approx(0.0006, abs=0.00005)
    assert counts[39] > 2 * counts[38] > 2 * counts[37] * 1.1


def test_heavy_experts_become_fewer_before_the_last_layer() -> None:
    numbers = {
        matrix: [len(generate_checkpoint.heavy_experts(REAL, layer, matrix)) for layer in (0, 34, 35, 36, 37, 38, 39)]
        for matrix in ("gate", "down")
    }
    assert numbers == {"gate": [0, 0, 0, 0, 0, 0, 1], "down": [0, 0, 0, 1, 2, 9, 37]}
    assert generate_checkpoint.heavy_experts(REAL, 39, "down")[0] == 7


def test_a_matrix_is_the_same_whatever_else_is_written(tmp_path: Path) -> None:
    generate_checkpoint.write_checkpoint(tmp_path / "one", replace(RECIPE, layers=(39,), shards=1))
    generate_checkpoint.write_checkpoint(tmp_path / "many", replace(RECIPE, shards=5))
    one, many = (read_layer(tmp_path / name, SMALL, 39, tp=1, rank=0) for name in ("one", "many"))
    assert torch.equal(one.w13, many.w13) and torch.equal(one.w2_scales, many.w2_scales)
    generate_checkpoint.write_checkpoint(tmp_path / "other", replace(RECIPE, seed=6))
    other = read_layer(tmp_path / "other", SMALL, 39, tp=1, rank=0)
    assert not torch.equal(one.w13, other.w13) and not torch.equal(one.w2_scales, other.w2_scales)


def test_a_single_ds41_expert_costs_what_its_tiles_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoint"
    options = ["--model", "ds41", "--layers", "0,39", "--experts", "1", "--shards", "2", "--seed", "3"]
    assert generate_checkpoint.main([str(folder), *options]) == 0
    arguments = [str(folder), "--model", str(folder / "model.toml"), "--tp", "4", "--ranks", "0,3", "--json"]
    capsys.readouterr()
    assert validate_checkpoint.main(arguments) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert [(found["layer"], found["rank"]) for found in layers] == [(0, 0), (0, 3), (39, 0), (39, 3)]
    for found in layers:
        raw = {name: found[name]["raw_tiles"] for name in ("w13", "w2")}
        assert found["exact"] and found["error"] is None
        assert found["w13"]["native_bytes"] + found["w2"]["native_bytes"] == 106_168_320 // 384
        assert found["w13"]["inline_bytes"] == 400 * 96 + 10 * 128 + 512 * raw["w13"]
        assert found["w2"]["inline_bytes"] == 200 * 96 + 40 * 128 + 512 * raw["w2"]
        assert raw == {"w13": 0, "w2": 0} if found["layer"] == 0 else raw["w2"] == 200 and raw["w13"] > 300


@pytest.mark.parametrize("layout", [KNOWN_LAYOUTS[0], next(layout for layout in KNOWN_LAYOUTS if layout.is_stacked)])
def test_exceptions_are_those_of_every_native_row(tmp_path: Path, layout: object) -> None:
    generate_checkpoint.write_checkpoint(tmp_path / "checkpoint", replace(RECIPE, layout=layout))
    weights = read_layer(tmp_path / "checkpoint", SMALL, 39, tp=2, rank=1)
    weights.w13_scales[0, 5, 3] = 250
    w13, w2 = validate_checkpoint.validate_layer(weights, shard(SMALL, 2))
    clamped = weights.w13_scales.clamp(max=247)
    assert w13.exceptions == sum(int(exceptions_of(expert).sum()) for expert in clamped)
    assert w2.exceptions == sum(int(exceptions_of(expert).sum()) for expert in weights.w2_scales)
    assert (w13.clamped, w2.clamped) == (1, 0)
    assert w2.raw_tiles > 0 and w13.scales == weights.w13_scales.numel() == w13.native_bytes


def test_either_order_of_the_halves_is_validated_in_the_prepared_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(geometry: object, plane: Tensor) -> object:
        planes.append(plane)
        return real(geometry, plane)

    real, planes = validate_checkpoint.encode, []
    monkeypatch.setattr(validate_checkpoint, "encode", encode)
    for layout in (KNOWN_LAYOUTS[0], next(layout for layout in KNOWN_LAYOUTS if layout.source_order == "gate_up")):
        folder = tmp_path / layout.name
        generate_checkpoint.write_checkpoint(folder, replace(RECIPE, layout=layout))
        validate_checkpoint.validate_layer(read_layer(folder, SMALL, 0, tp=2, rank=0), shard(SMALL, 2))
    assert len(planes) == 4 and torch.equal(planes[0], planes[2]) and torch.equal(planes[1], planes[3])


def test_every_layer_and_rank_is_validated(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = validate(checkpoint, capsys=capsys)
    rows = [line.split() for line in out.splitlines() if line.endswith("exact") or " exact " in line]
    assert status == 0 and err == ""
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (layer, rank, "exact") for layer in ("0", "39") for rank in ("0", "1")
    ]


@pytest.mark.parametrize(
    ("defect", "name", "status"),
    [
        ("nan-scale", "NanScale", 4),
        ("missing-tensor", "TensorMissing", 4),
        ("missing-from-shard", "TensorMissing", 4),
        ("wrong-shape", "UnexpectedTensor", 2),
        ("wrong-dtype", "UnexpectedDtype", 4),
        ("cut-shard", "TruncatedShard", 4),
        ("missing-shard", "ShardMissing", 4),
    ],
)
def test_a_defect_is_reported_and_the_other_layers_are_validated(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], defect: str, name: str, status: int
) -> None:
    last = open_checkpoint(checkpoint).shards[DOWN_SCALE]
    assert all(
        ".layers.0." not in tensor or file != last for tensor, file in open_checkpoint(checkpoint).shards.items()
    )
    defects.spoil_checkpoint(checkpoint, defect, DOWN_SCALE)
    found, out, err = validate(checkpoint, "--json", capsys=capsys)
    layers = json.loads(out)["layers"]
    assert found == status
    assert [entry["exact"] for entry in layers if entry["layer"] == 0] == [True, True]
    failed = [entry for entry in layers if not entry["exact"]]
    assert failed and all(entry["error"].startswith(f"{name}: ") and entry["w13"] is None for entry in failed)
    # The damaged byte is the last rank's; what else is damaged stops every rank.
    assert [entry["rank"] for entry in failed] == ([1] if defect == "nan-scale" else [0, 1])
    assert f"error: layer 39, rank {failed[0]['rank']}: " in err


def test_a_cut_index_ends_with_4(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defects.spoil_checkpoint(checkpoint, "cut-index", DOWN_SCALE)
    status, out, err = validate(checkpoint, capsys=capsys)
    assert (status, out) == (4, "") and "is not an index of shards" in err


def test_storage_that_decodes_to_something_else_is_reported(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*given: object, **options: object) -> Tensor:
        plane = real(*given, **options)
        plane[1, 77] ^= 1
        return plane

    real = validate_checkpoint.decode
    monkeypatch.setattr(validate_checkpoint, "decode", decode)
    status, out, err = validate(checkpoint, "--layers", "0", "--ranks", "1", capsys=capsys)
    assert status == 4 and "ScalesDiffer" in out
    assert "expert 1, native offset 77" in err and "inline storage decodes to" in err


@pytest.mark.parametrize("part", ["selectors", "bases", "exceptions"])
def test_a_batch_that_decodes_to_something_else_is_reported(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def encode(*given: object, **options: object) -> object:
        batch = real(*given, **options)
        # One bit: the lowest of the first base or selectors, or of the byte of the first exception.
        changed = getattr(batch, part).view(torch.uint8).flatten()
        changed[3 if part == "exceptions" else 0] ^= 1
        return batch

    real = validate_checkpoint.csf_batch.encode
    monkeypatch.setattr(validate_checkpoint.csf_batch, "encode", encode)
    status, out, err = validate(checkpoint, "--layers", "0", "--ranks", "1", capsys=capsys)
    assert status == 4 and "ScalesDiffer" in out and "the CSF batch decodes to" in err


def test_the_size_of_the_batch_is_reported(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = validate(checkpoint, "--json", "--layers", "0", "--ranks", "0", capsys=capsys)
    found = json.loads(out)["layers"][0]
    for part, rows, columns in (("w13", 384, 16), ("w2", 512, 6)):
        parts = rows + rows * columns // 8 + 8 * 2  # bases, selectors, the ends of one region
        assert found[part]["batch_bytes"] == SMALL.experts * parts + 4 * found[part]["exceptions"]


def test_a_plane_that_does_not_give_the_scales_back_is_reported(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = validate_checkpoint.native_plane
    monkeypatch.setattr(
        validate_checkpoint, "native_plane", lambda *given, **options: real(*given, **options).roll(1, 0)
    )
    status, out, _ = validate(checkpoint, "--layers", "0", "--ranks", "0", capsys=capsys)
    assert status == 4 and "ScalesDiffer" in out


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["{path}", "--model", "{path}/model.toml", "--tp", "5"], 2, "384"),
        (["{path}", "--model", "ds42"], 2, "neither a model"),
        (["{path}", "--model", "{path}/model.toml", "--layers", "7"], 2, "layer 7"),
        (["{path}", "--model", "{path}/model.toml", "--tp", "2", "--ranks", "2"], 2, "rank 2 is not one of"),
        (["{path}/none", "--model", "ds41"], 3, "no checkpoint"),
        pytest.param(
            ["{path}", "--model", "{path}/model.toml", "--tp", "2", "--store", "{path}"],
            6,
            "no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device"),
        ),
    ],
)
def test_what_cannot_be_validated_ends_with_its_status(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, reason: str
) -> None:
    assert validate_checkpoint.main([text.format(path=checkpoint) for text in arguments]) == status
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--device", "meta"], "cpu, cuda or cuda:N"),
        (["--device", "toaster"], "cpu, cuda or cuda:N"),
        (["--device", "cpu", "--store", "anywhere"], "--device cpu runs none"),
    ],
)
def test_a_device_that_computes_nothing_ends_with_2(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        validate(checkpoint, *options, capsys=capsys)
    assert caught.value.code == 2 and reason in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_cuda_ends_with_6(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = validate(checkpoint, "--device", "cuda", capsys=capsys)
    assert status == 6 and "no CUDA device" in err


@pytest.mark.gpu
def test_a_device_finds_what_the_host_finds(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [validate(checkpoint, "--json", "--device", device, capsys=capsys) for device in ("cpu", "cuda")]
    assert results[0] == results[1] and results[0][0] == 0


def test_an_interrupt_ends_with_130(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(validate_checkpoint, "read_layer", interrupt)
    assert validate(checkpoint, capsys=capsys)[0] == 130


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--layers", "0,40"], "not numbers of 0..39"),
        (["--layers", "x"], "not numbers of 0..39"),
        (["--shards", "0"], "at least 1"),
        (["--experts", "0"], "at least 1"),
        (["--defect", "rust"], "invalid choice"),
        (["--experts", "1", "--defect", "cut-index", "--shards", "1"], "--shards 1 writes none"),
        (["--experts", "1", "--shards", "8"], "there are 7 tensors"),
        (["--experts", "1", "--defect", "nan-scale", "--tensor", f"{FIRST_UP}.weight"], "holds no scales"),
        (["--experts", "1", "--defect", "nan-scale", "--tensor", "model.norm.weight"], "holds no scales"),
        (["--experts", "1", "--defect", "cut-shard", "--tensor", f"{FIRST_UP}.wait"], "no such tensor"),
        (["--experts", "1", "--tensor", f"{FIRST_UP}.weight"], "say how with --defect"),
    ],
)
def test_the_generator_refuses_what_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        generate_checkpoint.main([str(tmp_path / "new"), "--model", "ds41", *options])
    assert caught.value.code == 2 and reason in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def generate(folder: Path, *options: str) -> int:
    model = folder.parent / "small.toml"
    model.write_text(generate_checkpoint.describe_model(SMALL))
    return generate_checkpoint.main([str(folder), "--model", str(model), *options])


@pytest.mark.parametrize("layout", [layout.name for layout in KNOWN_LAYOUTS])
def test_a_nan_scale_is_made_in_the_first_scales(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    assert generate(tmp_path / "new", "--defect", "nan-scale", "--layout", layout) == 0
    capsys.readouterr()
    status, _, err = validate(tmp_path / "new", capsys=capsys)
    assert status == 4 and "is 255, the NaN of E8M0" in err


@pytest.mark.parametrize("defect", [name for name in defects.DEFECTS if name != "cut-index"])
@pytest.mark.parametrize("shards", ["1", "19"])
def test_every_defect_is_refused_by_the_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], defect: str, shards: str
) -> None:
    assert generate(tmp_path / "new", "--defect", defect, "--shards", shards) == 0
    assert validate(tmp_path / "new", capsys=capsys)[0] in (2, 3, 4)


def test_the_model_is_described_whole(tmp_path: Path) -> None:
    model = replace(SMALL, activation_limit=1.5, fast_math=True, id_types=("int64",), capacities=(8, 64), default_tp=2)
    model = replace(model, budgets=(Budget(no_spills=True),))
    (tmp_path / "model.toml").write_text(generate_checkpoint.describe_model(model))
    found = load_model(str(tmp_path / "model.toml"))
    assert found.budgets == ()
    for field in fields(Model):
        if field.name == "budgets":
            continue
        value = getattr(found, field.name)
        assert (tuple(value) if isinstance(value, list) else value) == getattr(model, field.name), field.name


@pytest.mark.parametrize("place", ["file/new", "x" * 300])
def test_a_folder_that_cannot_be_made_ends_with_6(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").touch()
    arguments = ["--model", "ds41", "--experts", "1"]
    assert generate_checkpoint.main([str(tmp_path / place), *arguments]) == 6
    assert "cannot be written: " in capsys.readouterr().err


def test_a_full_disk_ends_with_6(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "small.toml").write_text("")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        status = generate(tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert status == 6 and "File too large" in capsys.readouterr().err


def test_the_generator_overwrites_nothing(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in checkpoint.iterdir()}
    with pytest.raises(SystemExit) as caught:
        generate_checkpoint.main([str(checkpoint), "--model", "ds41"])
    assert caught.value.code == 2 and "is not an empty folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in checkpoint.iterdir()} == before


def test_both_tools_run_as_programs(checkpoint: Path, tmp_path: Path) -> None:
    written = tmp_path / "spoiled"
    model = checkpoint / "model.toml"
    tensor = "layers.39.ffn.experts.0.w2.scale"
    options = ["--layers", "39", "--layout", "feed-forward", "--typed", "--defect", "nan-scale", "--tensor", tensor]
    made = run("generate_checkpoint.py", written, "--model", model, *options)
    assert (made.returncode, made.stdout) == (0, f"{written}\n")
    validated = run("validate_checkpoint.py", written, "--model", model, "--tp", "2", "--json")
    assert validated.returncode == 4
    assert [entry["exact"] for entry in json.loads(validated.stdout)["layers"]] == [True, False]
    assert f"{tensor}: the scale at row 511, column 11 is 255" in validated.stderr


def run(tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOOLS.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def load_reference_device() -> ModuleType:
    path = TOOLS.parent / "tests" / "moe" / "reference_device.py"
    spec = spec_from_file_location("reference_device", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reference_device = load_reference_device()
TINY = replace(SMALL, name="tiny", hidden=256, intermediate=128, experts=40, activation_limit=1.5, capacities=(8,))


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory, toolchains: Path) -> Iterator[object]:
    """Real programs of both arms, frozen on a device that runs their references."""
    path = tmp_path_factory.mktemp("arms") / "store"
    options = PlanOptions(inline_limit=1536, arms=("inline", "native"))
    made = make_plan(TINY, tp=2, target=target("sm_90a"), options=options)
    assert build_plans([made], Store.open(path, writable=True), jobs=2, toolchains=toolchains).count("failed") == 0
    with session("tiny-tp2-sm_90a", store=path, is_trusted=True) as frozen:
        reference_device.freeze(frozen)
        plans = validate_arms.declare_arms(TINY, tp=2, arch="sm_90a")
        yield validate_arms.Arms(session=frozen, plans=plans)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model of these programs, its rows gate first."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    layout = next(layout for layout in KNOWN_LAYOUTS if layout.source_order == "gate_up")
    generate_checkpoint.write_checkpoint(folder, replace(RECIPE, model=TINY, layout=layout))
    return folder


def check_arms(tiny: Path, arms: object) -> list[object]:
    reports = validate_checkpoint.validate_checkpoint(
        open_checkpoint(tiny),
        TINY,
        tp=2,
        layers=(0, 39),
        ranks=(1,),
        device=torch.device("cpu"),
        progress=lambda done, total: None,
        arms=arms,
    )
    return list(reports)


def test_both_arms_compute_the_same_of_a_checkpoint(tiny: Path, arms: object) -> None:
    driver = arms.session._device.driver
    driver.launches.clear()
    reports = check_arms(tiny, arms)
    assert [(report.layer, report.error, report.equal_tokens) for report in reports] == [
        (0, None, (1, 3, 8)),
        (39, None, (1, 3, 8)),
    ]
    shown = validate_checkpoint.report_json(tiny, TINY, 2, reports)["layers"]
    assert [entry["equal_tokens"] for entry in shown] == [[1, 3, 8], [1, 3, 8]]
    # Twice every length reaches all 40 experts by two routes a token; each once for each arm.
    tokens = [words["tokens"] for family, words in driver.launches if family == "topk_sum"]
    assert tokens == [length for length in (1, 3, 8) * 4 for _ in range(2)]


def test_every_expert_has_a_route(arms: object) -> None:
    made = list(validate_arms.calls(arms.plans["native"], torch.device("cpu")))
    assert {expert for _, ids, _ in made for expert in ids.flatten().tolist()} == set(range(TINY.experts))
    assert [len(x) for x, _, _ in made] == [1, 3, 8, 1, 3, 8]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3.0])
def test_an_arm_that_computes_something_else_is_reported(
    tiny: Path, arms: object, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    def run_topk_sum(payload: object, values: object, words: dict[str, int]) -> None:
        real(payload, values, words)
        sums.append(values.out)
        if len(sums) % 2 == 0 and words["tokens"] == 3:  # the native arm, which comes second
            values.out[2 * TINY.hidden + 9] = value

    sums: list[Tensor] = []
    real = reference_device.KERNELS["topk_sum"]
    monkeypatch.setitem(reference_device.KERNELS, "topk_sum", run_topk_sum)
    error = check_arms(tiny, arms)[0].error
    assert type(error) is (ArmsDiffer if value == 3.0 else OutputNotFinite)
    assert (error.tokens, error.row, error.column, error.exit_code) == (3, 2, 9, 4)
    assert "row 2, column 9" in str(error)


def test_an_output_that_is_not_written_is_reported(tiny: Path, arms: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference_device.KERNELS, "topk_sum", lambda payload, values, words: None)
    assert [type(report.error) for report in check_arms(tiny, arms)] == [OutputNotFinite] * 2


def test_a_model_without_both_arms_is_refused() -> None:
    with pytest.raises(UnavailableArm):
        validate_arms.declare_arms(replace(TINY, weight_format="mxfp4"), tp=2, arch="sm_90a")
    with pytest.raises((UnavailableArm, UnservedCapacity)):
        validate_arms.declare_arms(TINY, tp=1, arch="sm_90a")


@pytest.mark.gpu
@pytest.mark.skipif(
    "PLANFREEZE_TEST_PACK" not in os.environ,
    reason="PLANFREEZE_TEST_PACK names no store with the plan ds41-tp4-sm_90a, all arms",
)
def test_a_device_computes_the_same_with_both_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoint"
    options = ["--model", "ds41", "--layers", "0,39", "--experts", "8", "--seed", "3"]
    assert generate_checkpoint.main([str(folder), *options]) == 0
    capsys.readouterr()
    given = ["--tp", "4", "--ranks", "0,3", "--store", os.environ["PLANFREEZE_TEST_PACK"], "--trust-store", "--json"]
    status = validate_checkpoint.main([str(folder), "--model", str(folder / "model.toml"), *given])
    out, err = capsys.readouterr()
    assert status == 0, err
    layers = json.loads(out)["layers"]
    assert [(found["layer"], found["rank"]) for found in layers] == [(0, 0), (0, 3), (39, 0), (39, 3)]
    assert all(found["exact"] and found["equal_tokens"] == [1, 3, 8] for found in layers)
    assert max(found["w2"]["raw_tiles"] for found in layers) > 0
