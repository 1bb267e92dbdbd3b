"""Slots: compile processes at work side by side on the programs of one build."""

import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.store import Store
from planfreeze.keyed import KeyedProgram
from planfreeze.outcomes import Outcome, Place, compile_program, find_stored
from planfreeze.target import Target
from planfreeze.workers import Worker

__all__ = ["build_programs"]

# A builder that waits longer for another one to finish a program reports who holds it. It waits in steps, so that
# it can be stopped and does not miss another program that is finished first.
LOCK_TIMEOUT_S = 600.0
LOCK_STEP_S = 0.5
TELL_S = 10.0  # how often it says so meanwhile


def build_programs(programs: list[KeyedProgram], store: Store, jobs: int) -> Iterator[Outcome]:
    """Yield an outcome for every program: stored ones first, then as they are compiled.

    A program that another builder is at work on has outcomes that say so before its last one.
    """
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
    board, build = Board(missing), secrets.token_hex(8)
    slots = [
        threading.Thread(target=run_slot, args=(board, Place(build, number), store, outcomes), daemon=True)
        for number in range(max(1, min(jobs, len(missing))))
    ]
    for slot in slots:
        slot.start()
    try:
        left = len(missing)
        while left:
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            left -= outcome.status != "waiting"
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
        self._told: dict[str, float] = {}
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

    def put_aside(self, program: KeyedProgram, since: float, now: float) -> bool:
        """Leave a program for later that another builder is at work on; tell whether it is time to say so."""
        with self._lock:
            self._aside.append((program, since))
            is_due = now - self._told.get(program.key.digest, -TELL_S) >= TELL_S
            if is_due:
                self._told[program.key.digest] = now
            return is_due

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

    def __init__(self, board: Board, place: Place) -> None:
        self._board = board
        self._place = place
        self._worker: Worker | None = None

    @property
    def target(self) -> Target | None:
        """What the running process compiles for."""
        return None if self._worker is None else self._worker.target

    def compile(self, program: KeyedProgram, store: Store) -> Outcome:
        """Compile and publish one program, unless another builder did since; once more when a signal ends the process.

        The system kills what takes too much memory, which depends on what else runs. A compiler's own no is final.
        """
        stored = find_stored(program, store)
        if stored is not None:
            return stored
        try:
            return self._compile_once(program, store)
        except errors.WorkerDied as error:
            if not error.is_worth_another_try:
                return Outcome(program=program, status="failed", reason=str(error))
            earlier = str(error)
        try:
            return replace(self._compile_once(program, store), earlier=earlier)
        except errors.WorkerDied as error:
            return Outcome(program=program, status="failed", reason=str(error), earlier=earlier)

    def _compile_once(self, program: KeyedProgram, store: Store) -> Outcome:
        """Compile and publish one program; a process that dies is no longer this slot's."""
        if self.target != program.target:
            self.close()
        if self._worker is None:
            self._worker = self._board.start_worker(program.target)
        try:
            return compile_program(program, store, self._worker, self._place)
        except errors.WorkerDied as error:
            if self._board.is_stopped:
                raise BuildStoppedError from error
            self.close()
            raise

    def close(self) -> None:
        """End the process, if one runs."""
        if self._worker is not None:
            self._board.end_worker(self._worker)
            self._worker = None


def run_slot(board: Board, place: Place, store: Store, outcomes: "queue.SimpleQueue[Outcome | BaseException]") -> None:
    """Take programs off the board until none is left; a program another builder is at work on is put aside."""
    slot = Slot(board, place)
    try:
        while (taken := board.take(slot.target)) is not None:
            program, since = taken
            try:
                with store.lock_key(program.key.digest, timeout_s=0.0 if since is None else LOCK_STEP_S):
                    outcome = slot.compile(program, store)
            except errors.KeyLocked as error:
                now = time.monotonic()
                since = now if since is None else since
                if now - since < LOCK_TIMEOUT_S:
                    if board.put_aside(program, since, now):
                        outcomes.put(
                            Outcome(program=program, status="waiting", seconds=now - since, reason=error.holder)
                        )
                    continue
                locked = errors.KeyLocked(error.key, error.store, error.holder, now - since)
                outcome = Outcome(program=program, status="failed", reason=str(locked))
            outcomes.put(outcome)
    except BuildStoppedError:
        return
    except BaseException as error:  # noqa: BLE001
        outcomes.put(error)  # raised again in the build's own thread
    finally:
        slot.close()
