"""Whole layers of small geometries on a device, over a pack that was built elsewhere.

PLANFREEZE_TEST_PACK is its store, with the plans of tests/gpu/models/*.toml for sm_90a and all arms. Every test runs
for one geometry at a time, so ``-k layer_1024_320`` is a run by itself.
"""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import planfreeze
from planfreeze.errors import MissingPrograms
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.rules import Backend, ScaleMode, shard
from planfreeze.kernels.moe.stages import w2_geometry, w13_geometry
from planfreeze.kernels.moe.weights import SourceOrder
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.models import Arm, load_model
from planfreeze.settings import read_settings

from ..layer_calls import same_bits
from .grouped_layers import (
    ARCH,
    COMPACT,
    DTYPES,
    LIMIT,
    MODELS,
    ORDERS,
    POISON,
    TOKENS,
    WEIGHTS,
    Graphs,
    Layer,
    bind_arms,
    check_arms,
    draw,
    draw_scales,
    inputs,
    planes,
)

pytestmark = pytest.mark.gpu


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
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", str(LIMIT))
    limit = read_settings().csf_inline_max_tokens
    assert limit == LIMIT
    plan = layer.declare("inline", (17, LIMIT + 1), limit=limit)
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
