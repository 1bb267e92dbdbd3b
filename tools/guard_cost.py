"""What a guard costs where nothing compiles: its import, a child's start, and a launch with a driver that does nothing.

Run it as ``python tools/guard_cost.py``; it needs no GPU and prints JSON, medians of interleaved rounds with the
spread from the first to the third quartile.
"""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from rounds import run_rounds, spread

from planfreeze.guard import child_environment, no_compilation
from planfreeze.launching import ParameterLayout
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
        (status,) = self._driver_launch(self.grid, self._address, handle)
        if status.value:
            self._launch_in_context(status, handle)


def make_bound(kind: type[Bound]) -> Bound:
    """Bind a program whose driver does nothing."""
    device = SimpleNamespace(ordinal=0, _current_stream=lambda ordinal: 7)
    program: Any = SimpleNamespace(
        device=device,
        launches=0,
        _entered=0,
        _left=0,
        _refusal="",
        _parameters=ParameterLayout((), 3),
        driver_launch=lambda *, is_programmatic: lambda grid, address, stream: SUCCESS,
    )
    bound = kind(program, is_programmatic=False)
    bound.fill((), (1, 1, 1), ())
    return bound


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


def main() -> None:
    """Measure and print."""
    counted, uncounted = make_bound(Bound), make_bound(UncountedBound)
    launches = run_rounds(
        {
            "uncounted": lambda: time_launches(uncounted),
            "counted": lambda: time_launches(counted),
            "armed": lambda: time_armed_launches(counted),
        },
        ROUNDS,
    )
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    starts = run_rounds(
        {
            "plain": lambda: time_start(plain),
            "guarded": lambda: time_start(child_environment(plain, "raise")),
            "importing": lambda: time_start(plain, "import planfreeze.guard"),
        },
        STARTS,
    )
    pairs = list(zip(launches["counted"], launches["armed"], launches["uncounted"], strict=True))
    report = {
        "launch_us": {name: spread(values) for name, values in launches.items()},
        "armed_over_unarmed": spread([armed / bare for bare, armed, _ in pairs]),
        "counting_us": spread([bare - without for bare, _, without in pairs]),
        "start_ms": {name: spread(values) for name, values in starts.items()},
        "guarded_start_adds_ms": spread(
            [guarded - bare for bare, guarded in zip(starts["plain"], starts["guarded"], strict=True)]
        ),
        "import_adds_ms": spread(
            [importing - bare for bare, importing in zip(starts["plain"], starts["importing"], strict=True)]
        ),
    }
    json.dump(report, sys.stdout, indent=2)
    print()  # noqa: T201 - the end of the line


if __name__ == "__main__":
    main()
