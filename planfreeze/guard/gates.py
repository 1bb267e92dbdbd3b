"""Gates: a check in front of a function that already exists, whatever names it is bound to.

A Python function is gated by exchanging its code object: every name bound to the function before arming, every
method looked up from its class and every reference a library keeps meets the gate, and taking it off restores the
very same code object. A callable without Python code is gated by exchanging the attribute of its owner.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Describe, Release, Report
from planfreeze.guard.attributes import set_attribute

__all__ = ["install_gate", "passing"]

# Names the code's free variables after the return, because a code object only fits a function with as many cells.
SOURCE = """
def surround({cells}):
    def gate(*arguments, planfreeze_gate, **options):
        return planfreeze_gate.enter(arguments, options)
        ({cells})
    return gate
"""


class ThreadState(threading.local):
    """Whether this thread is inside a compile that was already reported, and inside a call that was no attempt."""

    is_passing = False
    is_watching = False


state = ThreadState()


@contextmanager
def passing() -> Iterator[None]:
    """Let this thread through every gate: what a reported compile calls is part of it, not another attempt.

    Inside a call that was no attempt itself, the rest of that call is part of it, too.
    """
    before, state.is_passing = state.is_passing, True
    try:
        yield
    finally:
        state.is_passing = before or state.is_watching


@contextmanager
def watching() -> Iterator[None]:
    """Keep the gates closed inside a call that is no attempt, until one is reported there."""
    before = state.is_passing, state.is_watching
    state.is_watching = True
    try:
        yield
    finally:
        state.is_passing, state.is_watching = before


class Gate:
    """What a gated function does instead: report the attempt, and only then run the original."""

    __slots__ = ("describe", "is_covering", "is_live", "original", "report")

    def __init__(self, original: Callable[..., Any], describe: Describe, report: Report, is_covering: bool) -> None:
        self.original, self.describe, self.report, self.is_covering = original, describe, report, is_covering
        self.is_live = True

    def enter(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Report, which may raise; then call the original."""
        if not self.is_live or state.is_passing:
            return self.original(*arguments, **options)
        attempt = self.describe(arguments, options)
        if attempt is NO_ATTEMPT:
            with watching():
                return self.original(*arguments, **options)
        if attempt is not None:
            self.report(attempt)
            if not self.is_covering:
                return self.original(*arguments, **options)
        with passing():
            return self.original(*arguments, **options)


def install_gate(
    owner: type | ModuleType, name: str, describe: Describe, report: Report, *, is_covering: bool = True
) -> Release:
    """Gate the function ``name`` of a class or module.

    Parameters
    ----------
    owner : type or module
        Where the function stands itself, not by inheritance.
    name : str
        Its attribute.
    describe : callable
        From positional and keyword arguments of a call to an :class:`~planfreeze.guard.attempts.Attempt`; None
        for a call that goes on with one already reported; ``NO_ATTEMPT`` for a call that is none.
    report : callable
        Called with the attempt before the original; refuses by raising.
    is_covering : bool
        Whether what an admitted call calls is part of its attempt. After ``NO_ATTEMPT`` it never is.

    Returns
    -------
    callable
        Takes the gate off. Where others have changed the function since, the gate stays in place, inert.

    Raises
    ------
    AttributeError
        The owner has no such function.
    """
    found = vars(owner).get(name)
    function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if isinstance(function, FunctionType):
        return gate_function(function, Gate(copy_function(function), describe, report, is_covering))
    if callable(found):
        return gate_attribute(owner, name, Gate(found, describe, report, is_covering))
    raise AttributeError(f"{owner.__name__} has no function {name}")


def gate_function(function: FunctionType, gate: Gate) -> Release:
    """Exchange the code of a Python function, of which the gate has a copy."""
    original: Any = gate.original
    code = make_code(function.__code__.co_freevars)
    # Keyword defaults first: the old code ignores one it has no parameter for, the new code needs it.
    function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "planfreeze_gate": gate}
    function.__code__ = code
    # Introspection follows __wrapped__ to the true signature and source.
    function.__dict__["__wrapped__"] = original

    def release() -> None:
        gate.is_live = False
        if function.__code__ is not code:
            return
        function.__code__ = original.__code__
        function.__kwdefaults__ = original.__kwdefaults__
        if function.__dict__.get("__wrapped__") is original:
            del function.__dict__["__wrapped__"]
            if "__wrapped__" in original.__dict__:
                function.__dict__["__wrapped__"] = original.__dict__["__wrapped__"]

    return release


def gate_attribute(owner: type | ModuleType, name: str, gate: Gate) -> Release:
    """Exchange an attribute that holds a callable without Python code, such as a method of an extension class."""
    original = gate.original

    def entry(*arguments: Any, **options: Any) -> Any:
        return gate.enter(arguments, options)

    entry.__name__, entry.__doc__ = name, original.__doc__
    set_attribute(owner, name, entry)

    def release() -> None:
        gate.is_live = False
        if vars(owner).get(name) is entry:
            set_attribute(owner, name, original)

    return release


def copy_function(function: FunctionType) -> FunctionType:
    """Return a second function with the same code, cells, defaults and attributes."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = (
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    copy.__annotations__ = function.__annotations__
    copy.__dict__.update(function.__dict__)
    return copy


def make_code(cells: tuple[str, ...]) -> CodeType:
    """Compile the gate's code with free variables of the given names."""
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE.format(cells=", ".join(cells)), __file__, "exec"), namespace)
    made: CodeType = namespace["surround"](*cells).__code__
    return made
