"""Figures of a MoE layer: floors, targets, tables, the page, and what they are computed from."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from .conftest import TOOLS, bench_moe, floors, meter, prepare, tables, targets


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
    t2048={"inline": timed(50.0), "inline_always": timed(49.0), "expand": timed(50.0)},
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
        ("inline limit: inline without limit over per-call expansion, 2048 tokens", "met", 49 / 50),
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


def test_figures_are_drawn_with_every_arm_and_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = tmp_path / "drawing.svg"
    assert bench_moe.main(["--read", str(TOOLS.parent / "evidence/moe.json"), "--plot", str(drawing)]) == 0
    assert capsys.readouterr().err == ""
    texts = {element.text for element in ElementTree.parse(drawing).iter() if element.tag.endswith("}text")}
    figures = json.loads((TOOLS.parent / "evidence/moe.json").read_text())
    floors = {"floor of native", "floor of inline"}
    assert {*figures["arms"], *figures["layers"]["synthetic"], *floors, "tokens"} <= texts
    # The page shows a drawing that names the same.
    shown = {element.text for element in ElementTree.parse(TOOLS.parent / "docs/side_by_side.svg").iter()}
    assert texts - shown == set()


@pytest.mark.parametrize("tokens", ["0,8", "eight"])
def test_a_count_below_one_is_refused(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_moe.parse_arguments(["--store", "store", "--tokens", tokens])
    assert "--tokens" in capsys.readouterr().err


def test_a_meter_without_its_library_reads_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "LIBRARY", "libnobody.so.1")
    with meter.Meter("GPU-of-nobody") as found:
        assert "libnobody" in str(found.reason)
        assert found.read((0.0, time.monotonic())) == {}


def test_the_page_shows_the_figures_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    root = TOOLS.parent
    assert bench_moe.main(["--read", str(root / "evidence" / "moe.json")]) == 0
    printed = capsys.readouterr().out.strip().replace("\n## ", "\n### ")
    assert (root / "docs" / "side_by_side.md").read_text().endswith(printed + "\n")
