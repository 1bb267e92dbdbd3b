"""Calls of the CuTe DSL: which payload a call asks for, and the call that a payload stands for.

A call is what ``cute.compile(function, ...)`` compiles or ``function(...)`` compiles and runs.
"""

import functools
import inspect
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.constants import find_object
from planfreeze.payload import Field
from planfreeze.recorded.cute_arguments import describe_argument, is_constant, make_argument, traced_types
from planfreeze.recorded.cute_function import CuteFunctionPayload
from planfreeze.recorded.values import freeze_function, freeze_value, pairs, thaw_value, unwrap

__all__ = [
    "BoundCall",
    "bind_call",
    "check_call",
    "describe_call",
    "functions_of",
    "is_tracing",
    "make_call",
    "make_options",
    "name_of",
]

# Arguments of the DSL's own that change what is compiled.
STEERING = ("export_name", "gpu_module_attrs", "pipeline", "compile_to_precompiled_mlir")
# Options that write files or print, and change no program.
SILENT_OPTIONS = frozenset(
    {
        "CollectCompilerDiagnostics",
        "DumpDir",
        "FlattenLocsOutputJsonPath",
        "KeepCUBIN",
        "KeepPTX",
        "KeepSASS",
        "NvdisasmOptions",
        "RemarkFilter",
        "RemarkOutput",
        "WarningsFilter",
    }
)
# What of its environment the DSL makes options of.
ENVIRONMENT_FACTS = (
    "arch",
    "compiler_opt",
    "debug",
    "dump_dir",
    "enable_assertions",
    "enable_pyir",
    "enable_tvm_ffi",
    "keep_cubin",
    "keep_ptx",
    "keep_sass",
    "lineinfo",
)
REFUSED_OPTIONS = {
    "DeviceTarget": "it makes a device function, which nothing launches",
    "EnablePYIR": "the DSL checks what it specialised on in every call",
    "EnableTVMFFI": "the function is one of TVM-FFI, which loads its own libraries",
    "GPUArch": "it is not the architecture of the process",
    "FrontendNext": "the DSL checks what it specialised on in every call",
    "HostTarget": "the function is for another host",
    "LinkLibraries": "it links libraries by path",
}


class BoundCall(Struct, frozen=True, kw_only=True):
    """A call with its arguments by parameter.

    Parameters
    ----------
    body : function
        The Python function below methods and decorators.
    arguments : tuple of (str, object, object)
        Name, value and annotation of every parameter in order; ``*name`` and ``**name`` for the variable ones.
    bound : inspect.BoundArguments
        The same as Python binds them, with the signature, annotations evaluated.
    """

    body: Any
    arguments: tuple[tuple[str, Any, Any], ...]
    bound: inspect.BoundArguments


