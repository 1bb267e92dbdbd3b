"""Builds: find what plans lack in a store, have it compiled and published, freeze the plans."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.store import Store
from planfreeze.excesses import check_budget_families, find_excesses
from planfreeze.frozen_plans import FrozenPlan, PlanEntry, freeze_families
from planfreeze.holdings import name_plan, pinned_plans
from planfreeze.keyed import KeyedProgram, UnkeyedProgram, key_plan
from planfreeze.outcomes import Outcome
from planfreeze.plans import Plan
from planfreeze.slots import build_programs

__all__ = ["BuildReport", "build_plans"]


class BuildReport(Struct, frozen=True, kw_only=True):
    """Outcomes in planned order, those of unreadable kernels last; frozen plans of the targets that are complete.

    Where programs exceed budgets, these are told and no plan is frozen.
    """

    outcomes: tuple[Outcome, ...]
    plans: tuple[FrozenPlan, ...]
    excesses: tuple[errors.BudgetExceeded, ...] = ()

    def count(self, status: str) -> int:
        """Return how many programs have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)


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
    toolchains : Path
        Directory that remembers compiler fingerprints.
    on_outcome : callable
        Called in this thread with each outcome as it comes.

    Raises
    ------
    CompilerMissing, ToolchainUnreadable
        A compiler that the programs need is not installed, or not whole.
    StoreUnusable
        The store cannot be written; what was published before stays.
    UnknownBudgetFamily
        A budget is for a family that is not known; nothing is compiled.

    Notes
    -----
    Programs are published one by one: an interrupted build keeps what it has. A plan with a failed program is not
    frozen. Each key is compiled once however many builders share the store, as far as its locks work. Until a plan has
    its name, a collector may take away a program that was found or built: it is built again.
    """
    keyed = [(check_budget_families(plan), key_plan(plan, toolchains)) for plan in plans]
    programs = [program for _, planned in keyed for program in planned]
    unique = {program.key.digest: program for program in programs if isinstance(program, KeyedProgram)}
    unkeyed = [
        Outcome(program=program, status="failed", reason=program.reason)
        for program in programs
        if isinstance(program, UnkeyedProgram)
    ]
    for outcome in unkeyed:
        on_outcome(outcome)
    outcomes: dict[str, Outcome] = {}

    def build(waiting: list[KeyedProgram]) -> list[FrozenPlan]:
        """Compile what is missing; return the frozen plans of all that is complete."""
        for outcome in build_programs(waiting, store, jobs):
            assert isinstance(outcome.program, KeyedProgram)
            outcomes[outcome.program.key.digest] = outcome
            on_outcome(outcome)
        return [made for plan, planned in keyed if (made := freeze_plan(plan, planned, outcomes)) is not None]

    frozen = build(list(unique.values()))
    excesses = tuple(
        excess
        for plan, planned in keyed
        for program in planned
        if isinstance(program, KeyedProgram)
        for excess in find_excesses(plan, outcomes[program.key.digest], store)
    )
    if excesses:
        return BuildReport(outcomes=(*(outcomes[digest] for digest in unique), *unkeyed), plans=(), excesses=excesses)
    with pinned_plans(frozen, store):
        # Until here a collector may have taken away what was found or built, since no plan with a name needed it.
        vanished = [program for key, program in unique.items() if is_vanished(outcomes[key], store)]
        frozen = build(vanished) if vanished else frozen
        for plan in frozen:
            name_plan(plan, blobs_of(plan, outcomes), store)
    return BuildReport(outcomes=(*(outcomes[digest] for digest in unique), *unkeyed), plans=tuple(frozen))


def is_vanished(outcome: Outcome, store: Store) -> bool:
    """Tell whether an entry of a finished program is not in the store any more."""
    if outcome.record is None:
        return False
    assert isinstance(outcome.program, KeyedProgram)
    return not (store.has_record(outcome.program.key.digest) and all(map(store.has_blob, outcome.record.blobs)))


def blobs_of(plan: FrozenPlan, outcomes: Mapping[str, Outcome]) -> set[str]:
    """Return the digests of all blobs that the programs of a complete plan need."""
    records = (outcomes[entry.key].record for entry in plan.entries)
    return {digest for record in records if record is not None for digest in record.blobs}


def freeze_plan(
    plan: Plan, programs: Iterable[KeyedProgram | UnkeyedProgram], outcomes: dict[str, Outcome]
) -> FrozenPlan | None:
    """Make the frozen plan of complete outcomes; None when a program failed."""
    entries, families = [], []
    for program in programs:
        if isinstance(program, UnkeyedProgram):
            return None
        outcome = outcomes[program.key.digest]
        if outcome.record is None:
            return None
        families.append((program.family, program.sources))
        entries.append(
            PlanEntry(
                family=program.family.reference,
                fields=tuple(program.payload.to_fields().items()),
                key=program.key.digest,
                record=outcome.record_digest,
                blob=outcome.record.blob,
            )
        )
    return FrozenPlan(
        model=plan.model,
        tp=plan.tp,
        arch=plan.target.arch,
        options=plan.options,
        families=freeze_families(families),
        entries=tuple(entries),
        choices=plan.choices,
    )
