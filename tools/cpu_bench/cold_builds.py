"""Cold builds: how busy the compile processes are, and what the compilers take one program after another."""

import os
import sys
import time
from pathlib import Path

from rounds import Row, make_row

from cpu_bench.processes import TOOLS, time_process
from cpu_bench.subject import ARCH, Subject
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.settings import user_cache
from planfreeze.target import target
from planfreeze.workers import worker_environment

__all__ = ["measure_cold_build"]

MOST_IDLE = 1 / 0.9


def measure_cold_build(subject: Subject, store: Path, folder: Path) -> list[Row]:
    """Build a plan into an empty store with one process per core, then compile it serially; each once."""
    jobs = len(os.sched_getaffinity(0))
    started = time.perf_counter()
    report = build_plans(
        [subject.plan], Store.open(store, writable=True), jobs=jobs, toolchains=user_cache() / "toolchains"
    )
    wall_ms = (time.perf_counter() - started) * 1e3
    if report.count("compiled") != len(subject.plan.payloads):
        raise SystemExit(f"{store} was not empty, or programs did not compile")
    scratch = folder / "serial"
    (scratch / "dumps").mkdir(parents=True)
    command = (sys.executable, str(TOOLS / "cpu_bench" / "serial_build.py"), subject.model, str(subject.tp))
    serial_ms = time_process(command, **pinned_settings(scratch))
    taken = {
        "wall": [wall_ms],
        "busy": [sum(outcome.seconds for outcome in report.outcomes) * 1e3 / jobs],
        "serial": [serial_ms],
    }
    what = f"cold build of {report.count('compiled')} programs, {jobs} compile processes"
    return [
        make_row(taken, "wall", "busy", what=what, against="busy time of each", unit="ms", budget=MOST_IDLE),
        make_row(taken, "wall", "serial", what=what, against="compilers' APIs in a loop", unit="ms", budget=None),
    ]


def pinned_settings(scratch: Path) -> dict[str, str]:
    """Return what compile processes are started with, but for the search path; their caches are empty too."""
    settings = worker_environment(target(ARCH), str(scratch))
    del settings["PYTHONPATH"]
    return settings
