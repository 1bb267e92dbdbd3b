"""A generated checkpoint, and the tools that make and validate it."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from planfreeze.models import Model, load_model

TOOLS = Path(__file__).parents[3] / "tools"
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
