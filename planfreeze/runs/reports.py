"""Reports of runs under the guard: on standard error for people, as JSON for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planfreeze import errors
from planfreeze.reports import print_table
from planfreeze.runs.guarded import CountedAttempt, Run

__all__ = ["attempt_rows", "print_attempts", "print_proof", "run_json", "write_report"]

HEADS = ("road", "kernel", "at", "times", "process")
LOG_COLUMNS = 10_000  # in a log, a row stays in one line


def print_proof(proven: Mapping[str, str]) -> None:
    """Print on standard error what the guard watches; nowhere, where it is closed."""
    if sys.stderr is None:
        return
    states = ", ".join(f"{road} {state}" for road, state in proven.items())
    sys.stderr.write(f"planfreeze: guard proven: {states}\n")
    sys.stderr.flush()


def print_attempts(run: Run, *, is_quiet: bool = False) -> None:
    """Print on standard error what a run was served, and what it tried to compile; nowhere, where it is closed.

    When quiet, only what it tried to compile.
    """
    if sys.stderr is None or (is_quiet and not run.attempts):
        return
    if run.programs and not is_quiet:
        unused = [name for name, is_used in run.programs.items() if not is_used]
        sys.stderr.write(f"planfreeze: {len(run.programs) - len(unused)} of {len(run.programs)} programs were served\n")
        sys.stderr.writelines(f"planfreeze: planned and not used: {name}\n" for name in unused)
    if not run.attempts:
        sys.stderr.write("planfreeze: no compiler was reached\n")
        return
    times = sum(attempt.count for attempt in run.attempts)
    sys.stderr.write(
        f"planfreeze: a compiler was reached {times} times; the command's own status {run.command_status}\n"
    )
    print_table("", HEADS, attempt_rows(run.attempts), stream=sys.stderr, pipe_columns=LOG_COLUMNS)
    sys.stderr.write(
        "planfreeze: serving would have stopped there. To plan what the command launches, "
        "run: planfreeze record -o kernels.json -- COMMAND\n"
    )


def attempt_rows(attempts: Sequence[CountedAttempt]) -> list[tuple[str, ...]]:
    """Return a row of text per attempt."""
    return [
        (
            found.attempt.road,
            f"{found.attempt.kernel}({found.attempt.signature})",
            found.attempt.location,
            str(found.count),
            ", ".join(map(str, found.pids)),
        )
        for found in attempts
    ]


def run_json(run: Run) -> dict[str, Any]:
    """Return what became of a run."""
    return {
        "command": list(run.command),
        "status": run.status,
        "command_status": run.command_status,
        "guard": dict(run.guard),
        "programs": dict(run.programs),
        "attempts": [
            {
                "road": found.attempt.road,
                "kernel": found.attempt.kernel,
                "signature": found.attempt.signature,
                "location": found.attempt.location,
                "count": found.count,
                "pids": list(found.pids),
            }
            for found in run.attempts
        ],
    }


def write_report(path: Path, run: Run | None) -> None:
    """Write a run as JSON; None leaves an empty file, which shows that the place can be written.

    Raises
    ------
    ReportUnwritable
        It cannot.
    """
    try:
        path.write_text("" if run is None else json.dumps(run_json(run), indent=2) + "\n")
    except OSError as error:
        raise errors.ReportUnwritable(str(path), error.strerror or str(error)) from error
