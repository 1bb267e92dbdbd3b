"""Variants of a declared family: every combination of classes and constants, bounded before anything is compiled."""

import itertools
import keyword
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from planfreeze import errors
from planfreeze.constants import CONSTEXPR, DTYPE, OBJECT, freeze_constant, spell_constant, thaw_constant
from planfreeze.declared.parameters import Integer
from planfreeze.declared.specialization import Marking
from planfreeze.payload import Field, Payload

__all__ = [
    "MAX_VARIANTS",
    "Axis",
    "Derived",
    "combine",
    "derive_axis",
    "derived",
    "field_name",
    "freeze_alternatives",
    "plain_constant",
]

MAX_VARIANTS = 1024
"""Programs of one family. A minute of compiling on sixteen cores, and far more than anyone reads through."""
MAX_VALUES = 2**20
"""Values of an argument that a derived constant is computed for: half a second."""
Choice = Mapping[str, Field]


class Derived(Struct, frozen=True):
    """A constant that a caller computes from one integer argument."""

    argument: str
    function: Callable[[int], object]


def derived(argument: str, function: Callable[[int], object]) -> Derived:
    """Declare a constant that follows from an integer argument, such as the next power of two of a row's length.

    It is computed for every value in the argument's range, so that exactly the reachable ones are planned, and again
    for each launch.
    """
    return Derived(argument, function)


class Axis(Struct, frozen=True):
    """What varies by itself: an argument with what is derived from it, a constant, an option, or the configurations."""

    name: str
    choices: tuple[Choice, ...]


def derive_axis(
    family: str, parameter: Integer, marking: Marking, constants: Mapping[str, Derived], names: Mapping[str, str]
) -> Axis:
    """Return the classes of an integer argument together with the constants that are derived from it.

    Raises
    ------
    FamilyTooLarge
        Its range is too long to go through, or gives more combinations than a family may have variants.
    """
    step = parameter.multiple_of
    values = range(-(-parameter.minimum // step) * step, parameter.maximum + 1, step)
    derived_names = " and ".join(constants)
    if len(values) > MAX_VALUES:
        reason = f"{derived_names} is computed from it, and {len(values)} values are more than {MAX_VALUES}"
        raise errors.FamilyTooLarge(family, parameter.name, reason, ())
    found: dict[tuple[Field, ...], None] = {}
    for value in values:
        chosen = parameter.classify(family, value, marking)
        computed = (freeze_constant(name, constant.function(value)) for name, constant in constants.items())
        found[(chosen, *computed)] = None
        if len(found) > MAX_VARIANTS:
            reason = f"{derived_names} is computed from it and takes more than {MAX_VARIANTS} values, one variant each"
            raise errors.FamilyTooLarge(family, parameter.name, reason, ())
    labels = (names[parameter.name], *(names[name] for name in constants))
    return Axis(parameter.name, tuple(dict(zip(labels, choice, strict=True)) for choice in found))


def combine(family: str, axes: Iterable[Axis], advice: tuple[str, ...]) -> Iterator[dict[str, Field]]:
    """Yield the fields of every combination.

    Raises
    ------
    FamilyTooLarge
        There are more than :data:`MAX_VARIANTS`; the error names the axis that contributes most.
    """
    axes = tuple(axes)
    total = math.prod(len(axis.choices) for axis in axes)
    if total > MAX_VARIANTS:
        widest = max(axes, key=lambda axis: len(axis.choices))
        reason = f"it comes in {len(widest.choices)} ways and the family in {total}; {MAX_VARIANTS} are the most"
        raise errors.FamilyTooLarge(family, widest.name, reason, advice)
    for choices in itertools.product(*(axis.choices for axis in axes)):
        yield {name: value for choice in choices for name, value in choice.items()}


def freeze_alternatives(name: str, stated: object) -> tuple[Field, ...]:
    """Return the values that a constant is declared with: a list or tuple of them, or one."""
    values = stated if isinstance(stated, (tuple, list)) and not is_spelled(stated) else (stated,)
    return tuple(dict.fromkeys(freeze_constant(name, value) for value in values))


def is_spelled(value: object) -> bool:
    """Tell whether a tuple is the spelling of one constant, as ``planfreeze.constants`` makes it."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], str) and value[0].startswith("\0")


def plain_constant(value: Field) -> object:
    """Return a constant for rules that run while serving: what only a compiler can import stays text."""
    if isinstance(value, tuple) and value and value[0] in (OBJECT, DTYPE):
        return spell_constant(value)
    return plain_constant(value[1]) if isinstance(value, tuple) and value[:1] == (CONSTEXPR,) else thaw_constant(value)


def field_name(name: str) -> str:
    """Return the payload field of an argument or constant: its name, and an underscore where that is taken."""
    is_taken = hasattr(Payload, name) or name in Payload.__annotations__ or keyword.iskeyword(name)
    return f"{name}_" if is_taken else name
