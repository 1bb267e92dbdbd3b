"""Builds: find what a plan lacks in a store, compile it in worker processes, publish it, freeze the plan."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.compilers import CompiledProgram
from planfreeze.errors import (
    CompileFailed,
    DamagedEntry,
    DamagedRecord,
    InvalidCubin,
    KeyLocked,
    MissingEntry,
    UnexpectedCubin,
    WorkerDied,
    WrongArch,
)
from planfreeze.family import Definition, Family
from planfreeze.inspection import inspect_cubin
from planfreeze.key import Key, dialect_of, make_key, source_roots
from planfreeze.payload import Payload
from planfreeze.plans import FrozenPlan, Plan, PlanEntry, freeze_families
from planfreeze.record import ProgramRecord
from planfreeze.resolve import program_name
from planfreeze.sources import Sources, read_sources
from planfreeze.target import Target
from planfreeze.toolchain import Toolchain, find_toolchain
from planfreeze.workers import Task, Worker

__all__ = ["BuildReport", "KeyedProgram", "Outcome", "build_plans", "key_plan"]

# A builder that waits longer for another one to finish a program reports who holds it. It waits in steps, so that
# it can be stopped and does not miss another program that is finished first.
LOCK_TIMEOUT_S = 600.0
LOCK_STEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedProgram:
    """A planned program with its key and the text it stands for."""

    family: Family
    payload: Payload
    definition: Definition
    target: Target
    sources: Sources
    key: Key

    @property
    def name(self) -> str:
        """The program as people read it."""
        return program_name(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one program: its record, or the reason there is none."""

    program: KeyedProgram
    status: Literal["compiled", "reused", "failed"]
    seconds: float = 0.0
    record: ProgramRecord | None = None
    record_digest: str = ""
    size_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """Outcomes in planned order, and the frozen plans of the targets that are complete."""

    outcomes: tuple[Outcome, ...]
    plans: tuple[FrozenPlan, ...]

    def count(self, status: str) -> int:
        """Return how many programs have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)


def key_plan(plan: Plan, toolchains: Path) -> tuple[KeyedProgram, ...]:
    """Key every program of a plan.

    Parameters
    ----------
    toolchains : Path
        Directory that remembers compiler fingerprints.

    Raises
    ------
    CompilerMissing
        A compiler whose fingerprint the keys need is not installed.
    """
    installed: dict[str, Toolchain] = {}
    read: dict[tuple[str, str], Sources] = {}
    keyed = []
    for family, payload in plan.programs:
        definition = family.define(payload, plan.target)
        dialect, roots = dialect_of(definition), source_roots(family, definition)
        if dialect not in installed:
            installed[dialect] = find_toolchain(dialect, toolchains)
        if roots not in read:
            read[roots] = read_sources(roots)
        key = make_key(family, payload, definition, plan.target, read[roots], installed[dialect])
        keyed.append(
            KeyedProgram(
                family=family,
                payload=payload,
                definition=definition,
                target=plan.target,
                sources=read[roots],
                key=key,
            )
        )
    return tuple(keyed)


def build_plans(
    plans: Iterable[Plan],
    store: Store,
    *,
    jobs: int,
    toolchains: Path,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> BuildReport:
    """Compile what is missing and freeze every plan that is complete.

    Parameters
    ----------
    plans : iterable of Plan
        One per target.
    store : Store
        Open for writing.
    jobs : int
        Compile processes at a time; at least one is used.
    on_outcome : callable
        Called in this thread with each outcome as it comes.

    Notes
    -----
    Programs are published one by one: an interrupted build keeps what it has. A plan with a failed program is not
    frozen. Each key is compiled once however many builders share the store, as far as its locks work.
    """
    keyed = [(plan, key_plan(plan, toolchains)) for plan in plans]
    unique = {program.key.digest: program for _, programs in keyed for program in programs}
    outcomes: dict[str, Outcome] = {}
    for outcome in build_programs(list(unique.values()), store, jobs):
        outcomes[outcome.program.key.digest] = outcome
        on_outcome(outcome)
    frozen = []
    for plan, programs in keyed:
        made = [outcomes[program.key.digest] for program in programs]
        if all(outcome.record is not None for outcome in made):
            frozen.append(freeze_plan(plan, made))
            store.set_ref(plan.name, store.put_plan(frozen[-1].encode()))
    return BuildReport(outcomes=tuple(outcomes[digest] for digest in unique), plans=tuple(frozen))


def freeze_plan(plan: Plan, outcomes: Iterable[Outcome]) -> FrozenPlan:
    """Make the frozen plan of complete outcomes."""
    made = list(outcomes)
    entries = tuple(
        PlanEntry(
            family=outcome.program.family.reference,
            fields=tuple(outcome.program.payload.to_fields().items()),
            key=outcome.program.key.digest,
            record=outcome.record_digest,
            blob=outcome.record.blob,
        )
        for outcome in made
        if outcome.record is not None
    )
    assert len(entries) == len(plan.payloads)
    return FrozenPlan(
        model=plan.model,
        tp=plan.tp,
        arch=plan.target.arch,
        families=freeze_families((outcome.program.family, outcome.program.sources) for outcome in made),
        entries=entries,
    )


def build_programs(programs: list[KeyedProgram], store: Store, jobs: int) -> Iterator[Outcome]:
    """Yield an outcome for every program: stored ones first, then as they are compiled."""
    missing: deque[KeyedProgram] = deque()
    for program in programs:
        stored = find_stored(program, store)
        if stored is not None:
            yield stored
        else:
            missing.append(program)
    if not missing:
        return
    outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    board = Board(missing)
    slots = [
        threading.Thread(target=run_slot, args=(board, store, outcomes), daemon=True)
        for _ in range(max(1, min(jobs, len(missing))))
    ]
    for slot in slots:
        slot.start()
    try:
        for _ in range(len(missing)):
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        board.stop()
        for slot in slots:
            slot.join()


class Board:
    """The programs still to compile, shared by the slots of one build."""

    def __init__(self, missing: Iterable[KeyedProgram]) -> None:
        self._waiting: deque[tuple[KeyedProgram, float | None]] = deque((program, None) for program in missing)
        self._aside: deque[tuple[KeyedProgram, float | None]] = deque()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self.is_stopped = False

    def take(self, preferred: Target | None) -> tuple[KeyedProgram, float | None] | None:
        """Return the next program, of the preferred target if any is left, and since when it has been put aside."""
        with self._lock:
            waiting = self._waiting or self._aside
            if self.is_stopped or not waiting:
                return None
            chosen = next((pair for pair in waiting if pair[0].target == preferred), waiting[0])
            waiting.remove(chosen)
            return chosen

    def put_aside(self, program: KeyedProgram, since: float) -> None:
        """Leave a program for later that another builder is at work on."""
        with self._lock:
            self._aside.append((program, since))

    def start_worker(self, target: Target) -> Worker:
        """Start a compile process unless the build was stopped."""
        with self._lock:
            if self.is_stopped:
                raise BuildStoppedError
            worker = Worker(target)
            self._workers.add(worker)
            return worker

    def end_worker(self, worker: Worker) -> None:
        """End a compile process."""
        with self._lock:
            self._workers.discard(worker)
        worker.close()

    def stop(self) -> None:
        """Hand out nothing more and end every compile process."""
        with self._lock:
            self.is_stopped = True
            for worker in self._workers:
                worker.kill()


class BuildStoppedError(Exception):
    """The build ended while a slot was at work."""


class Slot:
    """One compile process at a time, replaced when the target changes or it dies."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._worker: Worker | None = None

    @property
    def target(self) -> Target | None:
        """What the running process compiles for."""
        return None if self._worker is None else self._worker.target

    def compile(self, program: KeyedProgram, store: Store) -> Outcome:
        """Compile and publish one program, unless another builder did since."""
        stored = find_stored(program, store)
        if stored is not None:
            return stored
        if self.target != program.target:
            self.close()
        if self._worker is None:
            self._worker = self._board.start_worker(program.target)
        try:
            return compile_program(program, store, self._worker)
        except WorkerDied as error:
            if self._board.is_stopped:
                raise BuildStoppedError from error
            self.close()
            return Outcome(program=program, status="failed", reason=str(error))

    def close(self) -> None:
        """End the process, if one runs."""
        if self._worker is not None:
            self._board.end_worker(self._worker)
            self._worker = None


