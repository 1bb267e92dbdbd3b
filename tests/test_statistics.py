"""Statistics: attempts of every road, programs, launches, and the same as Prometheus text."""

import re

from planfreeze.exposition import expose_counter
from planfreeze.guard import attempt_totals, expose_attempts, no_compilation, road_names
from planfreeze.guard.attempts import Attempt
from planfreeze.guard.watch import watch
from planfreeze.statistics import Statistics

SEEN = Statistics(
    attempts={"triton": 2, "cute": 0},
    programs=2,
    program_launches={"add(block=64)": 5, 'odd("\\\n)': 0},
    plans={"toys-tp1-sm_90a": "ab12"},
)
SAMPLE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="([^"\\\n]|\\\\|\\"|\\n)*",?)*\})? [0-9]+')


def test_prometheus_text_has_help_type_and_escaped_labels() -> None:
    assert SEEN.to_prometheus() == (
        "# HELP planfreeze_attempts_total Attempts to compile, build, benchmark or load while a guard was armed.\n"
        "# TYPE planfreeze_attempts_total counter\n"
        'planfreeze_attempts_total{road="triton"} 2\n'
        'planfreeze_attempts_total{road="cute"} 0\n'
        "# HELP planfreeze_programs Programs that are loaded.\n"
        "# TYPE planfreeze_programs gauge\n"
        "planfreeze_programs 2\n"
        "# HELP planfreeze_launches_total Launches of planned programs.\n"
        "# TYPE planfreeze_launches_total counter\n"
        'planfreeze_launches_total{program="add(block=64)"} 5\n'
        'planfreeze_launches_total{program="odd(\\"\\\\\\n)"} 0\n'
        "# HELP planfreeze_plan_info Frozen plans that are served.\n"
        "# TYPE planfreeze_plan_info gauge\n"
        'planfreeze_plan_info{plan="toys-tp1-sm_90a",root="ab12"} 1\n'
    )


def test_every_sample_line_is_one_that_prometheus_reads() -> None:
    text = SEEN.to_prometheus()
    assert text.endswith("\n")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == 6 and all(SAMPLE.fullmatch(line) for line in samples)
    assert "\\\\ \\n" in expose_counter("x", "back\\ \n", [])


def test_launches_are_the_sum_over_programs() -> None:
    assert SEEN.launches == 5


def test_the_process_counts_every_road_without_a_session() -> None:
    before = dict(attempt_totals())
    assert tuple(before) == road_names()
    attempt = Attempt(road="cute", kernel="m.k", location="app.py:1")
    load = Attempt(road="triton-load", kernel="m.k", location="app.py:1")
    with no_compilation("count"), no_compilation("count"):
        watch.report(attempt)
        watch.report(load)
    watch.report(attempt)
    assert attempt_totals() == before | {"cute": before["cute"] + 1}
    assert f'planfreeze_attempts_total{{road="cute"}} {before["cute"] + 1}\n' in expose_attempts()
