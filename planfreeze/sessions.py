"""Sessions: frozen plans resolved and loaded on a device, with every watched road to a compiler closed."""

import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from planfreeze.cache.store import Store
from planfreeze.device import Device
from planfreeze.errors import PlanMissing, SessionState, StoreMissing, UnplannedProgram
from planfreeze.explanations import describe_nearest
from planfreeze.guard import Attempt, Guard, Mode
from planfreeze.payload import Payload
from planfreeze.plans import FrozenPlan, build_arguments
from planfreeze.programs import Program
from planfreeze.resolve import (
    PlannedProgram,
    check_kernels,
    find_plan,
    planned_programs,
    program_name,
    resolve_plan,
    resolve_program,
)
from planfreeze.settings import read_settings, store_path

__all__ = ["Session", "session"]


class Session:
    """Programs of frozen plans, resolved from a store and loaded on one device; never compiled.

    Parameters
    ----------
    plans : tuple of str
        Frozen plans, each a reference name or root digest, optionally followed by ``@sha256:<root>``.
    store : Path
        Where they are. A plan without a pinned root digest is taken from a trusted store only.
    device : int, optional
        torch's number of the device; None takes torch's current one when the first program is loaded.
    build : bool
        Build a missing plan in child processes when it is prepared. After freezing nothing is ever built.
    is_trusted : bool
        Take unpinned plans from this store whoever owns it.

    Examples
    --------
    >>> session = planfreeze.session("ds41-tp4-sm_90a", store="/srv/store")  # doctest: +SKIP
    >>> session.freeze()  # doctest: +SKIP
    >>> session.program(TopkSumPayload(hidden=5120, top_k=6)).bind(rows, out, 8).launch()  # doctest: +SKIP
    """

    def __init__(
        self, plans: tuple[str, ...], store: Path, *, device: int | None, build: bool, is_trusted: bool
    ) -> None:
        self._store_path = store
        self._ordinal = device
        self._is_builder = build
        self._is_trusted = is_trusted
        self._planned: dict[str, tuple[PlannedProgram, Store]] = {}
        self._plans: list[tuple[FrozenPlan, Store]] = []
        self._programs: dict[str, Program] = {}
        self._device: Device | None = None
        self._guard: Guard | None = None
        self._refusal = ""
        for plan in plans:
            self.prepare(plan)
        watched = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: refuse_fork(watched()))

    @property
    def is_frozen(self) -> bool:
        """Whether the session is frozen and not closed."""
        return self._guard is not None

    @property
    def plans(self) -> tuple[FrozenPlan, ...]:
        """The prepared plans."""
        return tuple(plan for plan, _ in self._plans)

    @property
    def attempts(self) -> Mapping[str, int]:
        """Attempts to compile since the session froze, by road."""
        return self._guard.attempts if self._guard else {}

    def prepare(self, plan: str) -> Self:
        """Add a frozen plan, before freezing.

        Raises
        ------
        SessionState
            The session is frozen or closed.
        PlanMissing, EmptyPlan, DamagedPlan, StoreMissing, UntrustedStore
            The plan cannot be used.
        KernelsDiffer
            The kernels installed here are not the ones it was built from.
        """
        self._refuse_closed()
        if self.is_frozen:
            raise SessionState(f"{plan} cannot be prepared: the session is frozen", "prepare() before freeze()")
        try:
            found, store = self._find(plan)
        except (PlanMissing, StoreMissing):
            if not self._is_builder:
                raise
            build_in_child(plan, self._store_path)
            found, store = self._find(plan)
        check_kernels(found)
        self._plans.append((found, store))
        for planned in planned_programs(found):
            self._planned.setdefault(planned.payload.digest, (planned, store))
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
        DeviceMissing, ExtraMissing, WrongArch, LaunchFailed
            The programs cannot be loaded here.
        """
        self._refuse_closed()
        if self.is_frozen:
            return self
        if not self._plans:
            raise SessionState("the session has no plan", "prepare(PLAN), or set PLANFREEZE_PLAN")
        resolved = [program for plan, store in self._plans for program in resolve_plan(plan, store).check()]
        loaded: dict[str, Program] = {}
        try:
            for program in resolved:
                digest = program.payload.digest
                if digest not in self._programs and digest not in loaded:
                    loaded[digest] = Program(program, self._open_device())
        except BaseException:
            for kept in loaded.values():
                kept.unload("the session did not freeze")
            raise
        self._programs.update(loaded)
        armed = Guard(mode=guard, explain=self._explain)
        armed.arm()
        self._guard = armed
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
            program = self._load(payload)
        return program

    def close(self) -> None:
        """Open the roads again and unload every program; a kept program then raises."""
        self._refusal = self._refusal or "the session was closed"
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        for program in self._programs.values():
            program.unload(self._refusal)
        self._programs = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, plan: str) -> tuple[FrozenPlan, Store]:
        store = Store.open(self._store_path, is_trusted=self._is_trusted)
        if "@sha256:" not in plan:
            store.check_trust()
        return find_plan(store, plan), store

    def _open_device(self) -> Device:
        if self._device is None:
            self._device = Device(self._ordinal)
        return self._device

    def _load(self, payload: Payload) -> Program:
        self._refuse_closed()
        if self.is_frozen or payload.digest not in self._planned:
            planned = [known.payload for known, _ in self._planned.values()]
            command = self._plans[0][0].build_command if self._plans else "planfreeze build"
            raise UnplannedProgram(program_name(payload), describe_nearest(payload, planned, command))
        planned_program, store = self._planned[payload.digest]
        self._programs[payload.digest] = Program(resolve_program(planned_program, store), self._open_device())
        return self._programs[payload.digest]

    def _explain(self, attempt: Attempt) -> str:
        plans = ", ".join(f"{plan.name} ({len(plan.entries)} programs)" for plan, _ in self._plans)
        return f"The session is frozen over {plans}; none of these programs needs {attempt.kernel}."

    def _refuse_closed(self) -> None:
        if self._refusal:
            raise SessionState(self._refusal, "planfreeze.session(...) for a new session")

    def _refuse_fork(self) -> None:
        self._refusal = "this process is a fork of the one that loaded the programs"
        for program in self._programs.values():
            program.unload(self._refusal, is_forked=True)
        self._programs = {}


def refuse_fork(session: Session | None) -> None:
    """In a forked child: make every program of a session raise, since CUDA does not survive a fork."""
    if session is not None:
        session._refuse_fork()


def build_in_child(plan: str, store: Path) -> None:
    """Build a plan by its reference name in a child process; its report goes to standard error.

    Raises
    ------
    PlanMissing
        The name is not one of a model's plan, or the build failed.
    """
    arguments = build_arguments(plan)
    command = [sys.executable, "-m", "planfreeze", "build", *(arguments or ()), "--store", str(store)]
    if arguments is None or subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode != 0:
        raise PlanMissing(plan, str(store), "planfreeze build")


process_session: list[Session] = []


def session(
    *plans: str,
    store: str | Path | None = None,
    device: int | None = None,
    build: bool = False,
    is_trusted: bool | None = None,
) -> Session:
    """Return the process's session, or with plans a new one.

    Parameters
    ----------
    *plans : str
        Frozen plans; see :class:`Session`. None given: the process's session, made once from ``PLANFREEZE_STORE``
        and ``PLANFREEZE_PLAN``.
    store : path, optional
        The store; None takes ``PLANFREEZE_STORE``, else the user's cache directory.
    device, build, is_trusted
        See :class:`Session`; ``is_trusted`` None takes ``PLANFREEZE_TRUST_STORE``.
    """
    if not plans and process_session and not process_session[0]._refusal:
        return process_session[0]
    settings = read_settings()
    made = Session(
        plans or settings.plans,
        Path(store) if store is not None else store_path(settings),
        device=device,
        build=build,
        is_trusted=settings.is_store_trusted if is_trusted is None else is_trusted,
    )
    if not plans:
        process_session[:] = [made]
    return made
