"""The benchmark of a MoE layer and its parts, and a small layer to measure."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.models import Model

TOOLS = Path(__file__).parents[3] / "tools"
sys.path.append(str(TOOLS))
bench_moe = import_module("bench_moe")
arms, floors, inputs, meter, plot, suite, tables, targets, timing, scaled_layer = (
    import_module(f"moe_bench.{name}")
    for name in (
        "arms",
        "floors",
        "inputs",
        "meter",
        "plot",
        "suite",
        "tables",
        "targets",
        "timing",
        "scaled_layer",
    )
)
layer_tools = import_module("h200.layer")

MODEL = Model(
    name="small", hidden=256, intermediate=64, experts=4, top_k=2, weight_format="mxfp4_csf", capacities=(8, 64)
)
SIZES = layer_tools.Sizes(experts=4, hidden=256, intermediate=64, top_k=2)
DS41 = layer_tools.Sizes(experts=384, hidden=5120, intermediate=576, top_k=6)


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (inputs, suite, scaled_layer):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    return inputs.synthetic_weights(SIZES, 1)


def prepare(weights: Any, arm: str) -> PreparedExperts:
    fields = ("w13", "w13_scales", "w2", "w2_scales", "source_order")
    return prepare_experts(**{name: getattr(weights, name) for name in fields}, arch="sm_90a", **arms.FORMS[arm])
