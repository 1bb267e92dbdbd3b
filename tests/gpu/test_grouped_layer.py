"""Whole layers of small geometries on a device, over a pack that was built elsewhere.

PLANFREEZE_TEST_PACK is its store, with the plans of tests/gpu/models/*.toml for sm_90a and all arms. Every test runs
for one geometry at a time, so ``-k layer_1024_320`` is a run by itself.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import planfreeze
from planfreeze.errors import MissingPrograms
from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.geometry import is_compact
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.kernels.moe.rules import Backend, ScaleMode, shard
from planfreeze.kernels.moe.stages import w2_geometry, w13_geometry
from planfreeze.kernels.moe.weights import SourceOrder
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.models import Arm, Model, PlanOptions, load_model
from planfreeze.sessions import Session
from planfreeze.settings import read_settings
from planfreeze.target import target

pytestmark = pytest.mark.gpu

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

    def declare(self, arm: Arm, capacities: tuple[int, ...], *, limit: int = LIMIT) -> MoEPlan:
        options = PlanOptions(inline_limit=limit, capacities=capacities, arms=(arm,))
        return declare(self.model, tp=1, target=target(ARCH), options=options)

    def bind(self, plan: MoEPlan, order: SourceOrder = "up_gate") -> MoELayer:
        return bind(plan, self.session, self.prepare(plan.arm, order))

    def check_accuracy(self, call: "Inputs", out: Tensor, backend: Backend) -> None:
        """Compare with float64: closely with the roundings of the backend, coarsely without any."""
        is_micro = backend is Backend.MICRO
        rounded = self.compute(reference.micro_layer if is_micro else reference_grouped.grouped_layer, call)
        assert float((out.double() - rounded.double()).norm() / rounded.double().norm()) <= 4e-3
        assert reference.cosine(out, rounded) >= 0.9999
        # A few tokens may hang on one or two columns of large scales, and then on the 3-bit fractions of those alone.
        if len(call.x) > 8:
            assert reference.cosine(out, self.compute(reference.exact_layer, call)) >= 0.9975

    def compute(self, compute: Callable[..., Tensor], call: "Inputs") -> Tensor:
        return compute(
            call.x,
            self.w13,
            self.w13_scales,
            self.w2,
            self.w2_scales,
            call.ids,
            call.factors,
            alpha1=self.alpha1,
            alpha2=self.alpha2,
            limit=self.model.activation_limit,
        )


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


@pytest.fixture(scope="module", params=MODELS)
def layer(request: pytest.FixtureRequest) -> Iterator[Layer]:
    model = load_model(str(MODELS[request.param]))
    generator = torch.Generator("cuda").manual_seed(7)
    experts, hidden, columns = model.experts, model.hidden, model.intermediate
    logical = {
        "w13": draw(generator, 0, 255, experts, 2 * columns, hidden // 2),
        "w13_scales": draw_scales(generator, experts, 2 * columns, hidden // 32),
        "w2": draw(generator, 0, 255, experts, hidden, columns // 2),
        "w2_scales": draw_scales(generator, experts, hidden, columns // 32),
    }
    factors = {name: 0.5 + torch.rand(experts, generator=generator, device="cuda") for name in ("alpha1", "alpha2")}

    @cache
    def prepare(arm: Arm, order: SourceOrder) -> PreparedExperts:
        source = dict(logical)
        if order == "gate_up":
            source |= {name: logical[name].roll(columns, 1) for name in ("w13", "w13_scales")}
        return prepare_experts(**source, **factors, arch=ARCH, source_order=order, **WEIGHTS[arm])

    pack = os.environ["PLANFREEZE_TEST_PACK"]
    with planfreeze.session(f"{model.name}-tp1-{ARCH}", store=pack, is_trusted=True) as session:
        yield Layer(model=model, session=session.freeze(), **logical, **factors, prepare=prepare)
        assert not any(session.attempts.values())


def inputs(model: Model, tokens: int, dtype: torch.dtype = torch.int32) -> Inputs:
    """Random inputs; one route of the last token goes to no expert."""
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = 0.1 * torch.randn(tokens, model.hidden, generator=generator, device="cuda")
    ranks = torch.rand(tokens, model.experts, generator=generator, device="cuda")
    ids = ranks.argsort(1)[:, : model.top_k].to(dtype).contiguous()
    ids[-1:, 0] = model.experts
    factors = torch.randn(tokens, model.top_k, generator=generator, device="cuda").softmax(-1)
    return Inputs(x.bfloat16(), ids, factors)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


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


def test_inline_experts_have_no_decoder_and_the_others_have_what_their_arm_needs(layer: Layer) -> None:
    forms = {"native": Tensor, "expand": CsfBatch, "inline": InlineScales}
    for arm in layer.arms:
        experts = layer.prepare(arm, "up_gate")
        assert experts.arm == arm
        assert type(experts.w13_scales) is type(experts.w2_scales) is forms[arm]
    if layer.is_compact:
        inline = layer.prepare("inline", "up_gate")
        assert isinstance(inline.w13_scales, InlineScales) and inline.w13_scales.raw_tiles > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=("int32", "int64"))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_all_arms_are_the_same_bits_in_every_replay(
    layer: Layer, tokens: int, order: SourceOrder, dtype: torch.dtype
) -> None:
    check_arms(layer, bind_arms(layer, tokens, order), tokens, dtype)


@pytest.mark.parametrize("capacity", [8, 512, 1024])
def test_live_counts_below_the_capacity_are_the_same_bits(layer: Layer, capacity: int) -> None:
    bound = {arm: layer.bind(layer.declare(arm, (capacity,))) for arm in layer.arms}
    for live in (1, 3, capacity // 2 + 1, capacity):
        call = inputs(layer.model, live)
        outs = {}
        for arm, made in bound.items():
            made.workspace.fill_(POISON)
            outs[arm] = made.run(call.x, call.ids, call.factors, torch.full_like(call.x, torch.nan))
            assert outs[arm].isfinite().all()
            assert same_bits(outs[arm], outs["native"]), arm
        layer.check_accuracy(call, outs["native"], bound["native"].plan.choose(live).backend)


@pytest.mark.parametrize("layer", COMPACT, indirect=True)
@pytest.mark.parametrize("tokens", [17, 512])
def test_above_the_limit_every_replay_expands_the_planes(layer: Layer, tokens: int) -> None:
    bound = {
        "native": layer.bind(layer.declare("native", (tokens,))),
        "inline": layer.bind(layer.declare("inline", (tokens,), limit=16)),
    }
    expanding = bound["inline"]
    assert expanding.plan.capacities[0].scale_mode is ScaleMode.EXPAND
    sharded = shard(layer.model, 1)
    native = (
        native_plane(w13_geometry(sharded), layer.w13_scales).flatten(),
        native_plane(w2_geometry(sharded), layer.w2_scales).flatten(),
    )
    call = inputs(layer.model, tokens)
    graphs = Graphs(bound, call)
    for _ in range(2):
        call.change(layer.model.experts)
        graphs.replay()
        for plane, wanted in zip(planes(expanding), native, strict=True):
            assert torch.equal(plane, wanted)


@pytest.mark.parametrize("tokens", [1537, 4096])
def test_calls_of_thousands_of_tokens_are_the_same_bits(layer: Layer, tokens: int) -> None:
    bound = {arm: layer.bind(layer.declare(arm, (64, 4096))) for arm in layer.arms}
    for arm, mode in (("native", ScaleMode.NATIVE), ("expand", ScaleMode.DECODE), ("inline", ScaleMode.EXPAND)):
        if arm in bound:
            assert bound[arm].plan.choose(tokens).scale_mode is mode
    call = inputs(layer.model, tokens, torch.int64)
    Graphs(bound, call).replay()


@pytest.mark.parametrize("layer", COMPACT, indirect=True)
def test_a_limit_that_is_set_later_does_not_reach_a_declared_plan(
    layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", raising=False)
    limit = read_settings().csf_inline_max_tokens
    assert limit == LIMIT
    plan = layer.declare("inline", (17, limit + 1), limit=limit)
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", "0")
    assert read_settings().csf_inline_max_tokens == 0
    bound = {"native": layer.bind(layer.declare("native", (17,))), "inline": layer.bind(plan)}
    assert plan.choose(17).scale_mode is ScaleMode.INLINE
    check_arms(layer, bound, 17, torch.int32)


@pytest.mark.parametrize("tokens", [8, 17, 512])
def test_routes_to_no_expert_contribute_zero(layer: Layer, tokens: int) -> None:
    for made in bind_arms(layer, tokens, "up_gate").values():
        call = inputs(layer.model, tokens, torch.int64)
        for invalid in (-1, layer.model.experts, 2**40, -(2**40)):
            call.ids.fill_(invalid)
            made.workspace.fill_(POISON)
            assert not made.run(call.x, call.ids, call.factors, torch.full_like(call.x, torch.nan)).any()


@pytest.mark.parametrize("tokens", [17, 512])
def test_all_routes_may_go_to_one_expert(layer: Layer, tokens: int) -> None:
    call = inputs(layer.model, tokens)
    call.ids.fill_(layer.model.experts - 1)
    outs = {}
    for arm, made in bind_arms(layer, tokens, "up_gate").items():
        made.workspace.fill_(POISON)
        outs[arm] = made.run(call.x, call.ids, call.factors)
        assert same_bits(outs[arm], outs["native"]), arm
    layer.check_accuracy(call, outs["native"], Backend.DYNAMIC)


@pytest.mark.parametrize("tokens", [17, 512])
def test_routing_leaves_the_same_bytes_in_every_replay(layer: Layer, tokens: int) -> None:
    made, call = layer.bind(layer.declare("native", (tokens,))), inputs(layer.model, tokens)
    found = []
    for _ in range(2):
        made.workspace.fill_(POISON)
        made.run(call.x, call.ids, call.factors)
        found.append(made.workspace.clone())
    assert torch.equal(*found)


def test_every_capacity_runs_after_the_freeze_with_both_id_types(layer: Layer) -> None:
    capacities = layer.model.capacities
    for arm in layer.arms:
        made = layer.bind(layer.declare(arm, capacities))
        for tokens in (1, 8, 9, 64, 65, 512, 513):
            calls = [inputs(layer.model, tokens, dtype) for dtype in DTYPES]
            assert same_bits(*(made.run(call.x, call.ids, call.factors) for call in calls))


def test_a_call_never_waits_for_the_device(layer: Layer) -> None:
    for arm in layer.arms:
        made, call = layer.bind(layer.declare(arm, (64, 4096))), inputs(layer.model, 1537)
        torch.cuda.set_sync_debug_mode("error")
        try:
            made.run(call.x, call.ids, call.factors)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def check_missing(layer: Layer, family: str, place: Path) -> None:
    """Take one record of a family out of a copy of the pack: freezing has to fail and name it."""
    shutil.copytree(os.environ["PLANFREEZE_TEST_PACK"], place)
    with planfreeze.session(f"{layer.model.name}-tp1-{ARCH}", store=place, is_trusted=True) as session:
        entry = next(entry for entry in session.plans[0].entries if entry.family.endswith(f":{family}"))
        next((place / "records").glob(f"*/{entry.key}*")).unlink()
        with pytest.raises(MissingPrograms, match=rf"{family}\("):
            session.freeze()


@pytest.mark.parametrize("family", ["csf_decode", "split_fc1", "split_fc2", "route_plan"])
def test_a_program_that_is_missing_keeps_the_session_from_freezing(layer: Layer, family: str, tmp_path: Path) -> None:
    check_missing(layer, family, tmp_path / "store")


@pytest.mark.parametrize("layer", COMPACT, indirect=True)
def test_an_expansion_that_is_missing_keeps_the_session_from_freezing(layer: Layer, tmp_path: Path) -> None:
    check_missing(layer, "expand", tmp_path / "store")
