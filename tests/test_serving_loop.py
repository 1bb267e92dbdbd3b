"""examples/serving_loop.py without a GPU: arguments, plans, requests, weights, tables; tests/gpu runs it on one."""

import dataclasses
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.errors import CapacityExceeded, UnavailableArm
from planfreeze.kernels.moe.op import MoELayer
from planfreeze.kernels.moe.plan import MoEPlan
from planfreeze.models import ARMS, Model, PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.target import target

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.append(str(EXAMPLES))
loop = import_module("serving_loop")
figures = import_module("serving_figures")
weights = import_module("serving_weights")
work = import_module("serving_work")

GIB = 2**30
TINY = Model(name="tiny", hidden=512, intermediate=192, experts=3, top_k=2, weight_format="mxfp4_csf")


def plan_for(model: Model, arm: str, *, tp: int = 1) -> MoEPlan:
    (found,) = work.plan_arms(model, tp=tp, arch="sm_90a", arms=arm)
    return found


def test_forty_layers_of_ds41_on_four_ranks_are_served_where_nothing_else_is_asked_for() -> None:
    asked = work.read_arguments([])
    assert (asked.model, asked.tp, asked.layers, asked.batches) == ("ds41", 4, 40, (1, 2, 4, 8, 16, 32, 64))
    plans = work.plan_arms(load_model(asked.model), tp=asked.tp, arch="sm_90a", arms=asked.arms)
    assert tuple(plan.arm for plan in plans) == ARMS
    planned = work.plan_work(plans[0], asked)
    assert [request.sizes for request in planned.requests if request.phase == "prefill"] == [(4096,) * 2, (4096,) * 8]
    assert planned.sizes == (4096, 64, 32, 16, 8, 4, 2, 1)
    # Up to the inline limit compressed scales are read as they are: whole chunks, too.
    assert [str(plans[0].choose(size).scale_mode) for size in (64, 4096)] == ["inline", "inline"]


def test_small_takes_the_small_model_but_not_in_place_of_what_is_given() -> None:
    asked = work.read_arguments(["--small", "--layers", "7"])
    assert (load_model(asked.model).name, asked.tp, asked.layers) == ("layer_1024_320", 1, 7)


def test_the_programs_of_every_arm_are_in_the_plan_that_the_docstring_builds() -> None:
    built = PlanOptions(arms=ARMS)
    planned = set(make_plan(load_model("ds41"), tp=4, target=target("sm_90a"), options=built).payloads)
    for plan in work.plan_arms(load_model("ds41"), tp=4, arch="sm_90a", arms="all"):
        assert planned.issuperset(plan.payloads())


def test_the_last_chunk_of_a_prompt_is_what_is_left_over() -> None:
    assert work.cut(8192, 3000) == (3000, 3000, 2192)
    assert work.cut(100, 3000) == (100,)


@pytest.mark.parametrize("options", [["--chunk", "4097"], ["--batches", "1,5000"]])
def test_a_step_that_no_capacity_holds_is_refused(options: list[str]) -> None:
    plan = plan_for(load_model("ds41"), "native", tp=4)
    with pytest.raises(CapacityExceeded):
        work.plan_work(plan, work.read_arguments(options))


def test_an_arm_that_a_model_does_not_have_is_refused() -> None:
    whole_tiles = replace(TINY, intermediate=256)
    with pytest.raises(UnavailableArm):
        plan_for(whole_tiles, "inline")
    assert [plan.arm for plan in work.plan_arms(whole_tiles, tp=1, arch="sm_90a", arms="all")] == ["expand", "native"]


@pytest.mark.parametrize(
    "options",
    [["--batches", "1,,2"], ["--layers", "0"], ["--seconds", "nan"], ["--prompts", "8k"], ["--json", "/no/where/f"]],
)
def test_arguments_that_say_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        work.read_arguments(options)
    assert refused.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_layers_share_weights_only_where_memory_asks_for_it() -> None:
    plan = plan_for(load_model("ds41"), "native", tp=4)
    assert weights.layer_bytes(plan.sharded) == 384 * (1152 * 5120 + 5120 * 576) * 17 // 32
    assert weights.count_weight_sets(plan, 40, 138 * GIB) == 40
    assert weights.count_weight_sets(plan, 40, 30 * GIB) == 14
    assert weights.count_weight_sets(plan, 40, 1 * GIB) == 1
    assert figures.describe_weights(40, 40) == "40 layers, each with weights of its own"
    assert "14 sets" in figures.describe_weights(40, 14)


def test_a_layer_is_drawn_by_its_number_and_prepared_for_every_arm() -> None:
    sources = [weights.allocate_sources(plan_for(TINY, "native").sharded, "cpu") for _ in range(3)]
    for source, number in zip(sources, (1, 1, 2), strict=True):
        weights.draw_layer(source, number)
    for name, drawn in sources[0].items():
        assert torch.equal(drawn, sources[1][name])
        assert not torch.equal(drawn, sources[2][name])
    for arm in ARMS:
        prepared = weights.prepare_layers(plan_for(TINY, arm), 2, "cpu")
        assert [experts.arm for experts in prepared] == [arm, arm]
        assert not torch.equal(prepared[0].w13, prepared[1].w13)
        if arm == "native":
            parts = prepared[0].sizes
            assert sum(parts.values()) - parts["alpha1"] - parts["alpha2"] == weights.layer_bytes(
                plan_for(TINY, arm).sharded
            )


