"""Values of a recorded call as people write them."""

from typing import Any

from planfreeze.constants import spell_constant
from planfreeze.payload import Field
from planfreeze.recorded.values import ALIAS, CLOSURE, DICT, INSTANCE, LIST, NAMED_TUPLE, NUMBER, pairs

__all__ = ["spell_value"]


def spell_value(field: Field) -> str:
    """Return a value as people write it: ``(128, 64)``, ``[1, 2]``, ``kernels:Scale(tile=64)``, ``relu(slope=0.1)``."""
    if not isinstance(field, tuple):
        return repr(field)
    match field:
        case (str() as mark, *items) if mark == LIST:
            return f"[{', '.join(map(spell_value, items))}]"
        case (str() as mark, *items) if mark == DICT:
            spelled = (f"{spell_value(key)}: {spell_value(value)}" for key, value in pairs(items))
            return f"{{{', '.join(spelled)}}}"
        case (str() as mark, str() as kind, *items) if mark in (NAMED_TUPLE, NUMBER):
            return f"{kind.partition(':')[2]}({', '.join(map(spell_value, items))})"
        case (str() as mark, str() as kind, *attributes) if mark == INSTANCE:
            return f"{kind}({spell_named(attributes)})"
        case (str() as mark, origin, *items) if mark == ALIAS:
            return f"{spell_value(origin)}[{', '.join(map(spell_value, items))}]"
        case (str() as mark, str() as reference, _, captured, *_) if mark == CLOSURE:
            return f"{reference}({spell_named(captured)})"
        case (str() as mark, *_) if mark.startswith("\0"):
            return spell_constant(field)
    return f"({', '.join(map(spell_value, field))}{',' * (len(field) == 1)})"


def spell_named(field: Any) -> str:
    return ", ".join(f"{name}={spell_value(value)}" for name, value in pairs(field))
