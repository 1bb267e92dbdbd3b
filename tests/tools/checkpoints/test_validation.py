"""The validation of checkpoints: sizes and statistics of what is whole, and a report of what is damaged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS
from planfreeze.kernels.moe.checkpoints import open_checkpoint, read_layer
from planfreeze.kernels.moe.rules import shard

from .conftest import (
    DOWN_SCALE,
    RECIPE,
    SMALL,
    TOOLS,
    defects,
    exceptions_of,
    generate_checkpoint,
    validate,
    validate_checkpoint,
)


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
