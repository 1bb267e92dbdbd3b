"""Replays: proof that all of a plan resolves with lowering forbidden, through the code that serving uses."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.device import Device
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.guard import Guard
from planfreeze.plans import Plan
from planfreeze.programs import Program
from planfreeze.resolve import Resolution, check_kernels, planned_programs, program_name, resolve_plan

__all__ = ["Replay", "check_replays", "prove_guard", "replay_plan"]


class Replay(Struct, frozen=True, kw_only=True):
    """What a replay of one plan found.

    Parameters
    ----------
    resolution : Resolution
        Programs that resolved, and those that are missing or damaged.
    attempts : int
        Attempts to compile that the guard saw.
    loaded : int, optional
        Programs loaded on the device; None when it was not asked for.
    """

    resolution: Resolution
    attempts: int
    loaded: int | None

    @property
    def plan(self) -> FrozenPlan:
        """The replayed plan."""
        return self.resolution.plan


def replay_plan(
    plan: FrozenPlan, store: ReadableStore, *, wanted: Plan | None = None, on_device: bool = False
) -> Replay:
    """Resolve a frozen plan under the guard, as a session would.

    Parameters
    ----------
    wanted : Plan, optional
        What the model asks for now; payloads of it that the frozen plan does not hold count as missing.
    on_device : bool
        Load every program on torch's current device, too.

    Raises
    ------
    KernelsDiffer
        The kernels installed here are not the ones the plan was built from.
    CompilationForbidden
        Something tried to compile.
    DeviceMissing, WrongArch, DriverRefused, LaunchFailed
        With ``on_device``: a program cannot be loaded.
    """
    guard = Guard(mode="raise")
    guard.arm()
    try:
        check_kernels(plan)
        held = {planned.payload for planned in planned_programs(plan)}
        resolution = resolve_plan(plan, store)
        if wanted is not None:
            lacking = [payload for payload in wanted.payloads if payload not in held]
            unplanned = tuple(f"{program_name(payload)}: not in the frozen plan" for payload in lacking)
            command = f"{wanted.build_command} --store {shlex.quote(str(store.path))}"
            resolution = replace(resolution, missing=resolution.missing + unplanned, command=command)
        loaded = load_all(resolution) if on_device else None
    finally:
        guard.release()
    return Replay(resolution=resolution, attempts=sum(guard.attempts.values()), loaded=loaded)


def check_replays(replays: Sequence[Replay]) -> None:
    """Raise the worst of what replays found: damage before what is missing.

    Raises
    ------
    DamagedPrograms, MissingPrograms
        Lists the programs of the first plan that has such.
    """
    for replay in sorted(replays, key=lambda replay: not replay.resolution.damaged):
        replay.resolution.check()


def load_all(resolution: Resolution) -> int:
    """Load every resolved program on the current device and unload it again; return how many."""
    device = Device()
    for resolved in resolution.programs:
        Program(resolved, device).unload("it was loaded to be replayed")
    return len(resolution.programs)


def prove_guard() -> dict[str, str]:
    """Let a child process make one deliberate attempt per road, and say for each whether it was stopped.

    Returns
    -------
    dict
        Road to "awake" or "not installed".

    Raises
    ------
    GuardAsleep
        An installed compiler was reached under the guard.
    """
    # Under Triton's interpreter nothing compiles, and nothing would be proven.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", "planfreeze.guard"], capture_output=True, text=True, check=False, env=environment
    )
    try:
        proven: dict[str, str] = json.loads(child.stdout)
    except ValueError:
        raise errors.GuardAsleep("all", child.stderr.strip()) from None
    for road, state in proven.items():
        if state == "asleep":
            raise errors.GuardAsleep(road, child.stderr.strip())
    return proven
