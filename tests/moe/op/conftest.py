"""Layers on a device without a GPU: their models, programs, weights and inputs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import Tensor

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.kernels.scales.native import native_plane
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.plans import make_plan
from planfreeze.process_session import session
from planfreeze.sessions import Session
from planfreeze.target import target

from ...layer_calls import reference_layer
from ...shared import make_once, shared_folder
from .. import reference_device as device

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 64, 4, 2
MODEL = Model(
    name="tiny",
    hidden=HIDDEN,
    intermediate=INTERMEDIATE,
    experts=EXPERTS,
    top_k=TOP_K,
    weight_format="mxfp4_csf",
    activation_limit=1.5,
    capacities=(4, 8, 20, 40, 200),
)
# Whole row tiles: routes are grouped at every capacity, and compressed scales are decoded before every call.
WHOLE = replace(MODEL, name="whole", intermediate=128)
LIMIT = 20
"""Two capacities are above it, of different tiles."""
ARMS: tuple[Arm, ...] = ("inline", "expand", "native")
WHOLE_ARMS: tuple[Arm, ...] = ("expand", "native")
ID_DTYPES = (torch.int32, torch.int64)
POISON = 0xFF
ARM_OPTIONS: dict[Arm, dict[str, Any]] = {
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
}


def plan(
    arm: Arm = "inline", *, arch: str = "sm_90a", model: Model = MODEL, limit: int = LIMIT, **options: Any
) -> MoEPlan:
    return declare(model, tp=1, target=target(arch), options=PlanOptions(inline_limit=limit, arms=(arm,), **options))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, toolchains: Path) -> Path:
    """A store of both models' programs for all arms, built once for all workers of a run."""

    def build(path: Path) -> None:
        options = PlanOptions(inline_limit=LIMIT, arms=("inline", "expand", "native"))
        made = [make_plan(model, tp=1, target=target("sm_90a"), options=options) for model in (MODEL, WHOLE)]
        report = build_plans(made, Store.open(path, writable=True), jobs=2, toolchains=toolchains)
        assert report.count("failed") == 0, [outcome.reason for outcome in report.outcomes]

    return make_once(shared_folder(tmp_path_factory) / "layers", build)


@pytest.fixture
def frozen(store: Path) -> Iterator[Session]:
    with session("tiny-tp1-sm_90a", "whole-tp1-sm_90a", store=store, is_trusted=True) as made:
        device.freeze(made)
        yield made


class Weights(Struct, frozen=True):
    """Logical weights, up rows first."""

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor

    def prepare(self, arm: Arm, arch: str = "sm_90a", **changes: Any) -> PreparedExperts:
        """Prepare them for an arm."""
        tensors = asdict(self)
        return prepare_experts(**tensors, arch=arch, source_order="up_gate", **ARM_OPTIONS[arm], **changes)


def make_weights(columns: int) -> Weights:
    """Random weights whose scales have exceptions and raw tiles."""
    generator = torch.Generator().manual_seed(3)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.uint8)

    def scales(rows: int, width: int) -> Tensor:
        made = draw(118, 121, EXPERTS, rows, 1) + draw(0, 1, EXPERTS, rows, width)
        made.view(-1)[::97] = draw(116, 123, len(made.view(-1)[::97]))
        made[:, 4:12] = draw(114, 124, EXPERTS, 8, width)
        return made

    return Weights(
        w13=draw(0, 255, EXPERTS, 2 * columns, HIDDEN // 2),
        w13_scales=scales(2 * columns, HIDDEN // 32),
        w2=draw(0, 255, EXPERTS, HIDDEN, columns // 2),
        w2_scales=scales(HIDDEN, columns // 32),
    )


@pytest.fixture(scope="module")
def weights() -> Weights:
    return make_weights(INTERMEDIATE)


@pytest.fixture(scope="module")
def whole_weights() -> Weights:
    return make_weights(WHOLE.intermediate)


@pytest.fixture
def make_layer(frozen: Session, weights: Weights) -> Callable[..., MoELayer]:
    def make(arm: Arm = "inline", **options: Any) -> MoELayer:
        return bind(plan(arm), frozen, weights.prepare(arm), **options)

    return make


def inputs(tokens: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, routes and weights; one route of the last token goes to no expert."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].to(dtype)
    ids[-1:, 0] = EXPERTS
    return x, ids.contiguous(), torch.randn(tokens, TOP_K, generator=generator).softmax(-1)


def expected(
    weights: Weights,
    x: Tensor,
    ids: Tensor,
    factors: Tensor,
    experts: PreparedExperts,
    *,
    is_grouped: bool | None = None,
) -> Tensor:
    """The reference of the backend: grouped above 8 tokens unless said otherwise."""
    is_grouped = len(x) > 8 if is_grouped is None else is_grouped
    compute = reference_grouped.grouped_layer if is_grouped else reference.micro_layer
    return reference_layer(compute, MODEL, weights, experts, x, ids, factors)


def launches(layer: MoELayer) -> list[tuple[str, dict[str, int]]]:
    """What a layer's driver launched so far."""
    (_, program), *_ = next(iter(layer.programs.values()))
    return program.device.driver.launches  # type: ignore[no-any-return]


def native_planes(layer: MoELayer, weights: Weights) -> tuple[Tensor, Tensor]:
    """The native planes that a layer's compressed scales stand for."""
    experts = layer.experts
    return (
        native_plane(experts.w13_scales.geometry, weights.w13_scales).flatten(),
        native_plane(experts.w2_scales.geometry, weights.w2_scales).flatten(),
    )
