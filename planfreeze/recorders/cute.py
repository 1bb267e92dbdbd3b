"""The CuTe DSL recorder: host functions that were called, through ``cute.compile`` or directly, nvidia-cutlass-dsl 4.8.

What a call asks for is described before the DSL traces it, since tracing may change an instance. It is counted where
every compiled function runs its host code; one that is compiled and never called counts as unused.
"""

import functools
import sys
import threading
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from planfreeze import errors
from planfreeze.compilers.assignments import keyed_text
from planfreeze.compilers.watching import WatchedCaptures
from planfreeze.hooks import hook_method
from planfreeze.payload import Payload
from planfreeze.recorded.cute_calls import (
    BoundCall,
    bind_call,
    check_call,
    describe_call,
    functions_of,
    is_tracing,
    name_of,
)
from planfreeze.recorded.cute_function import CuteFunctionPayload, function_modules
from planfreeze.recorders.cute_instances import TracedInstances
from planfreeze.recorders.tally import Recorder, Release, Tally
from planfreeze.sources import read_sources
from planfreeze.target import ARCHS

__all__ = ["recorder"]


# The compiled functions whose runs are seen. Others are refused when they are compiled, called or not.
COUNTED = "CudaDialectJitCompiledFunction"


class Asked:
    """A call of the DSL: its payload, or why it has none."""

    __slots__ = ("identity", "payload", "refusal")

    def __init__(self, payload: CuteFunctionPayload | None, refusal: errors.PlanfreezeError | None) -> None:
        self.payload, self.refusal = payload, refusal
        self.identity = str(refusal) if payload is None else payload.digest


class Calls(threading.local):
    """What this thread is about to compile and run at once."""

    asked: Asked | None = None


calls = Calls()
traced = TracedInstances()
captures = WatchedCaptures()
# By the object in which the DSL keeps how a compiled function takes its arguments: its executors share it.
compiled_calls: "WeakKeyDictionary[Any, Asked]" = WeakKeyDictionary()


def install(module: ModuleType, tally: Tally) -> Release:
    """Hook one of the DSL's modules."""
    if module.__name__ == "cutlass.base_dsl.dsl":
        return hook_method(module.BaseDSL, "_func_impl", lambda original: note_calls(original, tally))
    return hook_method(module.JitExecutor, "run_compiled_program", lambda original: count_runs(original, tally))


def note_calls(original: Any, tally: Tally) -> Any:
    @functools.wraps(original)
    def note_call(dsl: Any, body: Any, *arguments: Any, **options: Any) -> Any:
        if is_tracing():
            return original(dsl, body, *arguments, **options)
        instance = arguments[0] if arguments and body.__code__.co_varnames[:1] == ("self",) else None
        with traced.untraced(instance) as before:
            asked = describe(dsl, body, arguments, options)
        try:
            return trace(dsl, body, asked, arguments, options)
        finally:
            traced.note(instance, before)

    def trace(dsl: Any, body: Any, asked: Asked, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not options.get("compile_only"):
            return run_at_once(asked, tally, lambda: original(dsl, body, *arguments, **options))
        compiled = original(dsl, body, *arguments, **options)
        if type(compiled).__name__ == COUNTED:
            compiled_calls[compiled.execution_args] = asked
            tally.compile(asked.identity)
        else:
            tally.refuse(name_of(body), reason_of(asked.refusal) or f"it becomes a {type(compiled).__name__}")
        return compiled

    return note_call


def run_at_once(asked: Asked, tally: Tally, run: Any) -> Any:
    """Compile and run a function that is called directly; what it returned while it was traced is part of it."""
    before, calls.asked = calls.asked, asked
    try:
        result = run()
    finally:
        calls.asked = before
    if result is not None and asked.payload is not None:
        tally.refuse(asked.payload.function, f"it returns {type(result).__name__} that it makes while it is traced")
    return result


def describe(dsl: Any, body: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Asked:
    try:
        call = bind_call(body, arguments, options)
        payload = describe_call(call, dsl.compile_options)
        check_call(call, payload)
        check_globals(call, payload)
    except errors.Unrecordable as error:
        return Asked(None, error)
    return Asked(payload, None)


def check_globals(call: BoundCall, payload: CuteFunctionPayload) -> None:
    """Check that what a function reaches is what its text says: a build knows nothing else.

    Raises
    ------
    Unrecordable
        The run has changed something that the function reads.
    """
    try:
        captures.check(
            payload.digest,
            payload.function,
            functions_of(call),
            lambda: keyed_text(read_sources(function_modules(payload))),
        )
    except errors.UnkeyedCapture as error:
        raise errors.Unrecordable(payload.function, f"it uses {error.name}: {error.reason}") from error
    except (errors.SourceUnreadable, errors.UnparsableSource, errors.SourceChanged):
        return  # the build refuses it by its module


def count_runs(original: Any, tally: Tally) -> Any:
    @functools.wraps(original)
    def run_compiled_program(executor: Any, *arguments: Any) -> Any:
        result = original(executor, *arguments)
        asked = calls.asked or compiled_calls.get(executor.jit_module.execution_args)
        if asked is None:
            tally.refuse(str(executor.jit_module.execution_args.function_name), "it was compiled before the recording")
        else:
            tally.count(asked.identity, admit, asked)
        return result

    return run_compiled_program


def admit(asked: Asked, tally: Tally) -> Payload:
    """Return the payload of a call that ran, and note where it ran and where its modules are.

    Raises
    ------
    Unrecordable
        It has none.
    """
    if asked.payload is None:
        assert asked.refusal is not None
        raise asked.refusal
    import cutlass
    from cutlass.cutlass_dsl import CuTeDSL

    arch = CuTeDSL._get_dsl().envar.arch
    if arch not in ARCHS:
        raise errors.Unrecordable(asked.payload.function, f"it runs on {arch}, which planfreeze does not compile for")
    tally.note("arch", arch)
    tally.note("version", ["nvidia-cutlass-dsl", cutlass.__version__])
    for module in function_modules(asked.payload):
        tally.note_module(module if module in sys.modules else "__main__")
    return asked.payload


def reason_of(refusal: errors.PlanfreezeError | None) -> str:
    return str(getattr(refusal, "reason", refusal)) if refusal is not None else ""


recorder = Recorder(modules=("cutlass.base_dsl.dsl", "cutlass.base_dsl.jit_executor"), install=install)
