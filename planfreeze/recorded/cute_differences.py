"""Differences between calls of CuTe DSL functions, in words: what is planned, and what was asked for."""

from collections.abc import Iterator

from planfreeze.payload import spell_differences
from planfreeze.recorded.cute_function import CuteFunctionPayload, captured_values, spell_parameter
from planfreeze.recorded.spelling import spell_value
from planfreeze.recorded.values import INSTANCE, pairs

__all__ = ["list_differences"]


def list_differences(planned: CuteFunctionPayload, asked: CuteFunctionPayload) -> tuple[str, ...]:
    """Spell each fact that differs as "name: planned -> asked"."""
    return spell_differences(dict(facts_of(planned)), dict(facts_of(asked)), absent="default")


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
