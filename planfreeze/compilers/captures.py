"""What a kernel reaches beyond its parameters, held against the text that its key covers.

Everything that a kernel's functions name is followed: functions and classes have to be those that a keyed module
defines, or a compiler's; values have to be what the text says. Names that are looked up dynamically are not seen.
"""

import ast
import builtins
import dataclasses
import enum
import functools
import inspect
import textwrap
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NoReturn

from planfreeze.compilers.assignments import KeyedText, Reference, is_pure, is_trusted, unwrap_constexpr
from planfreeze.compilers.bindings import Unfollowable
from planfreeze.compilers.names import Use, uses_of
from planfreeze.errors import UnkeyedCapture

__all__ = ["check_captures"]

IMPURE_BUILTINS = {"open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "id", "hash", "__import__"}
# Attributes that the standard library adds to classes: named tuples, abstract classes, protocols.
MADE_BY_LIBRARY = {"_fields", "_field_defaults", "_abc_impl", "_is_protocol", "_is_runtime_protocol"}
MISSING = object()
PLAIN = (bool, int, float, str, bytes, type(None))


def check_captures(kernel: str, roots: Iterable[Any], text: KeyedText) -> None:
    """Check all that functions and classes reach.

    Parameters
    ----------
    kernel : str
        The kernel, for messages.
    roots : iterable
        Its function or class, and the functions among its constants.

    Raises
    ------
    UnkeyedCapture
        Names the first thing whose value or text the key does not hold.
    """
    walk = Walk(kernel, text)
    for root in roots:
        walk.visit(root, getattr(root, "__name__", str(root)))


class Walk:
    """One walk over what a kernel reaches."""

    def __init__(self, kernel: str, text: KeyedText) -> None:
        self.kernel = kernel
        self.text = text
        self._seen: set[int] = set()
        self._kept: list[Any] = []

    def visit(self, value: Any, name: str) -> None:
        """Follow a function or class; other values are compared where they are used."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._kept.append(value)  # an id is a value's own only while it lives
        function = function_below(value)
        if function is not None:
            self._visit_function(function, value, name)
        elif isinstance(value, type):
            self._visit_class(value, name)

    def _visit_function(self, function: FunctionType, value: Any, name: str) -> None:
        module = home_of(function)
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self.visit(wrapped, name)
        if not self._is_followed(module, name, "function"):
            return
        node = self._find_text(function, name)
        compiled_text = getattr(value, "_src", None)  # what Triton compiles in place of the file's text
        if compiled_text is not None and not is_same_code(compiled_text, node):
            self._refuse(name, f"its text was replaced after {module} was loaded")
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        for variable, cell in free.items():
            if variable != "__class__" and cell.cell_contents is not wrapped:
                self._refuse(f"{variable} in {name}", "a closure captured it, and what a factory was given has no name")
        for use in uses_of(node):
            self._visit_use(function, use)

    def _visit_class(self, found: type, name: str) -> None:
        for base in found.__mro__:
            if not self._is_followed(base.__module__, name, "class"):
                continue
            if "<" in base.__qualname__:
                self._refuse(name, f"class {base.__qualname__} is made by a function, which has no name to key it by")
            for attribute, value in vars(base).items():
                if attribute.startswith("__") and not inspect.isfunction(value):
                    continue
                label = f"{base.__name__}.{attribute}"
                if function_below(value) is None and not isinstance(value, type):
                    self._compare_attribute(base, attribute, value, label)
                elif not is_generated(base, value):
                    self.visit(value, label)

    def _compare_attribute(self, base: type, attribute: str, value: Any, label: str) -> None:
        is_slot = isinstance(value, (MemberDescriptorType, GetSetDescriptorType))
        if is_slot or attribute in MADE_BY_LIBRARY or attribute in getattr(base, "_fields", ()):
            return
        if issubclass(base, enum.Enum) and attribute.startswith("_"):
            return
        stated = value.value if isinstance(value, enum.Enum) else value
        try:
            expected = self.text.attribute(base.__module__, base.__qualname__, attribute)
        except Unfollowable as error:
            self._refuse(label, str(error))
        self._compare(label, stated, expected)

    def _visit_use(self, function: FunctionType, use: Use) -> None:
        root, *attributes = use.names
        module = home_of(function)
        if root not in function.__globals__:
            if root in IMPURE_BUILTINS and hasattr(builtins, root):
                self._refuse(root, "it gives something else in every process")
            return  # a builtin, or a name that is never reached
        owner, name, value = module, root, function.__globals__[root]
        if not isinstance(value, ModuleType):
            self._check_value(owner, name, value, use)
            return
        while isinstance(value, ModuleType) and attributes:
            owner, name = value.__name__, attributes.pop(0)
            value = getattr(value, name, MISSING)
        if not isinstance(value, ModuleType) and value is not MISSING:
            self._check_value(owner, name, value, use)

    def _check_value(self, owner: str, name: str, value: Any, use: Use) -> None:
        label = ".".join(use.names)
        if is_trusted(owner) or (use.is_annotation and isinstance(value, type)):
            return
        if owner not in self.text.digests:
            if is_pure(owner):
                return
            self._refuse(label, f"it comes from {owner}, which is not in the key")
        try:
            expected = self.text.value(owner, name)
        except Unfollowable as error:
            self._refuse(label, str(error))
        self._compare(label, value, expected)
        self.visit(value, label)

    def _compare(self, label: str, value: Any, expected: Any) -> None:
        if isinstance(expected, Reference):
            function = function_below(value)
            defined = function if function is not None else value
            found = (getattr(defined, "__module__", None), getattr(defined, "__qualname__", None))
            if found != (expected.module, expected.name):
                self._refuse(label, f"it is {value!r}, and by the text {expected.module}.{expected.name}")
        elif expected is not value and not is_same(unwrap_constexpr(value), unwrap_constexpr(expected)):
            self._refuse(label, f"it is {value!r}, and by the text {expected!r}: something changed it")

    def _is_followed(self, module: str, name: str, kind: str) -> bool:
        """Tell whether a function or class is in the keyed text; refuse what is neither there nor a compiler's."""
        if module in self.text.digests:
            return True
        if is_trusted(module) or is_pure(module) or module == "builtins":
            return False
        self._refuse(name, f"the {kind} is in {module}, which is not in the key; name it in the family's sources")

    def _find_text(self, function: FunctionType, name: str) -> ast.FunctionDef:
        code = getattr(function, "_original_code", function.__code__)  # CuTe rewrites the code of its functions
        module = home_of(function)
        for node in ast.walk(self.text.tree(module)):
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
                first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
                if first == code.co_firstlineno and self.text.has_code(module, code):
                    return node
        self._refuse(name, f"its text is not in {module}: it was made by exec, or by a decorator")

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise UnkeyedCapture(self.kernel, name, reason)


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


def is_same(value: Any, expected: Any) -> bool:
    """Tell whether two plain values are one: ``True`` is not 1, 0.0 is not -0.0, and a NaN is itself."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, (tuple, list)):
        return len(value) == len(expected) and all(map(is_same, value, expected))
    if isinstance(value, dict):
        return is_same(list(value.items()), list(expected.items()))
    if isinstance(value, float):
        return float.hex(value) == float.hex(expected)
    if isinstance(value, (*PLAIN, type, BuiltinFunctionType, range)):
        return bool(value == expected)
    return type(value).__name__ == "dtype" and str(value) == str(expected)


def is_same_code(text: str, node: ast.FunctionDef) -> bool:
    """Tell whether a function's text is a definition's, decorators aside."""
    (found,) = ast.parse(textwrap.dedent(text)).body
    bodies = ([ast.dump(part) for part in (definition.args, *definition.body)] for definition in (found, node))  # type: ignore[attr-defined]
    first, second = bodies
    return first == second


def home_of(function: FunctionType) -> str:
    """Return the module whose names a function uses; a wrapper's ``__module__`` is that of what it wraps."""
    return str(function.__globals__.get("__name__", function.__module__))


def is_generated(base: type, method: Any) -> bool:
    """Tell whether the standard library wrote a method of a dataclass or named tuple: it follows from the text."""
    function = inspect.unwrap(method) if callable(method) else None
    if not isinstance(function, FunctionType) or not function.__name__.startswith("__"):
        return False
    if dataclasses.is_dataclass(base) and function.__code__.co_filename == "<string>":
        return True
    return issubclass(base, tuple) and home_of(function) == f"namedtuple_{base.__name__}"
