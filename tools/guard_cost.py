"""What a guard costs where nothing compiles: its import, a child's start, and a launch with a driver that does nothing.

Run it as ``python tools/guard_cost.py``; it needs no GPU and prints JSON, medians of interleaved rounds with the
spread from the first to the third quartile.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from planfreeze.family import LaunchInfo
from planfreeze.guard import child_environment, no_compilation
from planfreeze.programs import Bound

ROUNDS, LAUNCHES, STARTS = 41, 20_000, 31
SUCCESS = (SimpleNamespace(value=0, name="CUDA_SUCCESS"),)


class UncountedBound(Bound):
    """The same launch without its counter."""

    def launch(self, stream: Any = None) -> None:
        """Launch as :meth:`Bound.launch` does."""
        program = self.program
        if program._refusal:
            program.refuse_unloaded()
        device = program.device
        handle = device._current_stream(device.ordinal) if stream is None else device.stream_handle(stream)
        (status,) = self._driver_launch(handle)
        if status.value:
            self._launch_in_context(status, handle)


def make_bound(kind: type[Bound]) -> Bound:
    """Bind a program whose driver does nothing."""
    driver = SimpleNamespace(cuLaunchKernel=lambda *arguments: SUCCESS)
    device = SimpleNamespace(driver=driver, ordinal=0, _current_stream=lambda ordinal: 7)
    program: Any = SimpleNamespace(
        device=device, launches=0, launch_info=LaunchInfo(block=(32, 1, 1)), _refusal="", _function=None
    )
    return kind(program, [0, 0, 0], (1, 1, 1), ())


def time_launches(bound: Bound) -> float:
    """Return microseconds per launch."""
    launch = bound.launch
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        launch()
    return (time.perf_counter() - started) / LAUNCHES * 1e6


def time_armed_launches(bound: Bound) -> float:
    """Return microseconds per launch under an armed guard."""
    with no_compilation():
        return time_launches(bound)


def time_start(environ: dict[str, str], text: str = "pass") -> float:
    """Return milliseconds from start to end of an interpreter."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", text], env=environ, check=True)
    return (time.perf_counter() - started) * 1e3


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles."""
    first, middle, third = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "first_quartile": round(first, 4), "third_quartile": round(third, 4)}


def measure(rounds: int, **cases: Callable[[], float]) -> dict[str, list[float]]:
    """Measure every case in every round, so that all see the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            taken[name].append(case())
    return taken


def main() -> None:
    """Measure and print."""
    counted, uncounted = make_bound(Bound), make_bound(UncountedBound)
    launches = measure(
        ROUNDS,
        uncounted=lambda: time_launches(uncounted),
        counted=lambda: time_launches(counted),
        armed=lambda: time_armed_launches(counted),
    )
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    starts = measure(
        STARTS,
        plain=lambda: time_start(plain),
        guarded=lambda: time_start(child_environment(plain, "raise")),
        importing=lambda: time_start(plain, "import planfreeze.guard"),
    )
    pairs = list(zip(launches["counted"], launches["armed"], launches["uncounted"], strict=True))
    report = {
        "launch_us": {name: summarize(values) for name, values in launches.items()},
        "armed_over_unarmed": summarize([armed / bare for bare, armed, _ in pairs]),
        "counting_us": summarize([bare - without for bare, _, without in pairs]),
        "start_ms": {name: summarize(values) for name, values in starts.items()},
        "guarded_start_adds_ms": summarize(
            [guarded - bare for bare, guarded in zip(starts["plain"], starts["guarded"], strict=True)]
        ),
        "import_adds_ms": summarize(
            [importing - bare for bare, importing in zip(starts["plain"], starts["importing"], strict=True)]
        ),
    }
    json.dump(report, sys.stdout, indent=2)
    print()  # noqa: T201 - the end of the line


if __name__ == "__main__":
    main()
