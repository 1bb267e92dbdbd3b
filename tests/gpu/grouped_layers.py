"""Layers of small geometries under test: their weights, inputs and captured graphs, and how results are compared."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.experts import PreparedExperts
from planfreeze.kernels.moe.geometry import is_compact
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.kernels.moe.rules import Backend
from planfreeze.kernels.moe.weights import SourceOrder
from planfreeze.models import Arm, Model, PlanOptions, load_model
from planfreeze.sessions import Session
from planfreeze.target import target

from ..layer_calls import random_call, reference_layer, relative_l2, same_bits

ARCH = "sm_90a"
MODELS = {path.stem: path for path in sorted((Path(__file__).parent / "models").glob("*.toml"))}
COMPACT = tuple(name for name, path in MODELS.items() if is_compact(load_model(str(path)).intermediate))
DTYPES = (torch.int32, torch.int64)
ORDERS: tuple[SourceOrder, ...] = ("up_gate", "gate_up")
TOKENS = (1, 8, 17, 64, 512, 1024)
LIMIT = 1536
REPLAYS = 3
POISON = 0xFF
WEIGHTS: dict[Arm, dict[str, Any]] = {
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A geometry under test: its session, logical weights with the up rows first, and factors of experts."""

    model: Model
    session: Session
    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor
    alpha1: Tensor
    alpha2: Tensor
    prepare: Callable[[Arm, SourceOrder], PreparedExperts]

    @property
    def is_compact(self) -> bool:
        return is_compact(self.model.intermediate)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return ("native", "expand", "inline") if self.is_compact else ("native", "expand")

    def declare(self, arm: Arm, capacities: tuple[int, ...], *, limit: int | None = LIMIT) -> MoEPlan:
        options = PlanOptions(inline_limit=limit, capacities=capacities, arms=(arm,))
        return declare(self.model, tp=1, target=target(ARCH), options=options)

    def bind(self, plan: MoEPlan, order: SourceOrder = "up_gate") -> MoELayer:
        return bind(plan, self.session, self.prepare(plan.arm, order))

    def check_accuracy(self, call: "Inputs", out: Tensor, backend: Backend) -> None:
        """Compare with float64: closely with the roundings of the backend, coarsely without any."""
        is_micro = backend is Backend.MICRO
        rounded = self.compute(reference.micro_layer if is_micro else reference_grouped.grouped_layer, call)
        assert relative_l2(out, rounded) <= 4e-3
        assert reference.cosine(out, rounded) >= 0.9999
        # A few tokens may hang on one or two columns of large scales, and then on the 3-bit fractions of those alone.
        if len(call.x) > 8:
            assert reference.cosine(out, self.compute(reference.exact_layer, call)) >= 0.9975

    def compute(self, compute: Callable[..., Tensor], call: "Inputs") -> Tensor:
        return reference_layer(compute, self.model, self, self, call.x, call.ids, call.factors)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Activations, routes and factors of a call, which graphs read in place."""

    x: Tensor
    ids: Tensor
    factors: Tensor

    def change(self, experts: int) -> None:
        """Negate the activations, send every route to the next expert, and one to none."""
        self.x.neg_()
        self.ids.add_(1).remainder_(experts)
        self.ids[-1, -1] = -1


def draw(generator: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=generator, device="cuda", dtype=torch.uint8)


def draw_scales(generator: torch.Generator, experts: int, rows: int, columns: int) -> Tensor:
    """Two neighbouring values a row; every 97th scale off them, and three runs of four rows at random."""
    scales = draw(generator, 120, 125, experts, rows, 1) + draw(generator, 0, 1, experts, rows, columns)
    sparse = scales.view(-1)[::97]
    sparse.copy_(draw(generator, 116, 129, len(sparse)))
    for first in (40, rows // 2 - 8, rows - 4):
        scales[:, first : first + 4] = draw(generator, 114, 131, experts, 4, columns)
    return scales


def inputs(model: Model, tokens: int, dtype: torch.dtype = torch.int32) -> Inputs:
    return Inputs(*random_call(model, tokens, dtype))


def planes(bound: MoELayer) -> tuple[Tensor, Tensor]:
    return bound.scratch.w13_plane, bound.scratch.w2_plane


class Graphs:
    """A captured call of every layer over the same inputs."""

    def __init__(self, bound: dict[Arm, MoELayer], call: Inputs) -> None:
        self.bound, self.outs = bound, {arm: torch.empty_like(call.x) for arm in bound}
        self.graphs = {arm: torch.cuda.CUDAGraph() for arm in bound}
        for arm, graph in self.graphs.items():
            with torch.cuda.graph(graph):
                bound[arm].run(call.x, call.ids, call.factors, self.outs[arm])

    def replay(self) -> None:
        """Poison scratch and results, then replay; nothing may be allocated, and all results be the same bits."""
        for arm, out in self.outs.items():
            self.bound[arm].workspace.fill_(POISON)
            out.fill_(torch.nan)
        torch.cuda.synchronize()
        # torch counts every allocation of the process here, also those it serves from memory it keeps.
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        for graph in self.graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        first = self.outs["native"]
        assert first.isfinite().all()
        assert first.any()
        for arm, out in self.outs.items():
            assert same_bits(out, first), arm


def check_arms(layer: Layer, bound: dict[Arm, MoELayer], tokens: int, dtype: torch.dtype) -> None:
    """Replay all arms over changing inputs, and compare them with each other and with float64."""
    call = inputs(layer.model, tokens, dtype)
    graphs = Graphs(bound, call)
    for _ in range(REPLAYS):
        call.change(layer.model.experts)
        graphs.replay()
        layer.check_accuracy(call, graphs.outs["native"], bound["native"].plan.choose(tokens).backend)
        if "inline" in bound:
            for plane in planes(bound["inline"]):
                assert len(plane)
                assert (plane == POISON).all()


def bind_arms(layer: Layer, tokens: int, order: SourceOrder) -> dict[Arm, MoELayer]:
    """Bind every arm for ``tokens``; the inline one also for a capacity above the limit, so that it has planes."""
    limit = max(tokens, 8)
    made: dict[Arm, MoELayer] = {}
    for arm in layer.arms:
        capacities = (tokens, limit + 1) if arm == "inline" else (tokens,)
        made[arm] = layer.bind(layer.declare(arm, capacities, limit=limit), order)
    return made
