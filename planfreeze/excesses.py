"""Excesses: programs of a build that take more of a GPU than their plan declares."""

from collections.abc import Iterable, Iterator

from planfreeze import errors
from planfreeze.budgets import Budget
from planfreeze.cache.store import Store
from planfreeze.facts import ProgramFacts
from planfreeze.keyed import KeyedProgram
from planfreeze.notes import Note, Spills, read_note
from planfreeze.outcomes import Outcome
from planfreeze.plans import Plan
from planfreeze.spellings import nearest_spelling

__all__ = ["check_budget_families", "find_excesses"]


def check_budget_families(plan: Plan) -> Plan:
    """Return a plan whose budgets are all for families in it, or known here: a mistyped name would limit nothing.

    Raises
    ------
    UnknownBudgetFamily
        Names the first.
    """
    planned = dict.fromkeys(payload.family_name for payload in plan.payloads)
    for budget in plan.budgets:
        if budget.family and budget.family not in planned:
            check_known(budget.family, plan, planned)
    return plan


def check_known(family: str, plan: Plan, planned: Iterable[str]) -> None:
    """Refuse a family that neither ships nor is offered by an installed package."""
    from planfreeze.explanations import family_names  # not needed to build

    known = family_names()
    if family not in known:
        near = nearest_spelling(family, (*planned, *known))
        raise errors.UnknownBudgetFamily(family, plan.name, tuple(planned), near)


def find_excesses(plan: Plan, outcome: Outcome, store: Store) -> Iterator[errors.BudgetExceeded]:
    """Yield each limit that a program of a plan exceeds, or is not known to keep; of one that failed, none."""
    name, arch = outcome.program.name, outcome.program.target.arch
    budgets = [budget for budget in plan.budgets if budget.family in ("", outcome.program.payload.family_name)]
    facts = weigh(outcome, store) if budgets else None
    if facts is None:
        return
    for budget in budgets:
        for limit, value, declared in exceed(facts, budget):
            yield errors.BudgetExceeded(name, arch, limit, value, declared)


def weigh(outcome: Outcome, store: Store) -> ProgramFacts | None:
    """Return the facts of a program that was built, without reading its cubin again."""
    if outcome.record is None or not isinstance(outcome.program, KeyedProgram):
        return None
    payload, key = outcome.program.payload, outcome.program.key.digest
    return ProgramFacts(
        key=key,
        record_digest=outcome.record_digest,
        record=outcome.record,
        family_name=payload.family_name,
        fields=tuple(payload.to_fields().items()),
        size_bytes=outcome.size_bytes,
        tools=None,
        # What is spilled is asked for where there is a stack that it could be on.
        note=read_note(key, store) if outcome.record.stack_bytes else Note(),
    )


def exceed(facts: ProgramFacts, budget: Budget) -> Iterator[tuple[str, str, str]]:
    """Yield each limit of a budget that is not kept: its name, what the program has, what is declared."""
    registers, spills, ctas = facts.record.registers, facts.spills, facts.resident_ctas
    if budget.max_registers is not None and registers > budget.max_registers:
        yield "max_registers", f"{registers} registers", f"at most {budget.max_registers}"
    if budget.no_spills and spills is None:
        yield "no_spills", f"{facts.record.stack_bytes} bytes of stack that no log explains", "none of spills"
    elif budget.no_spills and spills is not None and spills != Spills(0, 0):
        yield "no_spills", f"{spills.store_bytes} bytes of stores and {spills.load_bytes} of loads", "none"
    if budget.min_ctas_per_sm is not None and (ctas is None or ctas < budget.min_ctas_per_sm):
        found = "an unknown number of" if ctas is None else str(ctas)
        yield "min_ctas_per_sm", f"{found} resident CTAs", f"at least {budget.min_ctas_per_sm}"
