"""How Triton's binder tells variants of a kernel apart: by the type, value and alignment of its arguments.

The same rules hold for Triton 3.6 to 3.9; a test compares them with both binders.
"""

import math
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from planfreeze.dtypes import INTEGER_LIMITS

__all__ = [
    "ONE",
    "TYPES_BY_VALUE",
    "IntegerClass",
    "Marking",
    "classify_integer",
    "reachable_classes",
]

Marking = Literal["specialized", "unaligned", "free", "declared"]
"""What a parameter is told apart by: all; not by divisibility (``do_not_specialize_on_alignment``); by type alone
(``do_not_specialize``); by nothing that is not declared, which is how CuTe kernels are compiled."""

DIVISOR = 16
# The types that a parameter without annotation takes by its value, each with the values that give it.
TYPES_BY_VALUE = (
    ("i32", *INTEGER_LIMITS["i32"]),
    ("i64", INTEGER_LIMITS["i64"][0], INTEGER_LIMITS["i32"][0] - 1),
    ("i64", INTEGER_LIMITS["i32"][1] + 1, INTEGER_LIMITS["i64"][1]),
    ("u64", INTEGER_LIMITS["i64"][1] + 1, INTEGER_LIMITS["u64"][1]),
)
ONE, BY_16 = "one", "-by-16"


class IntegerClass(Struct, frozen=True):
    """One class of integer values that share a variant.

    Parameters
    ----------
    dtype : str
        Type of the parameter; empty for the value 1, which is a constant and no parameter.
    is_divisible : bool
        Whether the variant relies on multiples of 16.
    """

    dtype: str
    is_divisible: bool = False

    @property
    def name(self) -> str:
        """The class in a payload: ``one``, ``i32``, ``i32-by-16``."""
        return (self.dtype + BY_16 * self.is_divisible) or ONE

    @classmethod
    def parse(cls, name: str) -> "IntegerClass":
        """Read a name back."""
        return cls("") if name == ONE else cls(name.removesuffix(BY_16), name.endswith(BY_16))


def classify_integer(value: int, *, dtype: str | None, marking: Marking) -> IntegerClass:
    """Return the class of a value.

    Parameters
    ----------
    value : int
        From -2^63 to 2^64 - 1.
    dtype : str, optional
        Type that the parameter is annotated with; None takes it from the value.
    marking : str
        What the parameter is told apart by.
    """
    if value == 1 and dtype is None and marking != "free":
        return IntegerClass("")
    return IntegerClass(dtype or type_by_value(value), marking == "specialized" and value % DIVISOR == 0)


def type_by_value(value: int) -> str:
    """Return the type of a parameter without annotation."""
    return next(dtype for dtype, low, high in TYPES_BY_VALUE if low <= value <= high)


def reachable_classes(
    minimum: int, maximum: int, multiple_of: int, *, dtype: str | None, marking: Marking
) -> tuple[IntegerClass, ...]:
    """Return every class that the multiples of ``multiple_of`` from ``minimum`` to ``maximum`` reach.

    Examples
    --------
    >>> [found.name for found in reachable_classes(1, 4096, 1, dtype=None, marking="specialized")]
    ['one', 'i32-by-16', 'i32']
    """
    intervals = ((dtype, minimum, maximum),) if dtype is not None else TYPES_BY_VALUE
    found = (
        value_class
        for kind, low, high in intervals
        for value_class in classes_of_interval(
            kind, max(low, minimum), min(high, maximum), multiple_of, is_annotated=dtype is not None, marking=marking
        )
    )
    return tuple(dict.fromkeys(found))


def classes_of_interval(
    dtype: str, low: int, high: int, multiple_of: int, *, is_annotated: bool, marking: Marking
) -> Iterator[IntegerClass]:
    """Yield the classes of the multiples within an interval of one type."""
    remaining = count_multiples(low, high, multiple_of)
    if not is_annotated and marking != "free" and multiple_of == 1 and low <= 1 <= high:
        remaining -= 1
        yield IntegerClass("")
    if marking == "specialized":
        divisible = count_multiples(low, high, math.lcm(multiple_of, DIVISOR))
        remaining -= divisible
        if divisible:
            yield IntegerClass(dtype, True)
    if remaining:
        yield IntegerClass(dtype)


def count_multiples(low: int, high: int, step: int) -> int:
    """Return how many multiples of ``step`` lie from ``low`` to ``high``."""
    return max(0, high // step - (low - 1) // step)
