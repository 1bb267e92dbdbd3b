"""Sessions: frozen plans resolved and loaded on a device, with every watched road to a compiler closed."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.device import Device
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.guard import Attempt, Guard, Mode, road_names
from planfreeze.keepers import note_session
from planfreeze.payload import Payload
from planfreeze.plan_sources import PlanSource
from planfreeze.processes import watch_forks
from planfreeze.programs import Bound, Program
from planfreeze.resolve import (
    PlannedProgram,
    PlanReference,
    check_kernels,
    planned_programs,
    program_name,
    resolve_plan,
    resolve_program,
)

if TYPE_CHECKING:
    from planfreeze.declared import DeclaredFamily
    from planfreeze.statistics import Statistics

__all__ = ["Session"]


class Session:
    """Programs of frozen plans, resolved from a store and loaded on one device; never compiled.

    Parameters
    ----------
    plans : tuple of str
        Frozen plans, each a reference name or root digest, or a name pinned by ``@sha256:<root>``.
    store : Path
        Where they are: a store, or a pack. A plan without a root digest is taken from a trusted store only.
    device : int, optional
        torch's number of the device; None takes torch's current one when the first program is loaded.
    build : bool
        Build a plan of a catalog model that the store does not have, in a child process, when it is prepared. A
        plan that is there and lacks programs is not built again. After freezing nothing is ever built.
    is_trusted : bool
        Take plans without a root digest from this store whoever owns it.
    trusted_keys : tuple of Path
        Files of public keys. With any, a pack has to be signed by one of them.

    Notes
    -----
    Safe to use from threads. Drop CUDA graphs that were captured over the programs before ``close()``.

    Examples
    --------
    >>> session = planfreeze.session("ds41-tp4-sm_90a", store="/srv/store").freeze()  # doctest: +SKIP
    >>> session.program(TopkSumPayload(hidden=5120, top_k=6)).bind(rows, out, 8).launch()  # doctest: +SKIP
    """

    def __init__(
        self,
        plans: tuple[str, ...],
        store: Path,
        *,
        device: int | None,
        build: bool,
        is_trusted: bool,
        trusted_keys: tuple[Path, ...] = (),
    ) -> None:
        self.store = store
        self.ordinal = device
        self.has_frozen = False
        self._source = PlanSource(store=store, is_builder=build, is_trusted=is_trusted, trusted_keys=trusted_keys)
        self._planned: dict[str, tuple[PlannedProgram, ReadableStore]] = {}
        self._plans: list[tuple[FrozenPlan, ReadableStore, tuple[PlannedProgram, ...]]] = []
        self._programs: dict[str, Program] = {}
        self._device: Device | None = None
        self._guard: Guard | None = None
        self._refusal = ""
        self._last: Statistics | None = None
        self._lock = threading.RLock()
        for plan in plans:
            self.prepare(plan)
        watch_forks(self)
        note_session(self)

    @property
    def is_frozen(self) -> bool:
        """Whether the session is frozen and not closed."""
        return self._guard is not None

    @property
    def is_closed(self) -> bool:
        """Whether the session was closed, or this process is a fork of the one that made it."""
        return bool(self._refusal)

    @property
    def plans(self) -> tuple[FrozenPlan, ...]:
        """The prepared plans."""
        return tuple(plan for plan, *_ in self._plans)

    @property
    def attempts(self) -> Mapping[str, int]:
        """Attempts to compile since the session froze, by road."""
        return self._guard.attempts if self._guard else {}

    def statistics(self) -> "Statistics":
        """Return what the session has seen so far; of a closed one, what it had seen when it was closed."""
        from planfreeze.statistics import Statistics  # not needed to freeze

        return self._last or Statistics(
            attempts=dict.fromkeys(road_names(), 0) | dict(self.attempts),
            programs=len(self._programs),
            program_launches={program.name: program.launches for program in self._programs.values()},
            plans={plan.name: plan.root for plan in self.plans},
        )

    def prepare(self, plan: str) -> Self:
        """Add a frozen plan, before freezing.

        Raises
        ------
        SessionState
            The session is frozen or closed.
        InvalidPlanReference, PlanMissing, EmptyPlan, DamagedPlan, StoreMissing, UntrustedStore
            The plan cannot be used.
        KernelsDiffer
            The kernels installed here are not the ones it was built from.
        PlansDisagree
            Another prepared plan has a different cubin for one of its payloads.
        """
        with self._lock:
            self._refuse_closed()
            if self.is_frozen:
                raise errors.SessionState(
                    f"{plan} cannot be prepared: the session is frozen", "prepare() before freeze()"
                )
            found, store = self._source.find(PlanReference.parse(plan))
            check_kernels(found)
            programs = planned_programs(found)
            planned = {program.payload.digest: (program, store) for program in programs}
            for digest, (program, _) in planned.items():
                known = self._planned.get(digest)
                if known is not None and known[0].entry.blob != program.entry.blob:
                    raise errors.PlansDisagree(program_name(program.payload), found.name, known[0].target.arch)
            self._planned.update(planned)
            self._plans.append((found, store, programs))
            return self

    def freeze(self, guard: Mode = "raise") -> Self:
        """Resolve and load every program of every prepared plan and close the roads to a compiler. All or nothing.

        Parameters
        ----------
        guard : "raise", "warn", "count" or "off"
            What an attempt to compile does from now on.

        Raises
        ------
        SessionState
            No plan was prepared, or the session is closed.
        MissingPrograms, DamagedPrograms
            Lists every program of a plan that is not there or not what was built.
        DeviceMissing, ExtraMissing, WrongDevice, DriverRefused, LaunchFailed
            The programs cannot be loaded here.
        UnknownMode, UnwatchableRoad
            The guard cannot be armed.
        """
        with self._lock:
            self._refuse_closed()
            if self.is_frozen:
                return self
            if not self._plans:
                raise errors.SessionState("the session has no plan", "prepare(PLAN), or set PLANFREEZE_PLAN")
            sentinel = Guard(mode=guard, explain=self._explain)
            resolved = [program for prepared in self._plans for program in resolve_plan(*prepared).check()]
            loaded: dict[str, Program] = {}
            with ExitStack() as undo:
                for program in resolved:
                    digest = program.payload.digest
                    if digest not in self._programs and digest not in loaded:
                        loaded[digest] = Program(program, self._open_device())
                        undo.callback(loaded[digest].unload, "the session did not freeze")
                sentinel.arm()
                undo.pop_all()
            # Replaced, not changed: threads that look programs up see all of them or those from before.
            self._programs = self._programs | loaded
            self._guard = sentinel
            self.has_frozen = True
            return self

    def program(self, payload: Payload) -> Program:
        """Return the loaded program of a payload. Frozen, this is one look-up.

        Before freezing, a planned program is resolved from the store and loaded at its first use.

        Raises
        ------
        UnplannedProgram
            No prepared plan holds it; the error names the nearest planned program.
        SessionState
            The session is closed, or this process is a fork of the one that made it.
        """
        program = self._programs.get(payload.digest)
        if program is None:
            with self._lock:
                program = self._programs.get(payload.digest) or self._load(payload)
        return program

    def bind(self, family: "DeclaredFamily", *values: Any, grid: Sequence[int] | None = None, **named: Any) -> Bound:
        """Check a call of a declared family and return its variant ready to launch.

        Parameters
        ----------
        *values, **named
            The kernel's arguments in order or by name, constants and options by name.
        grid : sequence of int, optional
            Blocks of this launch, in place of the family's rule.

        Raises
        ------
        InvalidArgument
            An argument is not what the family declares.
        UnplannedProgram, SessionState
            As :meth:`program`.
        """
        payload, passed = family.select(*values, **named)
        return self.program(payload).bind(*passed, grid=grid)

    def launch(
        self, family: "DeclaredFamily", *values: Any, stream: Any = None, grid: Any = None, **named: Any
    ) -> None:
        """Launch the variant of a declared family that a call takes; see :meth:`bind`."""
        payload, passed = family.select(*values, **named)
        self.program(payload).launch(*passed, stream=stream, grid=grid)

    def close(self) -> None:
        """Open the roads again and unload every program, once its launches have ended; a kept program then raises.

        Raises
        ------
        LaunchFailed
            The driver refused to unload a program; the others are unloaded all the same.
        """
        with self._lock, ExitStack() as finish:
            self._last = self.statistics()
            self._refusal = self._refusal or "the session was closed"
            for program in self._programs.values():
                finish.callback(program.unload, self._refusal)
            if self._guard is not None:
                self._guard.release()
            self._guard, self._programs = None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_device(self) -> Device:
        self._device = self._device or Device(self.ordinal)
        return self._device

    def _load(self, payload: Payload) -> Program:
        self._refuse_closed()
        if self.is_frozen or payload.digest not in self._planned:
            from planfreeze.explanations import describe_nearest  # not needed to serve

            planned = [known.payload for known, _ in self._planned.values()]
            command = self._plans[0][0].build_command if self._plans else "planfreeze build --model MODEL --tp N"
            raise errors.UnplannedProgram(program_name(payload), describe_nearest(payload, planned, command))
        planned_program, store = self._planned[payload.digest]
        program = Program(resolve_program(planned_program, store), self._open_device())
        self._programs = self._programs | {payload.digest: program}
        return program

    def _explain(self, attempt: Attempt) -> str:
        from planfreeze.nearest import explain_attempt  # not needed to serve

        plans = ", ".join(f"{plan.name} ({len(plan.entries)} programs)" for plan in self.plans)
        planned = [known for known, _ in self._planned.values()]
        return explain_attempt(attempt, planned, plans, self._plans[0][0].build_command)

    def _refuse_closed(self) -> None:
        if self._refusal:
            raise errors.SessionState(self._refusal, "planfreeze.session(...) for a new session")

    def refuse_fork(self) -> None:
        """In a forked child: make every program raise, since CUDA does not survive a fork."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._refusal = "this process is a fork of the one that loaded the programs"
        for program in self._programs.values():
            program.unload(self._refusal, is_forked=True)
        self._programs = {}