def run_slot(board: Board, store: Store, outcomes: "queue.SimpleQueue[Outcome | BaseException]") -> None:
    """Take programs off the board until none is left; a program another builder is at work on is put aside."""
    slot = Slot(board)
    try:
        while (taken := board.take(slot.target)) is not None:
            program, since = taken
            try:
                with store.lock_key(program.key.digest, timeout_s=0.0 if since is None else LOCK_STEP_S):
                    outcome = slot.compile(program, store)
            except KeyLocked as error:
                now = time.monotonic()
                since = now if since is None else since
                if now - since < LOCK_TIMEOUT_S:
                    board.put_aside(program, since)
                    continue
                locked = KeyLocked(error.key, error.store, error.holder, now - since)
                outcome = Outcome(program=program, status="failed", reason=str(locked))
            outcomes.put(outcome)
    except BuildStoppedError:
        return
    except BaseException as error:  # noqa: BLE001
        outcomes.put(error)  # raised again in the build's own thread
    finally:
        slot.close()


def find_stored(program: KeyedProgram, store: Store) -> Outcome | None:
    """Return the outcome of a program whose record and cubin are whole in the store.

    Anything else counts as missing: it is compiled again, and publishing it puts the damaged entry aside. A whole
    record that is none of this program is put aside here, since the store cannot tell.
    """
    try:
        encoded = store.get_record(program.key.digest)
        record = ProgramRecord.decode(encoded)
        if (record.arch, record.payload) != (program.target.arch, program.payload.encode()):
            raise DamagedRecord("it is another program's")
        cubin = store.get_blob(record.blob)
    except (MissingEntry, DamagedEntry):
        return None
    except DamagedRecord as error:
        store.quarantine("record", program.key.digest, str(error))
        return None
    return Outcome(
        program=program,
        status="reused",
        record=record,
        record_digest=digest_of(encoded),
        size_bytes=len(cubin),
    )


