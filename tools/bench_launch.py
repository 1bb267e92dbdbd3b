"""Measure launches and starts on a device against their budgets: python tools/bench_launch.py STORE [--json FILE].

STORE comes from tools/h200/pack.py; tools/launch_bench/export_cute.py says what DIR of ``--tvm-ffi`` holds. Times are
the host's. The exit status is 1 where a budget is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parent))

from launch_bench.sums import SUM_SIZES, LaunchSumPayload, launch_plan
from rounds import Row, describe_host, has_missed, make_row, run_rounds, time_calls, write_rows

from planfreeze.cache.readable import ReadableStore, open_readable
from planfreeze.resolve import PlanReference, find_plan

STARTS_SCRIPT = Path(__file__).resolve().parent / "launch_bench" / "starts.py"
ARCH = "sm_90a"
MODEL_PLAN = "ds41-tp4-sm_90a"
CALLS = 500
"""Launches of one figure: fewer than a stream queues, so that the host never waits for the device."""
ROUNDS = 31
STARTS = 5
DISTRIBUTIONS = ("torch", "triton", "cuda-core", "cuda-bindings", "apache-tvm-ffi")


class Start(Struct, frozen=True, kw_only=True):
    """Milliseconds of a fresh process: from its start, and from when torch and its context were there."""

    whole_ms: float
    beyond_ms: float


def measure_launches(readable: ReadableStore, peer_folder: Path | None, rounds: int, rows: list[Row]) -> dict[str, Any]:
    """Time every way to launch the programs of both sizes, and the look-up; add to ``rows`` and return the device."""
    import torch
    from launch_bench.arms import check_sum, launch_arms, make_tensors, read_peer

    import planfreeze
    from planfreeze.resolve import resolve_plan

    name = launch_plan(ARCH).name
    finish = torch.cuda.synchronize
    with (
        tempfile.TemporaryDirectory() as unpacked,
        planfreeze.session(name, store=readable.path, is_trusted=True) as session,
    ):
        session.freeze(guard="off")  # others compile at their first launch
        peer, found = read_peer(peer_folder, Path(unpacked))
        for resolved in resolve_plan(session.plans[0], readable).check():
            assert isinstance(resolved.payload, LaunchSumPayload)
            size = resolved.payload.arguments
            tensors = make_tensors(size, session.program(resolved.payload).device.torch_device)
            arms = launch_arms(session, resolved, tensors, peer(size))
            for arm, call in arms.items():
                check_sum(arm, tensors, call)
            cases = {arm: partial(time_calls, call, CALLS, finish=finish) for arm, call in arms.items()}
            rows += launch_rows(size, run_rounds(cases, rounds))
        rows.append(look_up_row(session, LaunchSumPayload(arguments=SUM_SIZES[0]), rounds))
    return {"device": torch.cuda.get_device_name(), "tvm_ffi": found}


def launch_rows(size: int, taken: dict[str, list[float]]) -> list[Row]:
    """Return the rows of a size: everything against the driver, and ours against what others do."""
    named = {
        "bound": ("`bound.launch()`", 1.25),
        "program": ("`program.launch(...)`, every argument checked", 2.0),
        "cuda_core": ("`cuda.core.launch`", None),
        "triton_jit": ("Triton's JIT", None),
        "tvm_ffi": ("CuTe through TVM-FFI", None),
    }
    driver = "driver call, parameters packed before"
    rows = [
        make_row(taken, arm, "driver", what=f"{what}, {size} arguments", against=driver, unit="us", budget=budget)
        for arm, (what, budget) in named.items()
        if arm in taken
    ]
    for arm, budget in (("bound", 0.4), ("program", None)):
        what = f"{named[arm][0]}, {size} arguments"
        rows.append(make_row(taken, arm, "triton_jit", what=what, against="Triton's JIT", unit="us", budget=budget))
    return rows


def look_up_row(session: Any, payload: LaunchSumPayload, rounds: int) -> Row:
    """Time the look-up of a kept payload against that of a string in a dict."""
    text = payload.digest
    names = {text: 1}
    cases: dict[str, Callable[[], float]] = {
        "look_up": partial(time_calls, lambda: session.program(payload), 20 * CALLS),
        "dict": partial(time_calls, lambda: names[text], 20 * CALLS),
    }
    taken = run_rounds(cases, rounds)
    what, against = "`session.program(payload)`", "look-up of a string in a dict"
    return make_row(taken, "look_up", "dict", what=what, against=against, unit="us", budget=10.0)


def start(*road: str, bytecode: Path, cache: Path | None = None) -> Start:
    """Run a fresh process along a road; Triton's cache is a new folder unless one is given.

    Installed packages come with bytecode: planfreeze, which runs from its sources here, is to have it as well. All that
    a process imports, of every package, it takes from a folder of bytecode or compiles into it.
    """
    with tempfile.TemporaryDirectory() as fresh:
        environ = {**os.environ, "TRITON_CACHE_DIR": str(cache or fresh), "PYTHONPYCACHEPREFIX": str(bytecode)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        started = time.monotonic()
        command = [sys.executable, str(STARTS_SCRIPT), *road]
        ended = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    told = json.loads(ended.stdout)
    return Start(whole_ms=(told["done_s"] - started) * 1e3, beyond_ms=(told["done_s"] - told["ready_s"]) * 1e3)


def measure_starts(readable: ReadableStore, until: float) -> list[Row]:
    """Time fresh processes: to their first launch, and to having every program of the model's plan.

    Each has run once before, untimed: the bytecode and Triton's warm cache are there.
    """
    store, programs = readable.path, len(find_plan(readable, PlanReference.parse(MODEL_PLAN)).entries)
    with tempfile.TemporaryDirectory() as name:
        warm, one, many = Path(name, "triton"), "1", str(programs)
        run = partial(start, bytecode=Path(name, "bytecode"))
        cases = {
            "first": lambda: run("planfreeze", str(store), launch_plan(ARCH).name),
            "triton_warm": lambda: run("triton", one, cache=warm),
            "triton_cold": lambda: run("triton", one),
            "freeze": lambda: run("freeze", str(store), MODEL_PLAN),
            "triton_many": lambda: run("triton", many, cache=warm),
        }
        for case in cases.values():
            case()
        runs = run_rounds(cases, STARTS, until=until)
    return start_rows(runs, programs)


def start_rows(runs: dict[str, list[Start]], programs: int) -> list[Row]:
    """Return the rows of fresh processes."""
    whole = {name: [run.whole_ms for run in taken] for name, taken in runs.items()}
    beyond = {name: [run.beyond_ms for run in taken] for name, taken in runs.items()}
    rows = []
    for taken, what in ((whole, "process start to first launch"), (beyond, "the same, torch and context there before")):
        for base, against in (("triton_warm", "Triton, warm cache"), ("triton_cold", "Triton, compiling")):
            rows.append(make_row(taken, "first", base, what=what, against=against, unit="ms", budget=None))
    what = f"open and freeze `{MODEL_PLAN}`, torch and context there before"
    against = f"Triton, warm cache, {programs} programs"
    rows.append(make_row(beyond, "freeze", "triton_many", what=what, against=against, unit="ms", budget=0.1))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure launches and starts on a device.")
    parser.add_argument("store", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--tvm-ffi", type=Path, metavar="DIR", help="measure CuTe kernels through TVM-FFI too")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of launches; default: {ROUNDS}")
    parser.add_argument("--seconds", type=float, default=100.0, help="begin no start after so long; default: 100")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    readable = open_readable(given.store, is_trusted=True)
    rows: list[Row] = []
    facts = describe_host(DISTRIBUTIONS)
    try:
        facts |= measure_launches(readable, given.tvm_ffi, given.rounds, rows)
        from launch_bench.whole_layer import measure_layer

        rows += measure_layer(readable, given.rounds)
        rows += measure_starts(readable, until)
    finally:  # what was measured before an error counts too
        write_rows(rows, facts, given.json)
    return int(has_missed(rows))


if __name__ == "__main__":
    sys.exit(main())