def bind_call(body: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> BoundCall:
    """Bind a call's arguments, defaults included.

    Raises
    ------
    Unrecordable
        They do not fit the function, or steer the compiler by something other than compile options.
    """
    named = {name: value for name, value in options.items() if name not in ("compile_only", "no_cache")}
    for name in STEERING:
        if named.pop(name, None):
            raise errors.Unrecordable(name_of(body), f"it is compiled with {name}=...")
    signature = signature_of(body)
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise errors.Unrecordable(name_of(body), str(error)) from error
    bound.apply_defaults()
    parameters = signature.parameters
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return BoundCall(
        body=body,
        arguments=tuple(
            (marks.get(parameters[name].kind, "") + name, value, parameters[name].annotation)
            for name, value in bound.arguments.items()
        ),
        bound=bound,
    )


def functions_of(call: BoundCall) -> tuple[Any, ...]:
    """Return the function of a call, and the functions among its arguments."""
    passed = (value for _, value, _ in call.arguments if inspect.isfunction(value))
    return (call.body, *(unwrap(function) for function in passed))


@functools.lru_cache(maxsize=4096)
def signature_of(body: Any) -> inspect.Signature:
    """Return a function's signature as the DSL reads it."""
    return inspect.signature(body, eval_str=True)


def describe_call(call: BoundCall, compile_options: Any) -> CuteFunctionPayload:
    """Return the payload of a call.

    Parameters
    ----------
    compile_options : object
        The DSL's options of this compile; those of its environment are added.

    Raises
    ------
    Unrecordable
        Another process could not make the same call: names the argument, attribute, captured value or option.
    """
    dsl = call.body._dsl_object
    if type(dsl).__name__ != "CuTeDSL":
        raise errors.Unrecordable(name_of(call.body), f"it is compiled by {type(dsl).__name__}")
    try:
        function = freeze_function("function", call.body)
        assert isinstance(function, tuple)
        return CuteFunctionPayload(
            function=str(function[1]),
            closure=function if len(function) > 2 else (),
            arguments=tuple(
                (name, describe_parameter(name, index, value, annotation))
                for index, (name, value, annotation) in enumerate(call.arguments)
            ),
            options=describe_options(compile_options, dsl.envar),
        )
    except errors.UnnameableConstant as error:
        raise errors.Unrecordable(name_of(call.body), f"{error.name} = {error.value}: {error.reason}") from error
    except errors.Unrecordable:
        raise
    except Exception as error:  # a stranger's object may raise anything when it is looked at
        raise errors.Unrecordable(name_of(call.body), f"looking at its arguments raised {error!r}") from error


def describe_parameter(name: str, index: int, value: Any, annotation: Any) -> Field:
    empty = inspect.Parameter.empty
    if name.startswith("**"):
        return tuple((key, describe_argument(key, index, held, empty)) for key, held in value.items())
    if name.startswith("*"):
        return tuple(describe_argument(f"{name[1:]}[{i}]", index + i, held, empty) for i, held in enumerate(value))
    return describe_argument(name, index, value, annotation)


def check_call(call: BoundCall, payload: CuteFunctionPayload) -> None:
    """Check that the DSL gives the arguments of a call and the placeholders made from its payload the same types.

    Raises
    ------
    Unrecordable
        It does not: the description leaves something out.
    """
    for (name, value, _), (_, field) in zip(call.arguments, pairs(payload.arguments), strict=True):
        if name.startswith("*") or is_constant(field) or field[0] == "scalar":
            continue
        made, real = traced_types(make_argument(field)), traced_types(value)
        if made != real:
            raise errors.Unrecordable(
                payload.function, f"{name} is {real} to the DSL, and {made} when made from {field}"
            )


def describe_options(compile_options: Any, environment: Any) -> tuple[Field, ...]:
    """Return the compile options that differ from the DSL's defaults, those of its environment included."""
    return effective_options(
        tuple((kind, type(option.value), option.value) for kind, option in compile_options.options.items()),
        frozenset(compile_options._debug_selectors),
        tuple((name, getattr(environment, name)) for name in ENVIRONMENT_FACTS),
    )


@functools.lru_cache(maxsize=256)
def effective_options(
    stated: tuple[tuple[Any, type, Any], ...], debugged: frozenset[str], environment: tuple[tuple[str, Any], ...]
) -> tuple[Field, ...]:
    """Return the options that the DSL makes of stated ones and its environment, but for its defaults.

    Types are stated because what is remembered for 1 would be found for ``True``.
    """
    settings = SimpleNamespace(**dict(environment))
    effective = import_module("cutlass.base_dsl.compiler").CompileOptions()
    for kind, _, value in stated:
        effective.options[kind].value = value
    effective.apply_envar_settings(settings, "")
    if debugged | effective._debug_selectors:
        raise errors.UnnameableConstant(
            "option debug", ", ".join(debugged | effective._debug_selectors), "it checks launches"
        )
    described = []
    for kind, option in effective.options.items():
        name, value = kind.__name__, option.value
        if value == kind._default or name in SILENT_OPTIONS or (name == "GPUArch" and value == settings.arch):
            continue
        if name in REFUSED_OPTIONS:
            raise errors.UnnameableConstant(f"option {name}", str(value), REFUSED_OPTIONS[name])
        described.append((name, freeze_value(f"option {name}", value)))
    return tuple(sorted(described))


def is_tracing() -> bool:
    """Tell whether this thread is tracing a function: what it calls becomes part of that one."""
    ir = import_module("cutlass._mlir.ir")
    return ir.Context.current is not None and ir.InsertionPoint.current is not None


def make_call(payload: CuteFunctionPayload) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function of a payload with placeholders for its arguments; imports the function's module."""
    function = thaw_value(payload.closure) if payload.closure else find_object(payload.function)
    kinds = {name: parameter.kind for name, parameter in signature_of(unwrap(function)).parameters.items()}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, field in pairs(payload.arguments):
        if name.startswith("**"):
            named |= {key: make_argument(held) for key, held in field}
        elif name.startswith("*"):
            positional += map(make_argument, field)
        elif kinds[name] is inspect.Parameter.KEYWORD_ONLY:
            named[name] = make_argument(field)
        else:
            positional.append(make_argument(field))
    return function, tuple(positional), named


def make_options(payload: CuteFunctionPayload) -> tuple[Any, ...]:
    """Return the DSL's compile options of a payload.

    Raises
    ------
    UnnameableConstant
        It has one that no recording holds: of no such name, or that writes files where the recording says.
    """
    kinds = {kind.__name__: kind for kind in import_module("cutlass.base_dsl.compiler").CompileOptions().options}
    made = []
    for name, value in pairs(payload.options):
        if name not in kinds or name in REFUSED_OPTIONS or name in SILENT_OPTIONS:
            raise errors.UnnameableConstant(
                f"option {name}", str(value), REFUSED_OPTIONS.get(name, "no recording holds it")
            )
        made.append(kinds[name](thaw_value(value)))
    return tuple(made)


def name_of(body: Any) -> str:
    """Return a function's name for messages."""
    return f"{getattr(body, '__module__', '?')}:{getattr(body, '__qualname__', repr(body))}"
