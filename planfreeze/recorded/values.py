"""Values of a recorded call as payload fields: constants, and the containers, instances and closures that hold them."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import CellType, CodeType, FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from planfreeze import errors
from planfreeze.constants import (
    OBJECT,
    check_unmarked,
    constant_modules,
    find_object,
    follow,
    freeze_constant,
    name_object,
    place_object,
    thaw_constant,
)
from planfreeze.payload import Field
from planfreeze.recorded.instances import instance_attributes, is_plain_instance

__all__ = [
    "INSTANCE",
    "field_modules",
    "freeze_function",
    "freeze_value",
    "inner_codes",
    "is_numeric",
    "pairs",
    "thaw_value",
    "unwrap",
]

LIST, DICT, INSTANCE, NAMED_TUPLE, NUMBER, ALIAS, CLOSURE = (
    "\0list",
    "\0dict",
    "\0instance",
    "\0named tuple",
    "\0number",
    "\0alias",
    "\0closure",
)
DECORATORS = ("jit", "kernel")
NUMERIC = "cutlass.base_dsl.typing"


def freeze_value(name: str, value: Any, above: tuple[int, ...] = ()) -> Field:
    """Return a value as a field that :func:`thaw_value` turns back.

    Parameters
    ----------
    name : str
        Where the value stands, such as ``self.tile``, for the error.
    value : object
        A constant as :func:`planfreeze.constants.freeze_constant` takes it, a scalar of the CuTe DSL with a Python
        number in it, a function with what it captures, a list, tuple or dictionary of these, or an instance of a
        class in Python whose attributes are these.

    Raises
    ------
    UnnameableConstant
        It is something else: nothing says what it would be in another process.
    """
    if id(value) in above:
        raise errors.UnnameableConstant(name, type(value).__name__, "it holds itself")
    inner = (*above, id(value))
    kind = type(value)
    if kind in (tuple, list, dict) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return freeze_container(name, value, inner)
    if is_numeric(kind):
        return (NUMBER, name_object(name, kind), freeze_constant(name, value.value))
    if get_origin(value) is not None:
        origin = Union if isinstance(value, UnionType) else get_origin(value)
        stated = (None if argument is NoneType else argument for argument in get_args(value))
        arguments = (freeze_value(name, argument, inner) for argument in stated)
        return (ALIAS, freeze_value(name, origin, inner), *arguments)
    if isinstance(unwrap(value), FunctionType):
        return freeze_function(name, value, inner)
    if is_plain_instance(value):
        attributes = sorted(instance_attributes(value))
        frozen = ((attribute, freeze_value(f"{name}.{attribute}", held, inner)) for attribute, held in attributes)
        return (INSTANCE, name_object(f"type({name})", kind), *frozen)
    return freeze_constant(name, value)


def freeze_container(name: str, value: Any, inner: tuple[int, ...]) -> Field:
    """Return a tuple, list or dictionary as a field; the order of a dictionary is part of it."""
    if type(value) is dict:
        return (
            DICT,
            *((freeze_value(name, k, inner), freeze_value(f"{name}[{k!r}]", v, inner)) for k, v in value.items()),
        )
    items = (freeze_value(f"{name}[{index}]", item, inner) for index, item in enumerate(value))
    if type(value) is tuple:
        check_unmarked(name, value)
        return tuple(items)
    return (LIST, *items) if type(value) is list else (NAMED_TUPLE, name_object(name, type(value)), *items)


def thaw_value(field: Any) -> Any:
    """Return the value that a field stands for; imports the modules of what it names."""
    if not isinstance(field, tuple):
        return field
    if field and isinstance(field[0], str) and field[0].startswith("\0"):
        thaw = THAWED.get(field[0])
        return thaw(*field[1:]) if thaw else thaw_constant(field)
    return tuple(map(thaw_value, field))


def thaw_instance(kind: str, *attributes: Field) -> Any:
    """Make an object of its class and attributes; nothing of the class runs."""
    made = object.__new__(find_object(kind))
    for attribute, value in pairs(attributes):
        object.__setattr__(made, attribute, thaw_value(value))
    return made


def thaw_named_tuple(reference: str, *items: Field) -> Any:
    """Make a named tuple of its class; nothing of the class runs."""
    kind = find_object(reference)
    if not isinstance(kind, type) or not issubclass(kind, tuple):
        raise errors.UnnameableConstant(reference, reference, "it is no class of tuples")
    return tuple.__new__(kind, map(thaw_value, items))


def thaw_number(reference: str, number: Field) -> Any:
    """Make a scalar of the DSL; a recording that was changed must not call anything else."""
    kind = find_object(reference)
    if not isinstance(kind, type) or not is_numeric(kind):
        raise errors.UnnameableConstant(reference, reference, "it is no scalar type of the DSL")
    return kind(thaw_constant(number))


def field_modules(field: Field) -> tuple[str, ...]:
    """Return the modules whose objects a value names: their text is part of the program's."""
    if not isinstance(field, tuple):
        return ()
    named: tuple[str, ...] = ()
    match field:
        case (str() as mark, str() as reference, *_) if mark in (NAMED_TUPLE, NUMBER, INSTANCE, CLOSURE):
            named = (reference.partition(":")[0],)
        case (str() as mark, *_) if mark.startswith("\0"):
            named = constant_modules(field)
    return tuple(dict.fromkeys((*named, *(module for item in field for module in field_modules(item)))))


