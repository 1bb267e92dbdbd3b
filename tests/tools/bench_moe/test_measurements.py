"""The order of a measurement: every arm is measured, compared and bounded in time, on stand-ins of a device."""

import json
import time
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.errors import UnplannedProgram
from planfreeze.kernels.moe.experts import PreparedExperts
from planfreeze.kernels.moe.plan import MoEPlan
from planfreeze.kernels.moe.reference_grouped import grouped_layer

from .conftest import MODEL, SIZES, arms, bench_moe, inputs, suite, tables, timing


class Event:
    """Stands in for a CUDA event: the time of the host."""

    def __init__(self, **_: object) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return (end.at_s - self.at_s) * 1e3


class Layer:
    """Stands in for a bound layer: computes the reference, and one arm differs in a bit when it is told to."""

    def __init__(self, plan: MoEPlan, experts: PreparedExperts, weights: Any, *, is_wrong: bool) -> None:
        self.plan, self.experts, self.weights, self.is_wrong = plan, experts, weights, is_wrong
        self.workspace = torch.zeros(16, dtype=torch.uint8)

    def run(self, x: Tensor, ids: Tensor, factors: Tensor, out: Tensor) -> Tensor:
        codes = (self.weights.w13, self.weights.w13_scales, self.weights.w2, self.weights.w2_scales)
        out.copy_(grouped_layer(x, *codes, ids, factors))
        out.view(torch.int16)[0, 0] ^= int(self.is_wrong)
        return out


@pytest.fixture
def measured(weights: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a suite over stand-ins of a device."""
    properties = SimpleNamespace(name="no device", uuid="0", multi_processor_count=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    monkeypatch.setattr(suite, "SUSTAINED_S", 0.0)
    monkeypatch.setattr(timing, "ROUNDS", 10)
    monkeypatch.setattr(suite, "read_ceiling", lambda: {"1 GiB": 4.1})
    monkeypatch.setattr(suite, "synthetic_weights", lambda *_: weights)

    def capture(calls: list[Any]) -> Any:
        for call in calls[:1]:
            call()
        return timing.Captured(graph=SimpleNamespace(replay=lambda: None), calls=tuple(calls))

    monkeypatch.setattr(suite, "capture", capture)

    def run(*, wrong: str = "", minutes: float = 1.0, has_all: bool = True) -> dict[str, Any]:
        def bind(plan: MoEPlan, session: object, experts: PreparedExperts) -> Layer:
            if not has_all and plan.arm == "inline" and plan.inline_limit == 64:
                raise UnplannedProgram("a program", None)
            return Layer(plan, experts, weights, is_wrong=plan.arm == wrong)

        monkeypatch.setattr(arms, "bind", bind)
        options = suite.Options(
            model=MODEL, tp=1, tokens=(8, 64), inline_limit=8, minutes=minutes, checkpoint=None, peers=None
        )
        figures: dict[str, Any] = suite.Suite(object(), options).run()
        return figures

    return run


def test_a_measurement_has_every_arm_cool_and_sustained_and_lists_what_it_could_not_have(measured: Any) -> None:
    figures = measured()
    layer = figures["layers"]["synthetic"]
    assert set(layer["8"]["arms"]) == {"native", "expand", "inline"}
    assert set(layer["64"]["arms"]) == {"native", "expand", "inline", "inline_always"}
    for found in layer.values():
        assert found["same_bits"] and found["relative_l2"]["native"] < 4e-3
        assert all(
            arm["floor_us"] > 0 and arm["cool"].keys() >= {"median", "p10", "p90"} for arm in found["arms"].values()
        )
        assert all("median" in arm["sustained"] for arm in found["arms"].values())
    # The session that stands in has no programs, so the Triton layer cannot have its routes.
    assert "dot_scaled" in figures["failed"]
    assert "marlin and triton_kernels: no --peers" in figures["left_out"]
    assert "Must reach" in tables.write_report(json.loads(json.dumps(figures)))


def test_an_arm_that_differs_in_a_bit_is_noticed(measured: Any) -> None:
    figures = measured(wrong="expand")
    assert not any(found["same_bits"] for found in figures["layers"]["synthetic"].values())
    assert not bench_moe.has_agreed(figures)


def test_a_store_without_inline_programs_above_the_limit_leaves_that_arm_out(measured: Any) -> None:
    figures = measured(has_all=False)
    assert "inline_always" not in figures["arms"]
    assert "inline_always: the store has no inline programs above the limit" in figures["left_out"]


def test_nothing_begins_when_the_time_is_used_up(measured: Any) -> None:
    figures = measured(minutes=0.0)
    assert figures["layers"] == {"synthetic": {}}
    assert [what for what in figures["left_out"] if "tokens" in what] == [
        f"synthetic scales, {tokens} tokens: 0 minutes were used up" for tokens in (8, 64)
    ]


@pytest.mark.parametrize("tp", [1, 3])
def test_a_checkpoint_is_read_as_one_rank_holds_it_up_rows_first(tp: int, weights: Any, tmp_path: Path) -> None:
    generate_checkpoint = import_module("generate_checkpoint")
    model = replace(MODEL, intermediate=64 * tp)
    generate_checkpoint.write_checkpoint(tmp_path, generate_checkpoint.Recipe(model=model, layers=(5,), shards=1))
    found = inputs.checkpoint_weights(tmp_path, SIZES)
    recipe = generate_checkpoint.Recipe(model=model, layers=(5,))
    up, gate = (generate_checkpoint.matrix_codes(recipe, 5, 2, half)[:64] for half in ("up", "gate"))
    assert torch.equal(found.w13[2], torch.cat([up, gate]))
    scales = generate_checkpoint.matrix_scales(recipe, 5, 2, "gate")
    assert torch.equal(found.w13_scales[2, 64:], scales[:64])


def test_a_checkpoint_of_another_geometry_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    generate_checkpoint = import_module("generate_checkpoint")
    model = replace(MODEL, hidden=512)
    generate_checkpoint.write_checkpoint(tmp_path, generate_checkpoint.Recipe(model=model, layers=(0,), shards=1))
    with pytest.raises(SystemExit, match=r"hidden=512.*hidden=5120"):
        bench_moe.main(["--store", str(tmp_path / "no_store"), "--checkpoint", str(tmp_path)])


def test_sustained_figures_are_of_two_turns_the_second_in_reverse_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    replayed: list[str] = []

    def replay(name: str, seconds: float) -> None:
        replayed.append(name)
        time.sleep(seconds)

    def make_graph(name: str, seconds: float) -> Any:
        return timing.Captured(graph=SimpleNamespace(replay=lambda: replay(name, seconds)), calls=())

    read: list[tuple[float, float]] = []
    meter = SimpleNamespace(read=lambda *spans: (read.extend(spans), {"watts": 1.0 * len(spans)})[1])
    taken = {"slow": 0.02, "fast": 0.005, "fair": 0.01}
    graphs = {name: make_graph(name, seconds) for name, seconds in taken.items()}
    found = timing.time_sustained(graphs, meter, 0.4)
    turns = [name for name, _ in groupby(replayed[len(graphs) :])]
    # The last of the first order is the first of the second, so that its two turns are one here.
    assert turns == ["slow", "fast", "fair", "fast", "slow"]
    for name, seconds in taken.items():
        assert seconds * 1e6 <= found[name]["median"] * timing.CALLS < 2 * seconds * 1e6
        assert found[name]["watts"] == 2
    assert len(read) == 6 and all(first < last for first, last in read)
