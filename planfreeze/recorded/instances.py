"""Instances of classes in Python: whether an object is nothing but its attributes, and which those are."""

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any

__all__ = ["instance_attributes", "is_plain_instance"]

# Their objects are more than their attributes.
FOREIGN_PACKAGES = frozenset({"numpy", "torch", "triton", "typing"})
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that is no static one of C code
POINTER_BYTES = struct.calcsize("P")


def is_plain_instance(value: Any) -> bool:
    """Tell whether a value is an object of classes in Python, made of nothing but its attributes."""
    kind = type(value)
    if isinstance(value, type | Enum) or kind.__module__.partition(".")[0] in FOREIGN_PACKAGES:
        return False
    if kind is object or not all(base.__flags__ & HEAP_TYPE for base in kind.__mro__[:-1]):
        return False
    # What an object of C code holds beside its attributes has its place in the object itself.
    places = (kind.__dictoffset__ != 0) + (kind.__weakrefoffset__ != 0) + len(list(slots_of(kind)))
    return kind.__itemsize__ == 0 and kind.__basicsize__ <= object.__basicsize__ + places * POINTER_BYTES


def instance_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in its dictionary and in slots."""
    yield from getattr(value, "__dict__", {}).items()
    yield from ((slot, getattr(value, slot)) for slot in slots_of(type(value)) if hasattr(value, slot))


def slots_of(kind: type) -> Iterator[str]:
    """Yield the slots of a class and its bases, as attributes are called."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__"):
                is_private = slot.startswith("__") and not slot.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{slot}" if is_private else slot
