"""Measure the budgets that need no device: python tools/budgets.py [--json FILE].

Each row is a ratio of two figures that were taken in turn. tools/bench_launch.py measures those of a device. The exit
status is 1 where a budget is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_launch import look_up_row
from cpu_bench.cold_builds import measure_cold_build
from cpu_bench.openings import measure_openings
from cpu_bench.processes import measure_processes
from cpu_bench.subject import Subject, write_sums_model
from launch_bench.sums import SUM_SIZES, LaunchSumPayload
from rounds import Row, describe_host, has_missed, write_rows

import planfreeze

DISTRIBUTIONS = ("triton", "nvidia-cutlass-dsl", "typer", "rich", "msgspec")
ROUNDS = 15


def measure(subject: Subject, folder: Path, *, sizes: tuple[int, int], foreign: int, rounds: int) -> list[Row]:
    """Measure everything in an empty folder; the plan of ``subject`` is built there."""
    store = folder / "store"
    rows = measure_cold_build(subject, store, folder)
    sums = write_sums_model(folder / "sums.toml", len(subject.plan.payloads))
    rows += measure_processes(subject, store, sums, folder, rounds)
    few, many = (write_sums_model(folder / f"sums{size}.toml", size) for size in sizes)
    real = (folder / "sums", sums.plan.name)
    rows += measure_openings(few, many, folder, real=real, foreign=foreign, rounds=rounds)
    with planfreeze.session(few.plan.name, store=folder / "few", is_trusted=True) as session:
        payload = LaunchSumPayload(arguments=SUM_SIZES[0])
        session._programs[payload.digest] = KeptProgram()  # type: ignore[assignment]  # no device loads one here
        rows.append(look_up_row(session, payload, rounds))
    return rows


class KeptProgram:
    """Stands for a loaded program."""

    name = "a kept program"
    launches = 0

    def unload(self, reason: str, *, is_forked: bool = False) -> None:
        """Do nothing: nothing is loaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure the budgets that need no device.")
    parser.add_argument("--model", default="ds41", help="catalog name or file; default: ds41")
    parser.add_argument("--tp", type=int, default=4, help="ranks the model is divided over; default: 4")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of all but the cold build; default: {ROUNDS}")
    parser.add_argument("--sizes", type=int, nargs=2, default=(24, 500), help="programs of the plans that are opened")
    parser.add_argument("--foreign", type=int, default=50_000, help="entries of others; default: 50000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(
            Subject(model=given.model, tp=given.tp),
            Path(folder),
            sizes=tuple(given.sizes),
            foreign=given.foreign,
            rounds=given.rounds,
        )
    write_rows(rows, describe_host(DISTRIBUTIONS), given.json)
    return int(has_missed(rows))


if __name__ == "__main__":
    sys.exit(main())
