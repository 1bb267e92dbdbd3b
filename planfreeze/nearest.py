"""The nearest planned program to an attempt to compile: of the same kernel, with the fewest facts that differ."""

from collections.abc import Iterable

from msgspec import Struct

from planfreeze.constants import spell_constant
from planfreeze.dtypes import TRITON_TYPES
from planfreeze.family import Argument, Definition, RecordedSource, TritonSource
from planfreeze.guard import Attempt
from planfreeze.resolve import PlannedProgram, program_name
from planfreeze.target import Target

__all__ = ["NearestProgram", "explain_attempt", "find_nearest_program", "list_differences", "planned_facts"]

Facts = tuple[tuple[str, str], ...]


class NearestProgram(Struct, frozen=True, kw_only=True):
    """A planned program of the attempt's kernel, and in words each fact that differs, planned -> asked."""

    name: str
    differences: tuple[str, ...]


def explain_attempt(attempt: Attempt, planned: Iterable[PlannedProgram], plans: str, command: str) -> str:
    """Say what is planned in place of what an attempt asked for.

    Parameters
    ----------
    attempt : Attempt
        What a guard saw.
    planned : iterable of PlannedProgram
        What the frozen plans hold.
    plans : str
        The plans, for people.
    command : str
        What builds them.
    """
    near = find_nearest_program(attempt, planned)
    if near is None:
        return f"The session is frozen over {plans}; no planned program comes from this kernel."
    if not near.differences:
        return (
            f"The session is frozen over {plans}, and {near.name} differs in nothing that the call shows. "
            f"Run: session.program(...).launch(...) in place of this call"
        )
    differences = "; ".join(near.differences)
    return (
        f"The session is frozen over {plans}. The nearest planned program is {near.name}, which differs in "
        f"{differences}. Run: {command}, with a plan that holds this program"
    )


def find_nearest_program(attempt: Attempt, planned: Iterable[PlannedProgram]) -> NearestProgram | None:
    """Return the planned program of the attempt's kernel with the fewest differences; None when there is none."""
    candidates = [
        NearestProgram(
            name=program_name(program.payload),
            differences=list_differences(planned_facts(program.definition, program.target), attempt.facts),
        )
        for program in planned
        if is_same_kernel(program.definition.source.kernel, attempt.kernel)
    ]
    return min(candidates, key=lambda near: len(near.differences), default=None)


def is_same_kernel(reference: str, kernel: str) -> bool:
    """Tell whether "module:attribute" is the kernel of that qualified name, or the class it is a method of."""
    name = reference.replace(":", ".")
    return kernel == name or kernel.startswith(f"{name}.")


def planned_facts(definition: Definition, target: Target) -> Facts:
    """Return what a program was compiled for, in the words of an attempt."""
    source = definition.source
    if isinstance(source, RecordedSource):
        return ()
    # An attempt names objects with a dot where a reference to one has a colon.
    constants = tuple((name, spell_constant(value).replace(":", ".")) for name, value in source.constants)
    if not isinstance(source, TritonSource):
        return constants
    options = (
        ("num_warps", str(source.num_warps)),
        ("num_stages", str(source.num_stages)),
        *((name, spell_constant(value)) for name, value in source.options),
    )
    arguments = tuple((a.name, describe_argument(a, source.divisible)) for a in definition.arguments)
    return (*arguments, *constants, *options, ("target", f"cuda:{target.sm}"))


def describe_argument(argument: Argument, divisible: tuple[str, ...]) -> str:
    """Describe an argument; a pointer is divisible by its alignment, a number where its source says so."""
    is_divisible = argument.alignment % 16 == 0 if argument.is_pointer else argument.name in divisible
    note = " (divisible by 16)" if is_divisible else ""
    return f"{'*' if argument.is_pointer else ''}{TRITON_TYPES[argument.dtype]}{note}"


def list_differences(planned: Facts, asked: Facts) -> tuple[str, ...]:
    """Spell each fact that differs as "name: planned -> asked"; what the attempt does not show is passed over."""
    shown = dict(asked)
    return tuple(
        f"{name}: {spell_difference(value, shown[name])}"
        for name, value in planned
        if name in shown and value != shown[name]
    )


def spell_difference(planned: str, asked: str) -> str:
    """Spell one difference; of two arguments of one type only the notes, as in "divisible by 16 -> not"."""
    planned_type, planned_notes = split_notes(planned)
    asked_type, asked_notes = split_notes(asked)
    if planned_type != asked_type:
        return f"{planned} -> {asked}"
    lost = ", ".join(note for note in planned_notes if note not in asked_notes)
    gained = ", ".join(note for note in asked_notes if note not in planned_notes)
    return f"{lost or f'not {gained}'} -> {gained or 'not'}"


def split_notes(value: str) -> tuple[str, tuple[str, ...]]:
    """Split "*fp32 (divisible by 16)" into type and notes; a constant has no notes."""
    kind, opened, notes = value.removesuffix(")").partition(" (")
    return (kind, tuple(notes.split(", "))) if opened and value.endswith(")") else (value, ())
