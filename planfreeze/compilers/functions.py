"""Python functions below what compilers make of them: their text, defaults and modules."""

import ast
import dataclasses
import functools
import inspect
import sys
import textwrap
from types import CodeType, FunctionType
from typing import Any

from planfreeze.compilers.assignments import is_trusted
from planfreeze.constants import module_name

__all__ = [
    "default_expressions",
    "default_values",
    "function_below",
    "home_of",
    "imported_name",
    "is_generated",
    "is_same_code",
    "original_code",
]


def function_below(value: Any) -> FunctionType | None:
    """Return the Python function of a function, a method, a compiler's kernel or a cached function, if it is one."""
    if isinstance(value, FunctionType):
        return value
    if isinstance(value, (staticmethod, classmethod)):
        return function_below(value.__func__)
    if isinstance(value, property):
        return function_below(value.fget)
    if isinstance(value, functools.cached_property):
        return function_below(value.func)
    if is_trusted(type(value).__module__) and hasattr(value, "fn"):
        return function_below(value.fn)
    if type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):
        return function_below(value.__wrapped__)
    return None


def default_expressions(node: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the default of each parameter that has one, as text."""
    positional = (*node.args.posonlyargs, *node.args.args)
    pairs = [*zip(reversed(positional), reversed(node.args.defaults), strict=False)]
    pairs += [(found, value) for found, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
    return {found.arg: value for found, value in pairs}


def default_values(function: FunctionType) -> dict[str, Any]:
    """Return the default of each parameter that has one, as the function has it now."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    return dict(zip(reversed(names), reversed(values), strict=False)) | (function.__kwdefaults__ or {})


def is_same_code(text: str, node: ast.FunctionDef) -> bool:
    """Tell whether a function's text is a definition's, decorators aside."""
    (found,) = ast.parse(textwrap.dedent(text)).body
    bodies = ([ast.dump(part) for part in (definition.args, *definition.body)] for definition in (found, node))  # type: ignore[attr-defined]
    first, second = bodies
    return first == second


def home_of(function: FunctionType) -> str:
    """Return the module whose names a function uses; a wrapper's ``__module__`` is that of what it wraps."""
    return imported_name(str(function.__globals__.get("__name__", function.__module__)))


def imported_name(module: str) -> str:
    """Return the name that a module has in a key; a script's is that of its file."""
    return module_name(sys.modules[module]) if module == "__main__" else module


def original_code(function: FunctionType) -> CodeType:
    """Return the code of a function's text; CuTe rewrites the code of its functions."""
    code: CodeType = getattr(function, "_original_code", function.__code__)
    return code


def is_generated(base: type, method: Any) -> bool:
    """Tell whether the standard library wrote a method of a dataclass or named tuple: it follows from the text."""
    function = inspect.unwrap(method) if callable(method) else None
    if not isinstance(function, FunctionType) or not function.__name__.startswith("__"):
        return False
    if dataclasses.is_dataclass(base) and function.__code__.co_filename == "<string>":
        return True
    return issubclass(base, tuple) and home_of(function) == f"namedtuple_{base.__name__}"
