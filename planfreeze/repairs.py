"""Repairs: what verifying found missing or damaged is built again, by the normal build of the plans concerned."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import Name
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.holdings import Holding, find_holding
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.plans import Plan
from planfreeze.resolve import PlanReference, check_kernels, make_command, planned_programs
from planfreeze.slots import build_programs
from planfreeze.target import target
from planfreeze.verification import Problem

__all__ = ["Repair", "repair"]


class Repair(Struct, frozen=True, kw_only=True):
    """What a repair did.

    Parameters
    ----------
    rebuilt : int
        Programs that were compiled and published again.
    restored : tuple of str
        References that lead to their plan again.
    refused : tuple of (str, str)
        Plan, reference or record, and why it could not be made whole.
    """

    rebuilt: int
    restored: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def repair(problems: Sequence[Problem], store: Store, *, jobs: int, toolchains: Path) -> Repair:
    """Make whole what can be made whole, after damaged entries were put aside.

    Parameters
    ----------
    problems : sequence of Problem
        What verifying found.
    jobs, toolchains
        As :func:`planfreeze.builds.build_plans`.

    Raises
    ------
    StoreUnusable
        The store cannot be written.

    Notes
    -----
    A plan is built again only by the kernels and the compiler it was built by, as its keys tell: what anything else
    made would be another plan. No name is turned to another plan. A record that no plan needs and whose cubin is gone
    is put aside.
    """
    plans = read_plans(store)
    rebuilt = 0
    refused: list[tuple[str, str]] = []
    for holding in plans:
        if not is_whole(holding, problems, store):
            try:
                rebuilt += rebuild(holding.plan, store, jobs, toolchains)
            except errors.PlanfreezeError as error:
                refused.append((f"{holding.plan.name}@sha256:{holding.root}", str(error)))
    needed = {entry for holding in plans for entry in holding.entries}
    for problem in problems:
        is_orphan = problem.kind == "record" and ("record", problem.name) not in needed
        if is_orphan and problem.state == "incomplete":
            store.quarantine("record", problem.name, f"{problem.reason}, and no plan needs the record")
    restored = []
    for problem in problems:
        if problem.kind == "ref":
            reason = restore_reference(problem.name, plans, store)
            if reason is None:
                restored.append(problem.name)
            else:
                refused.append((problem.name, reason))
    return Repair(rebuilt=rebuilt, restored=tuple(restored), refused=tuple(refused))


def read_plans(store: Store) -> list[Holding]:
    """Return what every plan needs that can be read."""
    holdings = []
    for entry in sorted(store.entries("plan"), key=lambda entry: entry.name):
        try:
            plan = FrozenPlan.decode(store.get_plan(entry.name))
            holdings.append(find_holding(plan, store, is_partial=True))
        except (errors.MissingEntry, errors.DamagedEntry, errors.DamagedPlan, errors.PlanTooNew):
            continue  # put aside, gone, or another version's: verifying has told
    return holdings


def is_whole(holding: Holding, problems: Iterable[Problem], store: Store) -> bool:
    """Tell whether nothing a plan needs is missing or was found damaged."""
    wrong: set[Name] = {(problem.kind, problem.name) for problem in problems}
    is_there = all(store.has_entry(kind, name) for kind, name in holding.entries)
    return holding.is_whole and is_there and not wrong & set(holding.entries)


class OtherInputsError(errors.PlanfreezeError):
    """The keys of a plan cannot be made here."""


def rebuild(plan: FrozenPlan, store: Store, jobs: int, toolchains: Path) -> int:
    """Build again what a plan lacks; return how many programs were compiled.

    Raises
    ------
    PlanfreezeError
        It cannot be built here; the message says why.
    """
    check_kernels(plan)
    programs = planned_programs(plan)
    again = Plan(
        model=plan.model,
        tp=plan.tp,
        target=target(plan.arch),
        payloads=tuple(program.payload for program in programs),
        options=plan.options,
    )
    keyed = key_plan(again, toolchains)
    built_with = {program.payload: program.entry for program in programs}
    same = [
        program
        for program in keyed
        if isinstance(program, KeyedProgram) and program.key.digest == built_with[program.payload].key
    ]
    if len(same) != len(keyed):
        count = len(keyed) - len(same)
        raise OtherInputsError(
            f"{count} of {len(keyed)} programs have another key here: the compiler or planfreeze is not the one that "
            f"built them. Repair with that one, or build a new plan: {plan.build_command}"
        )
    compiled = 0
    for outcome in build_programs(same, store, jobs):
        planned = built_with[outcome.program.payload]
        if outcome.status == "failed":
            raise OtherInputsError(f"{outcome.program.name}: {outcome.reason}")
        if outcome.record_digest != planned.record:
            raise OtherInputsError(f"{outcome.program.name}: what was built again is not what the plan was built from")
        compiled += outcome.status == "compiled"
    return compiled


def restore_reference(name: str, plans: Iterable[Holding], store: Store) -> str | None:
    """Turn a damaged reference to the one plan of its name; return why that cannot be done, or None."""
    try:
        root = store.get_ref(name)
    except errors.DamagedEntry:
        root = None
    candidates = [holding for holding in plans if holding.plan.name == name]
    if root is None and len(candidates) == 1:
        store.set_ref(name, candidates[0].root)
        return None
    if any(holding.root == root for holding in candidates):
        return None
    reason = f"{len(candidates)} plans of this name are there" if root is None else f"plan {root} is not there"
    command = make_command(store, PlanReference(name, None))
    return f"{reason}, and nothing else says which one was meant. Run: {command}"
