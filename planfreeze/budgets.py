"""Budgets: what a plan declares that its programs may take of a GPU. They change no key and no frozen plan."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["BUDGETS", "Budget", "is_budget_table", "read_budgets"]


class Budget(Struct, frozen=True, kw_only=True):
    """Limits that programs have to keep.

    Parameters
    ----------
    family : str
        The family whose programs they are for; empty for every program. Of several budgets that are for a program,
        all have to be kept.
    max_registers : int, optional
        Most registers of one thread.
    no_spills : bool
        Nothing is stored in local memory for want of registers.
    min_ctas_per_sm : int, optional
        Fewest blocks that one SM has room for.
    """

    family: str = ""
    max_registers: int | None = None
    no_spills: bool = False
    min_ctas_per_sm: int | None = None


def is_positive(value: object) -> bool:
    return type(value) is int and value > 0


BUDGETS = {"max_registers": is_positive, "no_spills": lambda value: value is True, "min_ctas_per_sm": is_positive}


def is_budget_table(value: object) -> bool:
    """Tell whether a value is a table of limits, with tables of limits by family in it."""
    if not isinstance(value, dict):
        return False
    families = {name: inner for name, inner in value.items() if name not in BUDGETS and isinstance(inner, dict)}
    limits = {name: limit for name, limit in value.items() if name not in families}
    return all(map(are_limits, (limits, *families.values())))


def are_limits(value: Mapping[str, object]) -> bool:
    return all(name in BUDGETS and BUDGETS[name](limit) for name, limit in value.items())


def read_budgets(table: Mapping[str, Any]) -> tuple[Budget, ...]:
    """Return the budgets of a table that :func:`is_budget_table` accepts: for every program first, then by family."""
    limits = {name: limit for name, limit in table.items() if name in BUDGETS}
    families = {name: inner for name, inner in table.items() if name not in BUDGETS}
    return (
        *([Budget(**limits)] if limits else []),
        *(Budget(family=family, **inner) for family, inner in sorted(families.items())),
    )
