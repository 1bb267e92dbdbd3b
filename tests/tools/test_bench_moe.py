"""The benchmark of a MoE layer, all of it that needs no device: floors, targets, tables, the order of a measurement."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from planfreeze.errors import UnplannedProgram
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.plan import MoEPlan
from planfreeze.kernels.moe.reference_grouped import grouped_layer
from planfreeze.models import Model

TOOLS = Path(__file__).parents[2] / "tools"
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


@pytest.mark.parametrize("arm", ["native", "expand", "inline"])
def test_the_bytes_of_all_experts_are_those_the_arm_stores(weights: Any, arm: str) -> None:
    experts = prepare(weights, arm)
    by_expert = floors.expert_bytes(experts)
    sizes = experts.sizes
    assert float(by_expert.sum()) == sum(sizes[name] for name in ("w13", "w2", "w13_scales", "w2_scales"))
    if arm == "native":
        # 128 x 256 and 256 x 64 weights of half a byte, and a scale for 32 of them.
        assert by_expert.tolist() == [(128 * 256 + 256 * 64) / 2 + (128 * 256 + 256 * 64) / 32] * 4


def test_an_expert_of_raw_tiles_has_a_higher_floor(weights: Any) -> None:
    weights.w13_scales[2] = torch.randint(100, 140, weights.w13_scales[2].shape, dtype=torch.uint8)
    by_expert = floors.expert_bytes(prepare(weights, "inline"))
    # 64 rows of a half, as tiles of 128 rows and 4 columns: 2 halves by 8 / 4 tiles, 512 bytes each.
    assert float(by_expert[2] - by_expert.min()) == 2 * 2 * 512


def test_a_floor_counts_every_routed_expert_once_and_averages_routings() -> None:
    by_expert = torch.tensor([4.6e6, 9.2e6, 46e6, 4.6e9], dtype=torch.float64)
    first, second = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[2, 1], [2, 4]])
    assert floors.floor_us(by_expert, [first]) == pytest.approx(1 + 2)
    assert floors.floor_us(by_expert, [first, second]) == pytest.approx(((1 + 2) + (2 + 10)) / 2)


def test_the_floor_of_ds41_at_8_tokens_is_the_published_one() -> None:
    one = torch.full((384,), 1152 * 5120 / 2 + 5120 * 576 / 2 + 1152 * 160 + 5120 * 18, dtype=torch.float64)
    assert float(one[0]) == 4_423_680 + 276_480
    assert floors.floor_us(one, [torch.arange(44)]) == pytest.approx(45.0, abs=0.1)


def test_the_layer_in_triton_computes_what_the_reference_does() -> None:
    script = Path(__file__).with_name("interpreted_layer.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert float(printed) < 1e-3


def timed(us: float, floor: float = 10.0, **more: float) -> dict[str, Any]:
    return {
        "cool": {"median": us, "p10": us - 1, "p90": us + 1, "sm_mhz": 1980, "watts": 412.0, **more},
        "floor_us": floor,
    }


def figures_of(**counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": "some device",
        "versions": {"torch": "2.11.0"},
        "model": "ds41",
        "tp": 4,
        "geometry": {"experts": 384},
        "read_ceiling_tb_s": {"1 GiB": 4.1, "4 GiB": 4.25},
        "arms": {"native": "never compressed", "inline": "read compressed", "marlin": "W4A16"},
        "failed": {"triton_kernels": "ImportError: no such module"},
        "left_out": ["sustained, 4096 tokens: 6 minutes were used up"],
        "layers": {
            "synthetic": {
                tokens.removeprefix("t"): {
                    "same_bits": True,
                    "is_finite": True,
                    "relative_l2": {"native": 5e-4},
                    "experts_read": 44.5,
                    "arms": found,
                }
                for tokens, found in counts.items()
            }
        },
    }


FIGURES = figures_of(
    t8={"native": timed(14.0), "inline": timed(12.5), "expand": timed(13.0), "marlin": timed(20.0)},
    t64={"native": timed(11.5), "inline": timed(12.1), "expand": timed(13.1), "marlin": timed(19.0)},
    t2048={"inline": timed(50.0), "inline_always": timed(49.0)},
)


@pytest.mark.parametrize(
    ("what", "state", "value"),
    [
        ("native over its floor, 8 tokens", "met", 1.4),
        ("inline over its floor, 8 tokens", "beyond", 1.25),
        ("native over its floor, 64 tokens", "met", 1.15),
        ("inline over its floor, 64 tokens", "missed", 1.21),
        ("inline over its floor, 512 tokens", "not measured", None),
        ("inline over native, 8 tokens", "met", 12.5 / 14),
        ("inline over native, 64 tokens", "missed", 12.1 / 11.5),
        ("inline over per-call expansion, 8 tokens", "missed", 12.5 / 13),
        ("inline over per-call expansion, 64 tokens", "met", 12.1 / 13.1),
        ("marlin over inline, 8 tokens", "met", 1.6),
        ("marlin over inline, 64 tokens", "missed", 19 / 12.1),
        ("triton_kernels over inline, 8 tokens", "not measured", None),
        ("inline limit: expansion over inline without limit, 2048 tokens", "missed", 50 / 49),
    ],
)
def test_a_target_says_whether_it_is_reached(what: str, state: str, value: float | None) -> None:
    (found,) = (target for target in targets.list_targets(FIGURES) if target.what == what)
    assert found.state == state
    assert found.value == (None if value is None else pytest.approx(value))


def test_every_count_has_a_target_against_both_serving_layers() -> None:
    limits = {target.what: target.limit for target in targets.list_targets(FIGURES)}
    for peer in ("marlin", "triton_kernels"):
        expected = {1: 1.5, 8: 1.6, 64: 1.6, 128: 1.6, 512: 1.6, 1024: 1.0, 1536: 1.0, 2048: 1.0, 4096: 1.0}
        assert {tokens: limits[f"{peer} over inline, {tokens} tokens"] for tokens in expected} == expected


def test_the_table_has_a_row_per_arm_and_says_what_is_missing() -> None:
    report = tables.write_report(FIGURES).splitlines()
    row = "| 8 | 44.5 | inline | 12.5 | 11.5..13.5 | 1980 | 412 | 10.0 | 1.25 | 0.893 | 1.000 |  |  |  |  |"
    assert row in report
    assert "failed: triton_kernels: ImportError: no such module" in report
    assert "left out: sustained, 4096 tokens: 6 minutes were used up" in report
    assert "random bytes are read at 4.10 TB/s over 1 GiB, 4.25 TB/s over 4 GiB; floors count 4.6 TB/s" in report
    assert "8 tokens: same bits of all arms; relative L2 error native 5.0e-04" in report
    assert "| inline over its floor, 64 tokens | <= 1.2 (beyond: 1.12) | 1.210 | missed |" in report


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, 0), ({"same_bits": False}, 1), ({"is_finite": False}, 1), ({"relative_l2": {"native": 5e-3}}, 1)],
)
def test_the_exit_status_tells_of_arms_that_differ_or_are_wrong(
    change: dict[str, Any], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = json.loads(json.dumps(FIGURES))
    figures["layers"]["synthetic"]["64"] |= change
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    assert bench_moe.main(["--read", str(tmp_path / "figures.json")]) == status
    assert ("BITS DIFFER" in capsys.readouterr().out) == ("same_bits" in change)


def test_without_matplotlib_figures_are_printed_and_the_drawing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "figures.json").write_text(json.dumps(FIGURES))
    drawing = tmp_path / "drawing.svg"
    assert bench_moe.main(["--read", str(tmp_path / "figures.json"), "--plot", str(drawing)]) == 0
    printed = capsys.readouterr()
    assert "Must reach" in printed.out and "no drawing" in printed.err and not drawing.exists()


@pytest.mark.parametrize("tokens", ["0,8", "eight"])
def test_a_count_below_one_is_refused(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_moe.parse_arguments(["--store", "store", "--tokens", tokens])
    assert "--tokens" in capsys.readouterr().err


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
    monkeypatch.setattr(timing, "BATCH_S", 1e-4)
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


def test_a_meter_without_its_library_reads_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "LIBRARY", "libnobody.so.1")
    with meter.Meter("GPU-of-nobody") as found:
        assert "libnobody" in str(found.reason)
        assert found.read(0.0, time.monotonic()) == {}


def test_the_page_shows_the_figures_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    root = TOOLS.parent
    assert bench_moe.main(["--read", str(root / "evidence" / "moe.json")]) == 0
    printed = capsys.readouterr().out.strip().replace("\n## ", "\n### ")
    assert (root / "docs" / "side_by_side.md").read_text().endswith(printed + "\n")
