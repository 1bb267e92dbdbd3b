"""Layers of direct routes under test: their plans and inputs, and how results are compared."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.kernels.moe.op import MoELayer
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.models import Arm, PlanOptions, load_model
from planfreeze.target import target

from ..layer_calls import random_call

ROOT = Path(__file__).parents[2]
PLAN, ARCH, TP = "ds41-tp4-sm_90a", "sm_90a", 4
# No direct-route program knows the number of experts: eight of them take the programs of all 384.
MODEL = replace(load_model("ds41"), experts=8)
ARMS: tuple[Arm, ...] = ("inline", "native")
DTYPES = (torch.int32, torch.int64)
LIVE_TOKENS = (1, 3, 5, 8)
POISON = 0xFF


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("micro_decode", ROOT / "examples/micro_decode.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = load_example()


def plan(arm: Arm, *, capacities: tuple[int, ...] = (8,), **changes: Any) -> MoEPlan:
    options = PlanOptions(inline_limit=1536, capacities=capacities, arms=(arm,))
    return declare(replace(MODEL, **changes), tp=TP, target=target(ARCH), options=options)


def inputs(tokens: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor, Tensor]:
    return random_call(MODEL, tokens, dtype)


def poison(layer: MoELayer) -> None:
    layer.workspace.fill_(POISON)