def compile_program(program: KeyedProgram, store: Store, worker: Worker) -> Outcome:
    """Compile one program and publish it: the cubin first, its record last."""
    task = Task(program.family.reference, program.payload, program.target, program.sources)
    started = time.monotonic()
    try:
        compiled = worker.compile(task)
        record = make_record(program, compiled)
    except (CompileFailed, InvalidCubin, UnexpectedCubin, WrongArch) as error:
        return Outcome(program=program, status="failed", seconds=time.monotonic() - started, reason=str(error))
    seconds = time.monotonic() - started
    store.put_blob(compiled.cubin)
    published = store.put_record(program.key.digest, record.encode())
    if published.outcome == "different":
        reason = f"record {published.offered} differs from {published.digest}, stored for the same inputs"
        return Outcome(program=program, status="failed", seconds=seconds, reason=f"not reproducible: {reason}")
    return Outcome(
        program=program,
        status="compiled",
        seconds=seconds,
        record=record,
        record_digest=published.digest,
        size_bytes=len(compiled.cubin),
    )


def make_record(program: KeyedProgram, compiled: CompiledProgram) -> ProgramRecord:
    """Make the record of a compiled program from its definition and its own bytes."""
    kernel = inspect_cubin(program.name, compiled.cubin, program.definition, compiled.launch, program.target)
    return ProgramRecord(
        family=program.family.reference,
        arch=program.target.arch,
        blob=digest_of(compiled.cubin),
        symbol=kernel.symbol,
        payload=program.payload.encode(),
        launch=compiled.launch,
        parameter_bytes=kernel.parameter_sizes,
        registers=kernel.registers,
        stack_bytes=kernel.stack_bytes,
        static_shared_bytes=kernel.shared_bytes,
    )
