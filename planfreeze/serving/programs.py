"""Programs to serve: resolved from the plan that this process was told of, once, when a compiler is imported."""

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.readable import open_readable
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.resolve import PlanReference, ResolvedProgram, find_plan, resolve_plan
from planfreeze.settings import read_settings
from planfreeze.shared_logs import append_lines, read_lines

__all__ = ["ServedPlan", "Server", "Service", "load_plan", "note_served", "open_service", "read_served"]


class ServedPlan(Struct, frozen=True, kw_only=True):
    """A frozen plan with all of its programs, proven by their digests.

    Parameters
    ----------
    log : Path, optional
        File to which every program that is served is added.
    """

    plan: FrozenPlan
    programs: tuple[ResolvedProgram, ...]
    log: Path | None


class Server(Struct, frozen=True, kw_only=True):
    """How one compiler's runtime is made to take programs from a plan.

    Parameters
    ----------
    modules : tuple of str
        Modules of the compiler that it waits for.
    install : callable
        ``install(module, served)`` puts hooks into one of them; ``served()`` gives the plan.
    """

    modules: tuple[str, ...]
    install: Callable[[ModuleType, Callable[[], ServedPlan]], None]


@functools.cache
def load_plan(reference: str, store: Path, is_trusted: bool, log: Path | None) -> ServedPlan:
    """Read, hash and check every program of a plan.

    Raises
    ------
    PlanMissing, StoreMissing, UntrustedStore, DamagedPlan, MissingPrograms, DamagedPrograms
        The plan or one of its programs is not there, or not what was built.
    """
    opened = open_readable(store, is_trusted=is_trusted, trusted_keys=read_settings().trusted_keys)
    plan = find_plan(opened, PlanReference.parse(reference))
    return ServedPlan(plan=plan, programs=resolve_plan(plan, opened).check(), log=log)


class Service(Struct, frozen=True, kw_only=True):
    """A whole plan that a command can be served from.

    Parameters
    ----------
    reference : str
        The plan by name and root digest: all processes serve the same one, wherever its name moves meanwhile.
    store : Path
        Where it is.
    is_trusted : bool
        Take the plan from this store whoever owns it.
    programs : mapping
        Name of each program by its payload's digest.
    """

    reference: str
    store: Path
    is_trusted: bool
    programs: Mapping[str, str]


def open_service(reference: str, store: Path, *, is_trusted: bool = False) -> Service:
    """Return a plan to serve from, once all of its programs are proven to be there.

    Raises
    ------
    PlanMissing, StoreMissing, UntrustedStore, DamagedPlan, MissingPrograms, DamagedPrograms
        As :func:`load_plan`.
    """
    served = load_plan(reference, store, is_trusted, None)
    return Service(
        reference=f"{served.plan.name}@sha256:{served.plan.root}",
        store=store,
        is_trusted=is_trusted,
        programs={program.payload.digest: program.name for program in served.programs},
    )


def note_served(served: ServedPlan, program: ResolvedProgram) -> None:
    """Add a program to the log of the run, where there is one.

    Raises
    ------
    ServedLogFailed
        The log does not take it.
    """
    if served.log is None:
        return
    entry = {"pid": os.getpid(), "payload": program.payload.digest}
    try:
        append_lines(served.log, json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise errors.ServedLogFailed(str(served.log), program.name, str(error)) from error


def read_served(log: Path) -> frozenset[str]:
    """Return the payload digests of the programs that a run was served; a log that does not exist has none."""
    found = set()
    for line in read_lines(log):
        try:
            found.add(str(json.loads(line)["payload"]))
        except ValueError:  # the last line of a process that was killed
            continue
    return frozenset(found)
