"""Differences between calls of CuTe DSL functions, in words: what is planned, and what was asked for."""

from collections.abc import Iterator, Sequence

from planfreeze.errors import Unrecordable
from planfreeze.recorded.cute_function import CuteFunctionPayload, captured_values, spell_parameter
from planfreeze.recorded.spelling import spell_value
from planfreeze.recorded.values import INSTANCE, pairs

__all__ = ["explain_miss", "list_differences"]

REMEDY = "Run: planfreeze record -o RECORDING -- COMMAND and planfreeze build --plan RECORDING"


def explain_miss(asked: CuteFunctionPayload | Unrecordable, planned: Sequence[CuteFunctionPayload]) -> str:
    """Say why a call is not served: the nearest planned call of the function with the facts that differ."""
    if isinstance(asked, Unrecordable):
        return f"It cannot be planned: {asked.reason}. Run: the call before the guard is armed"
    same = [payload for payload in planned if payload.function == asked.function]
    if not same:
        return f"The plan holds no program of {asked.function}. {REMEDY}"
    differences = min((list_differences(payload, asked) for payload in same), key=len)
    return f"The nearest planned call of {asked.function} differs in {'; '.join(differences)}. {REMEDY}"


def list_differences(planned: CuteFunctionPayload, asked: CuteFunctionPayload) -> tuple[str, ...]:
    """Spell each fact that differs as "name: planned -> asked"."""
    before, after = dict(facts_of(planned)), dict(facts_of(asked))
    return tuple(
        f"{name}: {before.get(name, 'default')} -> {after.get(name, 'default')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )


def facts_of(payload: CuteFunctionPayload) -> Iterator[tuple[str, str]]:
    """Yield what a call states, by the name of the argument, attribute, captured value or option."""
    for name, field in pairs(payload.arguments):
        match field:
            case ("constant", (mark, kind, *attributes)) if mark == INSTANCE:
                yield name, kind
                yield from ((f"{name}.{attribute}", spell_value(value)) for attribute, value in attributes)
            case ("tensor", element, space, alignment, shape, stride):
                yield f"{name} element type", element
                yield f"{name} address space", space
                yield f"{name} alignment", str(alignment)
                yield f"{name} shape", spell_value(shape)
                yield f"{name} stride", spell_value(stride)
            case _:
                yield name, spell_parameter(name, field)
    yield from ((f"captured {name}", spell_value(value)) for name, value in captured_values(payload))
    yield from ((f"option {name}", spell_value(value)) for name, value in pairs(payload.options))
