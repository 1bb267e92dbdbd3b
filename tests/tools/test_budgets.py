"""The measurement of budgets: its arithmetic, and all of it that needs no device, at a small size."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))
rounds, budgets, bench_launch, subject = (
    import_module(name) for name in ("rounds", "budgets", "bench_launch", "cpu_bench.subject")
)


def row(**changes: Any) -> Any:
    taken = {"ours": [2.0, 4.0, 9.0], "theirs": [1.0, 2.0, 3.0]}
    facts = {"what": "ours", "against": "theirs", "unit": "us", "budget": None} | changes
    return rounds.make_row(taken, "ours", "theirs", **facts)


def test_cases_are_measured_in_turn_until_the_time_is_over() -> None:
    order: list[str] = []
    cases = {"a": lambda: order.append("a") or 1.0, "b": lambda: order.append("b") or 2.0}
    assert rounds.run_rounds(cases, 3) == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert order == ["a", "b"] * 3
    assert rounds.run_rounds(cases, 3, until=0.0) == {"a": [1.0], "b": [2.0]}


def test_a_ratio_is_one_of_each_round_and_its_median_is_held_against_the_budget() -> None:
    assert row().ratio == {"median": 2.0, "first_quartile": 2.0, "third_quartile": 2.5}
    assert row().figure["median"] == 4.0 and row().base["median"] == 2.0
    assert [row(budget=budget).is_missed for budget in (None, 2.0, 1.99)] == [False, False, True]
    assert rounds.has_missed([row(), row(budget=1.0)]) and not rounds.has_missed([row()])


def test_a_missed_budget_is_printed_as_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rounds.write_rows([row(budget=1.5), row(budget=3.0)], {"processor": "none"}, tmp_path / "rows.json")
    missed, met = capsys.readouterr().out.splitlines()
    assert missed.endswith("budget 1.5: MISSED") and met.endswith("budget 3")
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["processor"] == "none" and written["rows"][0]["ratio"]["median"] == 2.0


def test_launches_are_held_against_the_driver_and_against_what_others_do() -> None:
    taken = {"driver": [2.0], "bound": [2.4], "program": [4.2], "cuda_core": [3.0], "triton_jit": [12.0]}
    rows = bench_launch.launch_rows(5, taken)
    assert [(made.ratio["median"], made.budget) for made in rows] == [
        (1.2, 1.25),
        (2.1, 2.0),
        (1.5, None),
        (6.0, None),
        (2.4 / 12, 0.4),
        (4.2 / 12, None),
    ]
    assert [made.is_missed for made in rows] == [False, True, False, False, False, False]


def test_starts_are_held_against_triton_with_and_without_its_cache() -> None:
    def run(whole: float, beyond: float) -> Any:
        return bench_launch.Start(whole_ms=whole, beyond_ms=beyond)

    runs = {
        "first": [run(3000, 90)],
        "triton_warm": [run(3600, 450)],
        "triton_cold": [run(5000, 1800)],
        "freeze": [run(3100, 100)],
        "triton_many": [run(4000, 800)],
    }
    ratios = [made.ratio["median"] for made in bench_launch.start_rows(runs, 36)]
    assert ratios == pytest.approx([3 / 3.6, 0.6, 0.2, 0.05, 0.125])
    assert [made.is_missed for made in bench_launch.start_rows(runs, 36)] == [False] * 4 + [True]


def test_every_budget_of_a_machine_without_device_is_measured(tmp_path: Path) -> None:
    small = subject.write_sums_model(tmp_path / "small.toml", 2)
    rows = budgets.measure(small, tmp_path, sizes=(2, 4), foreign=20, rounds=1)
    assert {made.what for made in rows} == {
        f"cold build of 2 programs, {len(os.sched_getaffinity(0))} compile processes",
        "`build` that finds all 2 programs",
        "`build` that finds 2 Triton programs",
        "`planfreeze --help`",
        "opening a plan of 4, a program",
        "opening a plan of 2 among 20 foreign entries, a program",
        "`session.program(payload)`",
    }
    assert all(made.figure["median"] > 0 and made.base["median"] > 0 for made in rows)
