"""Opening plans: few and many programs, alone in a store and among many entries of others."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

from rounds import Row, make_row, run_rounds, time_calls
from stub_compiler import stub_worker

from cpu_bench.subject import Subject
from planfreeze.builds import build_plans
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.compilers import CompiledProgram
from planfreeze.resolve import PlanReference, check_kernels, find_plan, planned_programs, resolve_plan, resolve_program
from planfreeze.settings import user_cache

__all__ = ["crowd", "fill", "measure_openings", "open_plan"]

SHARES = {"record": 0.3, "blob": 0.3, "note": 0.3, "plan": 0.05, "ref": 0.05}
IN_PROPORTION = 1.25


def fill(subject: Subject, store: Path, real: Path, real_plan: str) -> None:
    """Build a plan with stand-in programs, stamped copies of one of a plan that was really compiled."""
    readable = Store.open(real, is_trusted=True)
    planned = planned_programs(find_plan(readable, PlanReference.parse(real_plan)))[0]
    resolved = resolve_program(planned, readable)
    base = CompiledProgram(cubin=resolved.cubin, launch=resolved.record.launch)
    with patch("planfreeze.slots.Worker", stub_worker({planned.entry.family: base})):
        opened = Store.open(store, writable=True)
        build_plans([subject.plan], opened, jobs=1, toolchains=user_cache() / "toolchains")


def open_plan(store: Path, name: str) -> int:
    """Do what a session does up to the device: find the plan, check its kernels, read and prove every program."""
    opened = Store.open(store, is_trusted=True)
    plan = find_plan(opened, PlanReference.parse(name))
    check_kernels(plan)
    return len(resolve_plan(plan, opened).check())


def crowd(store: Store, entries: int) -> None:
    """Put so many entries of others into a store, each a link to one file of its kind."""
    for kind, share in SHARES.items():
        source = store.path.parent / f"foreign {kind}"
        source.write_bytes(f"{'0' * 64}\n".encode())
        for number in range(int(entries * share)):
            name = f"foreign-{number}" if kind == "ref" else digest_of(f"{kind} {number}".encode())
            path = store.layout.entry(kind, name)  # type: ignore[arg-type]
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, path)


def measure_openings(
    few: Subject, many: Subject, folder: Path, *, real: tuple[Path, str], foreign: int, rounds: int
) -> list[Row]:
    """Open plans in turn; the figures are per program, since work in proportion to the plan is what is allowed.

    Parameters
    ----------
    real : (Path, str)
        A store, and the name of its plan of programs of the same family that were really compiled.
    """
    sizes = {"few": few, "many": many, "crowded": few}
    cases = {}
    for case, subject in sizes.items():
        store = folder / case
        fill(subject, store, *real)
        if case == "crowded":
            crowd(Store.open(store, writable=True), foreign)
        programs = open_plan(store, subject.plan.name)
        call = partial(open_plan, store, subject.plan.name)
        cases[case] = partial(lambda call, programs: time_calls(call, 1) / programs, call, programs)
    taken = run_rounds(cases, rounds)
    counts = {case: len(subject.plan.payloads) for case, subject in sizes.items()}
    against = f"opening {counts['few']}, a program"
    return [
        make_row(taken, case, "few", what=what, against=against, unit="us", budget=IN_PROPORTION)
        for case, what in (
            ("many", f"opening a plan of {counts['many']}, a program"),
            ("crowded", f"opening a plan of {counts['few']} among {foreign} foreign entries, a program"),
        )
    ]
