"""Replays under pytest: a whole run, with its workers, that has to use all of some frozen plans and compile nothing."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import asdict

from planfreeze import errors
from planfreeze.cache.readable import open_readable
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.guard import Attempt, installed_roads, prove
from planfreeze.keepers import keep_sessions
from planfreeze.nearest import explain_attempt
from planfreeze.pytest_plugin.witness import Witness
from planfreeze.resolve import PlannedProgram, PlanReference, find_plan, planned_programs, program_name
from planfreeze.runs.guarded import CountedAttempt, count_attempts, make_environment
from planfreeze.runs.questions import prove_start
from planfreeze.settings import read_settings, store_path
from planfreeze.uses import Uses, gather_uses

__all__ = ["ReplayRun", "Verdict", "judge"]

REPORT = "planfreeze_uses"


class Replayed(Struct, frozen=True, kw_only=True):
    """A frozen plan of a replay with its programs."""

    plan: FrozenPlan
    programs: tuple[PlannedProgram, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The programs as people and statistics name them."""
        return tuple(program_name(program.payload) for program in self.programs)


class Verdict(Struct, frozen=True, kw_only=True):
    """What a replay found: lines that state it, and a reason for each way in which it failed."""

    states: tuple[str, ...]
    reasons: tuple[str, ...]


def judge(
    replayed: tuple[Replayed, ...],
    uses: Uses,
    attempts: tuple[CountedAttempt, ...],
    explain: Callable[[Attempt], str],
) -> Verdict:
    """Judge a run by what it used of its plans and what it tried to compile."""
    states, reasons = [], []
    for found in replayed:
        counts = uses.by_plan.get(found.plan.root, {})
        unused = [name for name in found.names if not counts.get(name)]
        launches = sum(counts.get(name, 0) for name in found.names)
        states.append(
            f"{found.plan.name}@sha256:{found.plan.root}: {launches} launches of "
            f"{len(found.names) - len(unused)} of {len(found.names)} programs"
        )
        if not launches:
            reasons.append(f"nothing of {found.plan.name} was launched from a frozen session: this run proves nothing")
        if unused:
            reasons.append(f"{found.plan.name}: {len(unused)} planned programs were never used: {'; '.join(unused)}")
    if uses.unfrozen:
        reasons.append(f"{uses.unfrozen} launches came from sessions that were never frozen: call freeze() on them")
    compiles = sum(found.count for found in attempts)
    states.append(f"{uses.hits} hits in the store, {compiles} attempts to compile")
    if attempts:
        tried = "".join(f"\n  {found.attempt} ({found.count} times). {explain(found.attempt)}" for found in attempts)
        reasons.append(f"a compiler was reached {compiles} times:{tried}")
    return Verdict(states=tuple(states), reasons=tuple(reasons))


class ReplayRun:
    """The part of one process in a replay: it counts uses, and where it started the others, it judges the run.

    Parameters
    ----------
    config : pytest.Config
        The run; of a worker of xdist, the worker's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.witness = Witness()
        self.sessions = keep_sessions()
        self.replayed: tuple[Replayed, ...] = ()
        self.guard: Mapping[str, str] = {}
        self.failures: list[str] = []
        self.workers: list[Uses] = []
        self.verdict: Verdict | None = None

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker of xdist, which says so after the first hooks have run."""
        return hasattr(self.config, "workerinput")

    def begin(self, plans: tuple[str, ...], store: str | None) -> None:
        """Find the plans; outside of workers, prove in a child process that the guard is awake.

        Raises
        ------
        UsageError
            A plan cannot be used, or holds no program.
        """
        settings = read_settings()
        try:
            opened = open_readable(
                Path(store) if store else store_path(settings),
                is_trusted=settings.is_store_trusted,
                trusted_keys=settings.trusted_keys,
            )
            found = [find_plan(opened, PlanReference.parse(name)) for name in dict.fromkeys(plans)]
            self.replayed = tuple(Replayed(plan=plan, programs=planned_programs(plan)) for plan in found)
        except errors.PlanfreezeError as error:
            raise pytest.UsageError(f"--planfreeze-replay: {error}") from error
        if not self.is_worker:
            self.prove_children()

    def prove_children(self) -> None:
        """Prove the guard in a process started as the run's own children are; a sleeping one fails the run."""
        try:
            self.guard = prove_start(make_environment("raise", None))
        except errors.PlanfreezeError as error:
            self.failures.append(str(error))

    def explain(self, attempt: Attempt) -> str:
        """Name the nearest planned program of an attempt; of one that another process logged, the words are left."""
        if attempt.signature and not attempt.facts:
            return ""
        planned = [program for found in self.replayed for program in found.programs]
        plans = ", ".join(found.plan.name for found in self.replayed)
        command = self.replayed[0].plan.build_command if self.replayed else "planfreeze build --model MODEL"
        return explain_attempt(attempt, planned, plans, command)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the uses of a worker; judge the run in the process that started it. Fixtures are torn down by now."""
        asleep = [road for road in installed_roads() if prove(road) is not True] if self.witness.is_armed else ["all"]
        if asleep:
            self.failures.append(f"the guard was asleep at the end of process {os.getpid()}: {', '.join(asleep)}")
        uses = gather_uses(self.sessions, self.workers)
        if self.is_worker:
            output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]  # of xdist
            output[REPORT] = {"uses": asdict(uses), "failures": self.failures}
        elif not self.config.option.collectonly:
            judged = judge(self.replayed, uses, count_attempts(self.witness.take()), self.explain)
            self.verdict = Verdict(states=judged.states, reasons=(*self.failures, *judged.reasons))
            if self.verdict.reasons and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of xdist tells when it ends."""
        told = getattr(node, "workeroutput", {}).get(REPORT)
        if told is None:
            self.failures.append(f"worker {node.gateway.id} ended without telling what it used")
            return
        self.workers.append(Uses(**told["uses"]))
        self.failures.extend(told["failures"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """State what the run launched, found and compiled, and why it failed."""
        if self.verdict is None:
            return
        terminalreporter.section("planfreeze replay", red=bool(self.verdict.reasons), bold=True)
        if self.guard:
            terminalreporter.line("guard: " + ", ".join(f"{road} {state}" for road, state in self.guard.items()))
        for line in self.verdict.states:
            terminalreporter.line(line)
        for reason in self.verdict.reasons:
            terminalreporter.line(f"FAILED: {reason}", red=True)
