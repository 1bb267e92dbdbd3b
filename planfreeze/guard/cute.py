"""The CuTe DSL road: ``cute.compile`` in all its forms and direct calls of ``@cute.jit`` functions, version 4.8.

What counts as an attempt: every ``cute.compile``, which never uses a cache, and every call of a ``@cute.jit``
function from Python, which traces and lowers before it looks into a cache. Calling what ``cute.compile`` returned,
or a loaded object, lowers nothing and is allowed.

Not seen: MLIR passes run through the private bindings in ``cutlass._mlir``.
"""

import sys
from types import FunctionType, MethodType
from typing import Any

from planfreeze.guard.attempts import Attempt, Facts, definition_of, user_location
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import describe_value

__all__ = ["road"]

# Frames between find_wrapper and the caller of a gated function: describe, enter, gate.
CALLER_DEPTH = 4


def describe_compile(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``CompileCallable._compile(self, func, *args, **kwargs)``."""
    stated = {name: value for name, value in options.items() if name != "func"}
    compiler = first(arguments)
    function = arguments[1] if len(arguments) > 1 else options.get("func")
    chosen = tuple(
        (type(option).__name__, str(option.value))
        for option in getattr(getattr(compiler, "_compile_options", None), "options", {}).values()
        if option.value != option._default
    )
    return make_attempt(function, arguments[2:], stated, chosen)


def describe_preprocess(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``BaseDSL._preprocess_and_replace_code(func)``; the call's arguments are in the wrapper's frame."""
    wrapped = find_wrapper() or {}
    function = first(arguments, options.get("func"))
    return make_attempt(function, wrapped.get("args", ()), wrapped.get("kwargs", {}))


def describe_trace(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | None:
    """Describe ``_func(self, funcBody, *args, **kwargs)`` and ``_device_func`` of a DSL object."""
    if find_wrapper() is not None:
        # The wrapper called the preprocessor a moment ago: that was the attempt.
        return None
    function = first(arguments[1:], options.get("funcBody"))
    stated = {name: value for name, value in options.items() if name != "funcBody"}
    return make_attempt(function, arguments[2:], stated)


def find_wrapper() -> dict[str, Any] | None:
    """Return the local variables of the ``@cute.jit`` wrapper that called the gated function, if one did."""
    frame = sys._getframe(CALLER_DEPTH)
    return frame.f_locals if frame.f_code.co_name == "jit_wrapper" else None


def describe_module(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call that compiles IR made earlier: no function is left to name."""
    return Attempt(road="cute", kernel="an MLIR module", location=user_location("unknown:0"))


def first(arguments: tuple[Any, ...], default: object = None) -> Any:
    return arguments[0] if arguments else default


def make_attempt(function: object, arguments: tuple[Any, ...], options: dict[str, Any], chosen: Facts = ()) -> Attempt:
    body = find_body(function)
    code = getattr(body, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    instance = function
    if names[:1] == ("self",):
        if len(arguments) >= len(names):
            instance, arguments = arguments[0], arguments[1:]
        names = names[1:]
    facts = [(name, describe_value(value)) for name, value in zip(names, arguments, strict=False)]
    facts += [("", describe_value(value)) for value in arguments[len(names) :]]
    facts += [(name, describe_value(value)) for name, value in options.items()]
    return Attempt(
        road="cute",
        kernel=f"{getattr(body, '__module__', '?')}.{getattr(body, '__qualname__', repr(function))}",
        facts=(*facts, *describe_instance(instance, body), *chosen),
        location=user_location(definition_of(body)),
    )


def describe_instance(instance: object, body: object) -> Facts:
    """Name the plain values that a callable instance, or the owner of a method, was made with: its constants."""
    owner = getattr(instance, "__self__", instance)
    if owner is body or isinstance(owner, FunctionType | MethodType):
        return ()
    plain = getattr(owner, "__dict__", {})
    return tuple((name, repr(value)) for name, value in plain.items() if isinstance(value, bool | int | float | str))


def find_body(function: object) -> object:
    """Return the Python function behind a method, a callable instance or a decorated function."""
    if not hasattr(function, "__qualname__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004  # the function is wanted, not a test
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def make_probe() -> Any:
    """Make an empty host function."""
    import cutlass.cute as cute

    def probe():  # type: ignore[no-untyped-def]  # an annotation here would be read by the DSL
        pass

    return cute.jit(probe)


def attempt_compile() -> object:
    """Compile the empty function explicitly."""
    import cutlass.cute as cute

    return cute.compile(make_probe())


def attempt_call() -> object:
    """Call the empty function, which would trace, compile and run it."""
    return make_probe()()


DOORS = (
    # cute.compile is an instance with __getitem__ and is copied by cute.compile[...]: the method of its class is
    # the one place that all instances, also those bound to a name before, go through first.
    Door(module="cutlass.base_dsl.compiler", path="CompileCallable._compile", describe=describe_compile),
    # The first thing the wrapper of every @cute.jit function calls; it rewrites the function's syntax tree.
    Door(
        module="cutlass.base_dsl.dsl",
        path="BaseDSL._preprocess_and_replace_code",
        describe=describe_preprocess,
    ),
    # Second line, for callers that take the DSL object or its compiler by the hand.
    Door(module="cutlass.base_dsl.dsl", path="BaseDSL._func", describe=describe_trace),
    Door(module="cutlass.cutlass_dsl.cutlass", path="CuTeDSL._device_func", describe=describe_trace),
    Door(module="cutlass.base_dsl.compiler", path="Compiler.compile", describe=describe_module),
    # The compiler of stored artifacts is an extension class: no Python function is under it.
    Door(module="cutlass.compiler", path="Compiler.compile_to", describe=describe_module),
)

road = Road(
    name="cute",
    package="cutlass",
    modules=tuple(dict.fromkeys(door.module for door in DOORS)),
    install=watch_doors("cute", DOORS),
    attempts=(attempt_compile, attempt_call),
)