class Halving:
    """In place of a layer: takes what a layer takes, halves the activations, and remembers the routes."""

    def __init__(self, plan: MoEPlan) -> None:
        self.plan = plan
        self.routes: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def run(self, x: Tensor, ids: Tensor, factors: Tensor, out: Tensor) -> None:
        MoELayer.check_shapes(self, x, ids, factors)  # type: ignore[arg-type]
        assert (x.dtype, factors.dtype) == (torch.bfloat16, torch.float32)
        assert all(tensor.is_contiguous() for tensor in (x, ids, factors, out))
        self.routes = ids.clone(), factors.clone()
        out.copy_(x / 2)


def test_every_layer_gets_its_routes_and_adds_to_the_residual() -> None:
    layers = [Halving(plan_for(TINY, "native")) for _ in range(2)]
    asked = work.Work(layers=2, requests=(work.Request(phase="decode", sizes=(5,)),), calls=1, seconds=1.0)
    trunk = loop.draw_trunk(TINY, asked, "cpu")
    x = 3 * trunk.embedding[:5]
    expected = x.double()
    routes = torch.full((2, 5, TINY.top_k), -1)
    loop.run_layers(x, trunk.routers, layers, routes)
    for router, layer, noted in zip(trunk.routers, layers, routes, strict=True):
        normed = expected - expected.mean(1, keepdim=True)
        normed /= normed.square().mean(1, keepdim=True).sqrt()
        scores = normed @ router.double()
        ids, factors = layer.routes
        assert torch.equal(ids, noted)
        assert torch.allclose(factors.sum(1), torch.ones(5))
        assert bool((scores.gather(1, ids[:, :1]) >= scores.max(1, keepdim=True).values - 0.05).all())
        expected += normed / 2
    assert torch.allclose(x.double(), expected, rtol=0.02, atol=0.05)


def served(**changes: Any) -> Any:
    row = figures.Served(
        phase="decode",
        tokens=64,
        chunk=64,
        scale_mode="inline",
        calls=150,
        median_ms=12.5,
        slow_ms=12.75,
        tokens_per_s=5120.4,
        allocations=0,
        segments=0,
        experts=243.75,
        is_finite=True,
        digest="ab",
    )
    return dataclasses.replace(row, **changes)


def report(*rows: Any, attempts: int = 0, launches: int = 640) -> Any:
    """A report with an arm for every row."""
    memory = figures.Memory(
        weights=70 * GIB, workspace=GIB // 4, allocated=71 * GIB, reserved=72 * GIB, peak=75 * GIB, room=66 * GIB
    )
    arms = tuple(
        figures.ArmFigures(
            arm=arm,
            weight_sets=40,
            prepare_s=8.25,
            served=(row,),
            memory=memory,
            launches=launches,
            expected_launches=640,
        )
        for arm, row in zip(ARMS, rows, strict=False)
    )
    return figures.Report(
        plan="ds41-tp4-sm_90a", root="0f" * 32, device="H", layers=40, arms=arms, attempts={"triton": attempts}
    )


def test_the_tables_hold_what_was_found() -> None:
    text = figures.write_report(report(served(), served()))
    rows = [line.split() for line in text.splitlines()]
    assert ["inline", "decode", "64", "64", "inline", "243.8", "150", "12.500", "12.750", "5,120", "0"] in rows
    assert ["expand", "8.2", "70.00", "0.25", "71.00", "72.00", "75.00", "66.00", "640"] in rows
    assert f"ds41-tp4-sm_90a@sha256:{'0f' * 32} on H\n" in text
    assert "compiled 0;" in text and "WRONG" not in text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (report(served(), attempts=2), "2 attempts to compile on the road triton"),
        (report(served(), launches=639), "639 launches, 640 were planned"),
        (report(served(allocations=1)), "1 tensors and 0 segments"),
        (report(served(segments=1)), "0 tensors and 1 segments"),
        (report(served(is_finite=False)), "not a number"),
        (report(served(), served(digest="cd")), "inline do not have the same bits"),
    ],
)
def test_what_a_served_model_must_not_do_is_told(wrong: Any, told: str) -> None:
    (problem,) = wrong.problems()
    assert told in problem
    assert f"WRONG: {problem}" in figures.write_report(wrong)
    assert json.loads(json.dumps(wrong.to_json()))["problems"] == [problem]


def test_without_a_gpu_the_loop_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(loop, "current_arch", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loop.main(["--small"]) == 6
    output = capsys.readouterr()
    assert output.out == "" and "no CUDA device" in output.err


def test_without_the_plan_in_the_store_the_loop_says_what_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "current_arch", lambda: "sm_90a")
    assert loop.main(["--small", "--store", str(tmp_path / "nothing")]) == 3
    assert "planfreeze build" in capsys.readouterr().err
