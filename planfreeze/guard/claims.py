"""Claims: calls that something serves without compiling, such as a store behind a compiler's hook."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planfreeze.guard.attempts import Release

__all__ = ["Call", "claim", "is_claimed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that would compile.

    Parameters
    ----------
    function : object
        What would be compiled, as the compiler got it.
    arguments, options : tuple, Mapping
        What it is called or compiled with.
    compiler : object, optional
        The compiler object of an explicit compile, with its options; None for a call of the function itself.
    """

    function: object
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    compiler: object = None


Serves = Callable[[Call], bool]
servers: list[Serves] = []


def claim(serves: Serves) -> Release:
    """Ask ``serves`` about every call that would compile: one that it serves is no attempt.

    Returns
    -------
    callable
        Takes the claim back.
    """
    servers.append(serves)
    return lambda: servers.remove(serves) if serves in servers else None


def is_claimed(call: Call) -> bool:
    """Tell whether something serves the call."""
    return any(serves(call) for serves in tuple(servers))
