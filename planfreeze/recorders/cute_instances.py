"""Instances whose methods were traced: what tracing left on them is not what a call asks for.

Functions of the CuTe DSL often keep what they make while they are traced on their instance. A program is built, and
served, with an instance that was never traced; so a call is described as if this one had not been, either.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from planfreeze.recorded.instances import instance_attributes

__all__ = ["TracedInstances"]

ABSENT = object()


class Traces(Struct, frozen=True, kw_only=True):
    """An instance, kept so that its identity stays its own: its attributes before a trace, and what that one set."""

    instance: Any
    before: dict[str, Any]
    left: dict[str, Any]


class TracedInstances:
    """Every instance that was traced in this process."""

    def __init__(self) -> None:
        self.traces: dict[int, Traces] = {}

    @contextlib.contextmanager
    def untraced(self, instance: Any) -> Iterator[dict[str, Any]]:
        """Put an instance back to before its last trace while the block runs; what others set since stays.

        Yields
        ------
        dict of str to object
            Its attributes.
        """
        known = self.traces.get(id(instance))
        now = dict(instance_attributes(instance))
        put_back = {
            name: value for name, value in (known.left if known else {}).items() if now.get(name, ABSENT) is value
        }
        try:
            for name in put_back:
                assert known is not None
                if name in known.before:
                    object.__setattr__(instance, name, known.before[name])
                else:
                    object.__delattr__(instance, name)
            yield dict(instance_attributes(instance))
        finally:
            for name, value in put_back.items():
                object.__setattr__(instance, name, value)

    def note(self, instance: Any, before: dict[str, Any]) -> None:
        """Note what a trace left on an instance."""
        after = instance_attributes(instance)
        left = {name: value for name, value in after if before.get(name, ABSENT) is not value}
        if left:
            self.traces[id(instance)] = Traces(instance=instance, before=before, left=left)
