"""The generator of checkpoints: it has the published statistics, and writes what it is told or nothing."""

import resource
from pathlib import Path

import pytest
import torch
from msgspec.structs import asdict, replace

from planfreeze.budgets import Budget
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS
from planfreeze.kernels.moe.checkpoints import read_layer
from planfreeze.models import load_model

from .conftest import FIRST_UP, REAL, RECIPE, SMALL, defects, exceptions_of, generate_checkpoint, validate


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
    for name, value in asdict(found).items():
        if name == "budgets":
            continue
        assert (tuple(value) if isinstance(value, list) else value) == getattr(model, name), name


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
