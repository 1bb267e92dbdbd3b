"""Timing by interleaved rounds, rows of figures with their budgets, and what a report of them says."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

__all__ = ["Row", "describe_host", "has_missed", "make_row", "run_rounds", "spread", "time_calls", "write_rows"]

Figure = TypeVar("Figure")
Spread = dict[str, float]


class Row(Struct, frozen=True, kw_only=True):
    """A figure against another that was taken in the same rounds.

    Parameters
    ----------
    what, against : str
        The case and its base, for people.
    unit : str
        Of both figures.
    figure, base, ratio : Spread
        Medians and quartiles; the ratio is one of each round.
    budget : float, optional
        The largest ratio that is allowed; None where nothing is.
    """

    what: str
    against: str
    unit: str
    figure: Spread
    base: Spread
    ratio: Spread
    budget: float | None

    @property
    def is_missed(self) -> bool:
        """Whether the median is over the budget."""
        return self.budget is not None and self.ratio["median"] > self.budget


def run_rounds(
    cases: Mapping[str, Callable[[], Figure]], rounds: int, *, until: float = float("inf")
) -> dict[str, list[Figure]]:
    """Take one figure of each case, round by round, so that all cases see the same machine.

    Parameters
    ----------
    cases : mapping
        Each measures once and returns its figure.
    rounds : int
        How many; at least one is run.
    until : float
        No further round begins at this ``time.monotonic()``.
    """
    taken: dict[str, list[Figure]] = {name: [] for name in cases}
    for number in range(rounds):
        if number and time.monotonic() >= until:
            break
        for name, case in cases.items():
            taken[name].append(case())
    return taken


def time_calls(call: Callable[[], Any], calls: int, *, finish: Callable[[], Any] = lambda: None) -> float:
    """Return the microseconds a call takes its caller; ``finish`` is run before and after, and not timed."""
    finish()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - started
    finish()
    return elapsed / calls * 1e6


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    if len(values) == 1:
        return dict.fromkeys(("median", "first_quartile", "third_quartile"), values[0])
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "first_quartile": first, "third_quartile": third}


def make_row(
    taken: Mapping[str, Sequence[float]],
    case: str,
    base: str,
    *,
    what: str,
    against: str,
    unit: str,
    budget: float | None,
) -> Row:
    """Make the row of one case over another of the same rounds."""
    ratios = [figure / other for figure, other in zip(taken[case], taken[base], strict=True)]
    return Row(
        what=what,
        against=against,
        unit=unit,
        figure=spread(taken[case]),
        base=spread(taken[base]),
        ratio=spread(ratios),
        budget=budget,
    )


def describe_host(distributions: Iterable[str]) -> dict[str, Any]:
    """Return processor, kernel, Python, and the versions of what is installed of some distributions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
    }


def has_missed(rows: Iterable[Row]) -> bool:
    """Tell whether a row is over its budget."""
    return any(row.is_missed for row in rows)


def write_rows(rows: Sequence[Row], facts: Mapping[str, Any], path: Path | None) -> None:
    """Print rows as lines, and write them with facts about the machine as JSON where a path is given."""
    for row in rows:
        allowed = "" if row.budget is None else f"  budget {row.budget:g}{': MISSED' if row.is_missed else ''}"
        sys.stdout.write(
            f"{row.what:66.66} {row.figure['median']:10.3f} {row.unit:3}  {row.ratio['median']:7.2f} x {row.against}"
            f" ({row.ratio['first_quartile']:.2f}..{row.ratio['third_quartile']:.2f}){allowed}\n"
        )
    if path is not None:
        path.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
