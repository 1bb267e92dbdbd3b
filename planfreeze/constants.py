"""Constants of kernels as payload fields: what a field cannot hold by itself is spelled by a marked tuple."""

import sys
from enum import Enum
from importlib import import_module
from pathlib import PurePath
from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.payload import Field

__all__ = [
    "check_unmarked",
    "constant_modules",
    "freeze_constant",
    "module_name",
    "name_object",
    "place_object",
    "spell_constant",
    "spell_field",
    "thaw_constant",
    "unwrap_kernel",
]

FLOAT, NONE, DTYPE, CONSTEXPR, OBJECT = "\0float", "\0none", "\0dtype", "\0constexpr", "\0object"
TRITON_DTYPE = "triton.language.core"


def freeze_constant(name: str, value: object) -> Field:
    """Return a constant as a field that :func:`thaw_constant` turns back.

    Parameters
    ----------
    name : str
        What the constant is called, for the error.
    value : object
        An int, bool, str, float, None, a Triton dtype or ``constexpr``; a function, class, enumeration member, dtype or
        other object that a module has under its qualified name; or a tuple of these.

    Raises
    ------
    UnnameableConstant
        It is something else: nothing says what it would be in another process.

    Examples
    --------
    >>> thaw_constant(freeze_constant("scale", (0.5, None)))
    (0.5, None)
    """
    if type(value) in (int, bool, str):
        return value  # type: ignore[return-value]
    if type(value) is tuple:
        if value[:1] not in ((OBJECT,), (DTYPE,)):  # objects and types that are declared by their names come spelled
            check_unmarked(name, value)
        return tuple(freeze_constant(name, item) for item in value)
    if value is None:
        return (NONE,)
    if type(value) is float:
        return (FLOAT, value.hex())
    kind = type(value)
    if kind.__module__ == TRITON_DTYPE and kind.__name__ == "dtype":
        return (DTYPE, value.name)  # type: ignore[attr-defined]
    if kind.__module__ == TRITON_DTYPE and kind.__name__ == "constexpr":
        return (CONSTEXPR, freeze_constant(name, value.value))  # type: ignore[attr-defined]
    return (OBJECT, name_object(name, value))


def check_unmarked(name: str, value: tuple[object, ...]) -> None:
    """Refuse a tuple that would be taken for the spelling of something else.

    Raises
    ------
    UnnameableConstant
        It begins with a text that begins with a zero character, as marks do.
    """
    if value and isinstance(value[0], str) and value[0].startswith("\0"):
        raise errors.UnnameableConstant(name, repr(value), "it begins as the spelling of another constant does")


def thaw_constant(field: Field) -> Any:
    """Return the constant that a field stands for; imports the module of an object."""
    if not isinstance(field, tuple):
        return field
    match field:
        case (str() as mark, str() as text) if mark == FLOAT:
            return float.fromhex(text)
        case (str() as mark,) if mark == NONE:
            return None
        case (str() as mark, str() as text) if mark == DTYPE:
            return import_module(TRITON_DTYPE).dtype(text)
        case (str() as mark, inner) if mark == CONSTEXPR:
            return import_module(TRITON_DTYPE).constexpr(thaw_constant(inner))
        case (str() as mark, str() as text) if mark == OBJECT:
            return find_object(text)
    return tuple(thaw_constant(item) for item in field)


def constant_modules(field: Field) -> tuple[str, ...]:
    """Return the modules whose objects a constant names: their text is part of the program's."""
    match field:
        case (str() as mark, str() as text) if mark == OBJECT:
            return (text.partition(":")[0],)
        case tuple():
            return tuple(module for item in field for module in constant_modules(item))
    return ()


def spell_constant(field: Field) -> str:
    """Return a constant as people write it: ``0.5``, ``None``, ``fp16``, ``helpers:relu``."""
    match field:
        case (str() as mark, str() as text) if mark == FLOAT:
            return repr(float.fromhex(text))
        case (str() as mark,) if mark == NONE:
            return "None"
        case (str() as mark, str() as text) if mark in (DTYPE, OBJECT):
            return text
        case (str() as mark, inner) if mark == CONSTEXPR:
            return spell_constant(inner)
        case tuple():
            return f"({', '.join(map(spell_constant, field))}{',' * (len(field) == 1)})"
    return repr(field)


def spell_field(field: Field) -> str:
    """Return a payload's field as people read it: texts and numbers as they are, marked tuples as constants."""
    return spell_constant(field) if isinstance(field, tuple) else str(field)


def name_object(name: str, value: object) -> str:
    """Return ``module:qualname`` of an object that can be found again under it.

    Raises
    ------
    UnnameableConstant
        No module has the object under its name: a lambda, a closure, an instance.
    """
    function = getattr(value, "fn", None)  # a Triton kernel names itself by its function
    named = value if hasattr(value, "__qualname__") or function is None else function
    module: Any
    qualname: Any
    if isinstance(value, Enum):
        module, qualname = type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    else:
        module, qualname = getattr(named, "__module__", None), getattr(named, "__qualname__", None)
        if qualname is None and repr(value).startswith("torch."):  # torch names its dtypes by their repr alone
            module, qualname = "torch", repr(value).removeprefix("torch.")
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        kind = type(value).__qualname__
        raise errors.UnnameableConstant(name, repr(value), f"it is no named object of a module, but of type {kind}")
    loaded = sys.modules.get(module)
    if loaded is None or follow(loaded, qualname) is not value:
        raise errors.UnnameableConstant(name, repr(value), f"{module} has something else under the name {qualname}")
    return place_object(name, loaded, qualname)


def place_object(name: str, module: ModuleType, qualname: str) -> str:
    """Return ``module:qualname`` as another process finds it.

    Raises
    ------
    UnnameableConstant
        The module is a notebook, an interactive session or a command's text: no other process can import it.
    """
    imported = module_name(module)
    if imported == "__main__":
        raise errors.UnnameableConstant(
            name, qualname, "it was made in a notebook or session, and no file has its text"
        )
    return f"{imported}:{qualname}"


def module_name(module: ModuleType) -> str:
    """Return the name another process imports a module by; a script's is that of its file, a notebook has none."""
    if module.__name__ != "__main__":
        return module.__name__
    spec = getattr(module, "__spec__", None)
    return spec.name if spec is not None else PurePath(getattr(module, "__file__", None) or "__main__").stem


def find_object(reference: str) -> Any:
    """Import what ``module:qualname`` names.

    Raises
    ------
    UnnameableConstant
        There is no such module or name here.
    """
    module, _, qualname = reference.partition(":")
    try:
        found = follow(import_module(module), qualname)
    except ImportError as error:
        raise errors.UnnameableConstant(reference, reference, f"it cannot be imported: {error}") from error
    if found is None:
        raise errors.UnnameableConstant(reference, reference, f"{module} has no {qualname}")
    return found


def follow(found: Any, qualname: str) -> Any:
    """Return the attribute of an attribute that a qualified name spells, or None."""
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def unwrap_kernel(module: ModuleType, qualname: str) -> Any:
    """Return the Triton kernel that a module has under a name, below decorators that wrap it; None without one."""
    found = follow(module, qualname)
    while found is not None and type(found).__name__ not in ("JITFunction", "GluonJITFunction"):
        found = getattr(found, "fn", None)
    return found