def freeze_function(name: str, function: Any, above: tuple[int, ...] = ()) -> Field:
    """Return a function as a field: by its name, or by its place in its module with all that it captures.

    Raises
    ------
    UnnameableConstant
        Its module does not have it under its name, nor its text in one place; or what it captures has no name.
    """
    body = unwrap(function)
    module = sys.modules.get(getattr(body, "__module__", None) or "")
    if module is None:
        raise errors.UnnameableConstant(name, repr(function), "it is in no module that is loaded")
    reference = place_object(name, module, body.__qualname__)
    if unwrap(follow(module, body.__qualname__)) is body:
        return (OBJECT, reference)
    if "<locals>" not in body.__qualname__ or "<lambda>" in body.__qualname__:
        raise errors.UnnameableConstant(name, reference, f"{module.__name__} has something else under this name")
    code = getattr(body, "_original_code", body.__code__)
    if find_code(name, module, body.__qualname__) != code:
        raise errors.UnnameableConstant(name, reference, "its text is not the one in its module")
    cells = tuple(zip(code.co_freevars, body.__closure__ or (), strict=True))
    captured = tuple((cell, freeze_cell(f"captured {cell}", held, above)) for cell, held in cells)
    annotations = tuple(
        (key, freeze_value(f"annotation of {key}", a, above)) for key, a in body.__annotations__.items()
    )
    defaults = freeze_value(f"defaults of {body.__qualname__}", body.__defaults__, above)
    named_defaults = freeze_value(f"defaults of {body.__qualname__}", body.__kwdefaults__, above)
    return (CLOSURE, reference, freeze_decorator(name, body), captured, annotations, defaults, named_defaults)


def freeze_cell(name: str, cell: CellType, above: tuple[int, ...]) -> Field:
    try:
        return freeze_value(name, cell.cell_contents, above)
    except ValueError as error:
        raise errors.UnnameableConstant(name, "nothing", "it is captured before it is set") from error


def freeze_decorator(name: str, body: Any) -> Field:
    """Return how the CuTe DSL decorates a function: jit, kernel or not at all, and whether it rewrites its text."""
    kind = getattr(body, "_decorator_kind", "")
    if getattr(body, "_cute_dsl_name_options", None) is not None:
        raise errors.UnnameableConstant(name, body.__qualname__, "its generated name is set by set_name_prefix")
    return (kind, bool(getattr(body, "_preprocess_enabled", True)))


def thaw_closure(
    reference: str, decorator: Any, captured: Any, annotations: Any, defaults: Field, named_defaults: Field
) -> Any:
    """Make a function from its place in its module and what it captures, and decorate it."""
    kind, is_preprocessed = decorator
    module_text, _, qualname = reference.partition(":")
    module = import_module(module_text)
    code = find_code(reference, module, qualname)
    held = {cell: CellType(thaw_value(value)) for cell, value in captured}
    made = FunctionType(
        code,
        vars(module),
        code.co_name,
        thaw_value(defaults),
        tuple(held[cell] for cell in code.co_freevars),
    )
    made.__qualname__, made.__module__ = qualname, module_text
    made.__kwdefaults__ = thaw_value(named_defaults)
    made.__annotations__ = {key: thaw_value(value) for key, value in annotations}
    if not kind:
        return made
    if kind not in DECORATORS:
        raise errors.UnnameableConstant(reference, kind, "it is no decorator of the DSL for functions")
    decorate = getattr(import_module("cutlass.cute"), kind)
    return decorate(made) if is_preprocessed else decorate(preprocess=False)(made)


def find_code(name: str, module: ModuleType, qualname: str) -> CodeType:
    """Return the code of a function inside functions, out of its module's text.

    Raises
    ------
    UnnameableConstant
        The text has no or several functions under this name.
    """
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise errors.UnnameableConstant(name, qualname, f"{module.__name__} has no text") from error
    found = codes_by_name(text, str(module.__file__)).get(qualname, [])
    if len(found) != 1:
        raise errors.UnnameableConstant(name, qualname, f"{module.__name__} has {len(found)} functions of this name")
    return found[0]


@functools.lru_cache(maxsize=64)
def codes_by_name(text: str, path: str) -> dict[str, list[CodeType]]:
    """Return the code of every function and class of a module's text, by qualified name."""
    named: dict[str, list[CodeType]] = {}
    for code in inner_codes(compile(text, path, "exec")):
        named.setdefault(code.co_qualname, []).append(code)
    return named


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions and classes inside code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_codes(constant)


def unwrap(function: Any) -> Any:
    """Return the Python function behind a method and decorators."""
    function = getattr(function, "__func__", function)
    while isinstance(function, FunctionType) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def is_numeric(kind: type) -> bool:
    """Tell whether a class is one of the DSL's scalar types; without importing the DSL."""
    return any(base.__name__ == "Numeric" and base.__module__ == NUMERIC for base in kind.__mro__)


def pairs(field: Any) -> list[tuple[Any, Any]]:
    """Return the pairs that a field holds: of a name, or a place in a signature, and what it stands for."""
    return [(name, value) for name, value in field]


THAWED: dict[str, Callable[..., Any]] = {
    LIST: lambda *items: list(map(thaw_value, items)),
    DICT: lambda *items: {thaw_value(key): thaw_value(value) for key, value in items},
    NAMED_TUPLE: thaw_named_tuple,
    NUMBER: thaw_number,
    ALIAS: lambda origin, *items: thaw_value(origin)[tuple(map(thaw_value, items))],
    INSTANCE: thaw_instance,
    CLOSURE: thaw_closure,
}
