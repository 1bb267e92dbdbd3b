"""Whole processes: builds that find everything, help, and what they are held against."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rounds import Row, make_row, run_rounds

from cpu_bench.subject import Subject

__all__ = ["TOOLS", "measure_processes", "time_process"]

TOOLS = Path(__file__).resolve().parents[1]
IMPORTS = "import typer, rich"
EMPTY_COMMAND = "import typer, rich\ndef main(name: str = 'x'): ...\ntyper.run(main)"


def time_process(command: Sequence[str], **settings: str) -> float:
    """Return the milliseconds of a process from start to end."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOOLS), str(TOOLS.parent))), **settings}
    # Installed packages come with bytecode: planfreeze, which runs from its sources here, is to have it as well.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return (time.perf_counter() - started) * 1e3


def measure_processes(subject: Subject, store: Path, sums: Subject, folder: Path, rounds: int) -> list[Row]:
    """Time processes in turn.

    Parameters
    ----------
    subject : Subject
        Whose plan is in ``store``.
    sums : Subject
        As many Triton programs; they are built here first.
    folder : Path
        Gets a store of these, and Triton's cache.
    """
    programs = len(sums.plan.payloads)
    planfreeze = (sys.executable, "-m", "planfreeze")
    python = (sys.executable, "-c")
    triton = (sys.executable, str(TOOLS / "cpu_bench" / "triton_warm.py"), str(programs))
    run = partial(time_process, TRITON_CACHE_DIR=str(folder / "triton"))
    cases: dict[str, Callable[[], float]] = {
        "build": lambda: run((*planfreeze, *subject.build_command(store))),
        "build_sums": lambda: run((*planfreeze, *sums.build_command(folder / "sums"))),
        "help": lambda: run((*planfreeze, "--help")),
        "imports": lambda: run((*python, IMPORTS)),
        "empty": lambda: run((*python, EMPTY_COMMAND)),
        "triton": lambda: run(triton),
    }
    for case in cases.values():
        case()
    taken = run_rounds(cases, rounds)
    found = f"`build` that finds all {len(subject.plan.payloads)} programs"
    rows = (
        ("build", "imports", found, "python importing typer and rich", 3.0),
        ("build", "empty", found, "an empty command of typer", None),
        ("help", "imports", "`planfreeze --help`", "python importing typer and rich", 2.0),
        ("build_sums", "triton", f"`build` that finds {programs} Triton programs", "Triton, warm cache", 1.0),
    )
    return [
        make_row(taken, case, base, what=what, against=against, unit="ms", budget=budget)
        for case, base, what, against, budget in rows
    ]
