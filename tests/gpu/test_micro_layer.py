"""MoE layers on a device, over a pack that was built elsewhere: PLANFREEZE_TEST_PACK is its store.

It needs the plan ds41-tp4-sm_90a with all arms.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

import planfreeze
from planfreeze.errors import CapacityExceeded, InvalidArgument, MissingPrograms, UnplannedProgram, UnsuitableExperts
from planfreeze.kernels.moe import reference
from planfreeze.kernels.moe.experts import PreparedExperts
from planfreeze.kernels.moe.op import MoELayer, bind, moe_layer
from planfreeze.kernels.moe.rules import shard
from planfreeze.models import Arm
from planfreeze.sessions import Session

from ..layer_calls import reference_layer, relative_l2, same_bits
from .micro_layers import (
    ARCH,
    ARMS,
    DTYPES,
    LIVE_TOKENS,
    MODEL,
    PLAN,
    ROOT,
    TP,
    example,
    inputs,
    plan,
    poison,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with planfreeze.session(PLAN, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True) as made:
        yield made.freeze()


@pytest.fixture(scope="module")
def weights() -> Any:
    return example.make_weights(shard(MODEL, TP), torch.Generator("cuda").manual_seed(11))


@pytest.fixture(scope="module")
def experts(weights: Any) -> dict[Arm, PreparedExperts]:
    generator = torch.Generator("cuda").manual_seed(12)
    factors = {
        name: 0.5 + torch.rand(MODEL.experts, generator=generator, device="cuda") for name in ("alpha1", "alpha2")
    }
    return {arm: replace(example.prepare(weights, ARCH, is_inline=arm == "inline"), **factors) for arm in ARMS}


@pytest.fixture(scope="module")
def layers(session: Session, experts: dict[Arm, PreparedExperts]) -> dict[Arm, MoELayer]:
    return {arm: bind(plan(arm), session, experts[arm]) for arm in ARMS}


def test_the_compressed_scales_have_raw_tiles(experts: dict[Arm, PreparedExperts]) -> None:
    inline = experts["inline"]
    assert inline.w13_scales.raw_tiles > 0
    assert inline.w2_scales.raw_tiles > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", LIVE_TOKENS)
def test_both_arms_agree_with_each_other_and_with_float64_over_poisoned_scratch(
    layers: dict[Arm, MoELayer], weights: Any, tokens: int, dtype: torch.dtype
) -> None:
    x, ids, factors = inputs(tokens, dtype)
    outs = {}
    for arm, layer in layers.items():
        poison(layer)
        outs[arm] = torch.full_like(x, torch.nan)
        assert layer.run(x, ids, factors, outs[arm]) is outs[arm]
    assert outs["inline"].isfinite().all()
    assert outs["inline"].any()
    assert same_bits(outs["inline"], outs["native"])
    expected = reference_layer(reference.micro_layer, MODEL, weights, layers["inline"].experts, x, ids, factors)
    assert relative_l2(outs["inline"], expected) <= 4e-3
    assert reference.cosine(outs["inline"], expected) >= 0.9999
    exact = reference_layer(reference.exact_layer, MODEL, weights, layers["inline"].experts, x, ids, factors)
    assert reference.cosine(outs["inline"], exact) >= 0.9975


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", LIVE_TOKENS)
def test_replays_of_a_graph_follow_their_inputs_and_allocate_nothing(
    session: Session, layers: dict[Arm, MoELayer], weights: Any, tokens: int, dtype: torch.dtype
) -> None:
    x, ids, factors = inputs(tokens, dtype)
    outs = {arm: torch.empty_like(x) for arm in ARMS}
    graphs = {arm: torch.cuda.CUDAGraph() for arm in ARMS}
    for arm, layer in layers.items():
        with torch.cuda.graph(graphs[arm]):
            layer.run(x, ids, factors, outs[arm])
    for _ in range(3):
        x.neg_()
        ids.add_(1).remainder_(MODEL.experts)
        ids[-1, -1] = -1
        for arm, layer in layers.items():
            poison(layer)
            outs[arm].fill_(torch.nan)
        torch.cuda.synchronize()
        # torch counts every allocation of the process here, also those it serves from memory it keeps.
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        assert outs["inline"].isfinite().all()
        assert same_bits(outs["inline"], outs["native"])
        expected = reference_layer(reference.micro_layer, MODEL, weights, layers["inline"].experts, x, ids, factors)
        assert relative_l2(outs["inline"], expected) <= 4e-3
    assert not any(session.attempts.values())


def test_every_capacity_and_id_type_runs_after_the_freeze(
    session: Session, experts: dict[Arm, PreparedExperts], layers: dict[Arm, MoELayer]
) -> None:
    for arm in ARMS:
        layer = bind(plan(arm, capacities=(1, 2, 4, 8)), session, experts[arm])
        for tokens in range(1, 9):
            for dtype in DTYPES:
                poison(layer)
                values = inputs(tokens, dtype)
                assert same_bits(layer.run(*values), layers[arm].run(*values))
    assert not any(session.attempts.values())


def test_a_payload_that_was_not_planned_is_refused(session: Session, experts: dict[Arm, PreparedExperts]) -> None:
    with pytest.raises(UnplannedProgram, match="micro_act"):
        bind(plan("inline", activation_limit=7.0), session, experts["inline"])


def test_a_record_that_is_missing_keeps_the_session_from_freezing(tmp_path: Path) -> None:
    shutil.copytree(os.environ["PLANFREEZE_TEST_PACK"], tmp_path / "store")
    with planfreeze.session(PLAN, store=tmp_path / "store", is_trusted=True) as session:
        for entry in session.plans[0].entries:
            if entry.family.endswith(":micro_fc2"):
                record = next((tmp_path / "store/records").glob(f"*/{entry.key}*"))
                record.unlink()
                break
        with pytest.raises(MissingPrograms, match=r"micro_fc2\("):
            session.freeze()


def test_calls_agree_on_a_side_stream(layers: dict[Arm, MoELayer]) -> None:
    values, layer = inputs(5), layers["inline"]
    expected = layer.run(*values)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        poison(layer)
        found = layer.run(*values)
    side.synchronize()
    assert same_bits(found, expected)


def test_a_call_never_waits_for_the_device(layers: dict[Arm, MoELayer]) -> None:
    values, layer = inputs(5), layers["inline"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer.run(*values)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_routes_to_no_expert_contribute_zero(layers: dict[Arm, MoELayer]) -> None:
    x, ids, factors = inputs(4, torch.int64)
    for invalid in (-1, MODEL.experts, 2**40, -(2**40)):
        ids.fill_(invalid)
        for layer in layers.values():
            poison(layer)
            assert not layer.run(x, ids, factors).any()


def test_a_call_without_tokens_returns_none_of_them(layers: dict[Arm, MoELayer]) -> None:
    assert layers["inline"].run(*inputs(0)).shape == (0, MODEL.hidden)


def test_inference_mode_and_the_operator_change_nothing(layers: dict[Arm, MoELayer]) -> None:
    for layer in layers.values():
        values = inputs(3)
        expected = layer.run(*values)
        assert same_bits(moe_layer(*values, layer.handle), expected)
        with torch.inference_mode():
            assert same_bits(layer.run(*values), expected)
            assert same_bits(moe_layer(*values, layer.handle), expected)


def test_a_whole_graph_that_was_compiled_before_the_freeze_calls_the_operator_after_it(
    session: Session, layers: dict[Arm, MoELayer]
) -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="eager", dynamic=True)
    def call(x: Tensor, ids: Tensor, factors: Tensor, handle: Tensor) -> Tensor:
        return moe_layer(x + x, ids, factors, handle) * 2

    def check() -> None:
        for tokens in LIVE_TOKENS:
            for layer in layers.values():
                x, ids, factors = inputs(tokens)
                assert same_bits(call(x, ids, factors, layer.handle), layer.run(x + x, ids, factors) * 2)

    guard = session._guard
    assert guard is not None
    guard.release()  # the session of all tests here is frozen by now
    check()
    guard.arm()
    check()
    assert not any(session.attempts.values())


def test_torch_finds_nothing_wrong_with_the_operator(layers: dict[Arm, MoELayer]) -> None:
    names = ("test_schema", "test_autograd_registration", "test_faketensor")
    passed = torch.library.opcheck(moe_layer, (*inputs(3), layers["inline"].handle), test_utils=names)
    assert set(passed.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("x", lambda x: x.half(), "dtype torch.float16"),
        ("x", lambda x: x.cpu(), "is on cpu"),
        ("x", lambda x: x.T.contiguous().T, "not contiguous"),
        ("x", lambda x: torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape), "aligned to 16"),
        ("x", lambda x: x[:, :256], "shape"),
        ("topk_ids", lambda ids: ids.short(), "dtype torch.int16"),
        ("topk_ids", lambda ids: ids.cpu(), "is on cpu"),
        ("topk_ids", lambda ids: ids[:, :5], "shape"),
        ("topk_weights", lambda factors: factors.double(), "dtype torch.float64"),
        ("topk_weights", lambda factors: factors.cpu(), "is on cpu"),
        ("topk_weights", lambda factors: factors.T.contiguous().T, "not contiguous"),
        ("out", lambda out: out.float(), "dtype torch.float32"),
        ("out", lambda out: out.cpu(), "is on cpu"),
        ("out", lambda out: out[:2], "shape"),
    ],
)
def test_a_wrong_tensor_is_named(
    layers: dict[Arm, MoELayer], name: str, change: Callable[[Tensor], Any], reason: str
) -> None:
    x, ids, factors = inputs(4)
    out = torch.full_like(x, torch.nan)
    values = {"x": x, "topk_ids": ids, "topk_weights": factors, "out": out}
    values[name] = change(values[name])
    with pytest.raises(InvalidArgument, match=f"argument {name} .*{reason}"):
        layers["inline"].run(**values)
    assert out.isnan().all()


def test_more_tokens_than_planned_are_refused(layers: dict[Arm, MoELayer]) -> None:
    with pytest.raises(CapacityExceeded, match=r"9 live tokens.*is 8"):
        layers["inline"].run(*inputs(9))


def test_experts_of_the_other_arm_are_refused(session: Session, experts: dict[Arm, PreparedExperts]) -> None:
    with pytest.raises(UnsuitableExperts, match=r"arm = inline.*arm = native"):
        bind(plan("inline"), session, experts["native"])
    with pytest.raises(UnsuitableExperts, match=r"arm = native.*arm = inline"):
        bind(plan("native"), session, experts["inline"])


def test_the_example_finds_everything_right() -> None:
    command = [sys.executable, ROOT / "examples/micro_decode.py", "--model", "ds41", "--tp", "4", "--trust-store"]
    command += ["--store", os.environ["PLANFREEZE_TEST_PACK"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit for bit") == 4
