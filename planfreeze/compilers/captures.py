"""What a kernel reaches beyond its parameters, held against the text that its key covers.

Everything that a kernel's functions name is followed: functions and classes have to be those that a keyed module
defines, or a compiler's; values have to be what the text says. Names that are looked up dynamically are not seen.
"""

import ast
import builtins
import copy
import enum
import inspect
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NoReturn

from msgspec import Struct

from planfreeze import errors
from planfreeze.compilers.assignments import KeyedText, Reference, is_pure, is_trusted, unwrap_constexpr
from planfreeze.compilers.bindings import Unfollowable
from planfreeze.compilers.functions import (
    default_expressions,
    default_values,
    function_below,
    home_of,
    imported_name,
    is_generated,
    is_same_code,
    original_code,
)
from planfreeze.compilers.names import Use, uses_of

__all__ = ["Captured", "check_captures"]

IMPURE_BUILTINS = {"open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "id", "hash", "__import__"}
# Attributes that the standard library adds to classes: named tuples, abstract classes, protocols.
MADE_BY_LIBRARY = {"_fields", "_field_defaults", "_abc_impl", "_is_protocol", "_is_runtime_protocol"}
MISSING = object()
PLAIN = (bool, int, float, str, bytes, type(None))


class Captured(Struct, frozen=True):
    """A name that a kernel reaches, with the value that was held against the text."""

    namespace: Mapping[str, Any]
    name: str
    value: Any
    content: Any

    def is_unchanged(self) -> bool:
        """Tell whether the name still has the value, and a list or dictionary its content."""
        found = self.namespace.get(self.name, MISSING)
        return found is self.value and (self.content is None or is_same(found, self.content))


def check_captures(
    kernel: str, roots: Iterable[Any], text: KeyedText, *, are_cells_keyed: bool = False
) -> tuple[Captured, ...]:
    """Check all that functions and classes reach, and return the names that they reach it by.

    Parameters
    ----------
    kernel : str
        The kernel, for messages.
    roots : iterable
        Its function or class, and the functions among its constants.
    are_cells_keyed : bool
        Whether the key holds what the roots captured as closures, and what functions among that captured.

    Raises
    ------
    UnkeyedCapture
        Names the first thing whose value or text the key does not hold.
    """
    walk = Walk(kernel, text)
    for root in roots:
        if are_cells_keyed:
            walk.key_cells(root)
        walk.visit(root, getattr(root, "__name__", str(root)))
    return tuple(walk.captured)


class Walk:
    """One walk over what a kernel reaches."""

    def __init__(self, kernel: str, text: KeyedText) -> None:
        self.kernel = kernel
        self.text = text
        self.captured: list[Captured] = []
        self._with_keyed_cells: set[int] = set()
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

    def key_cells(self, value: Any) -> None:
        """Note that the key holds what a function captured."""
        function = function_below(value)
        while function is not None:
            self._with_keyed_cells.add(id(function))
            function = function_below(function.__dict__.get("__wrapped__"))

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
            if variable == "__class__" or cell.cell_contents is wrapped:
                continue
            if id(function) not in self._with_keyed_cells:
                self._refuse(f"{variable} in {name}", "a closure captured it, and what a factory was given has no name")
            self.key_cells(cell.cell_contents)
            if function_below(cell.cell_contents) is not None:
                self.visit(cell.cell_contents, f"{variable} in {name}")
        self._compare_defaults(function, node)
        for use in uses_of(node):
            self._visit_use(function, use)

    def _compare_defaults(self, function: FunctionType, node: ast.FunctionDef) -> None:
        """Hold the defaults that a function has now against those of its text, where that says what they are."""
        stated = default_expressions(node)
        taken = default_values(function)
        for name in dict.fromkeys((*stated, *taken)):
            label = f"{name} in {function.__name__}"
            if name not in stated or name not in taken:
                self._refuse(label, "its default was set or removed since the function was defined")
            try:
                expected = self.text.default(home_of(function), function.__qualname__, stated[name])
            except Unfollowable:
                continue  # what its expression uses is followed like all that the function uses
            self._compare(label, taken[name], expected)

    def _visit_class(self, found: type, name: str) -> None:
        for base in found.__mro__:
            if base in Struct.__mro__ or not self._is_followed(imported_name(base.__module__), name, "class"):
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
                self._note(vars(base), attribute, value)

    def _compare_attribute(self, base: type, attribute: str, value: Any, label: str) -> None:
        is_slot = isinstance(value, (MemberDescriptorType, GetSetDescriptorType))
        if is_slot or attribute in MADE_BY_LIBRARY or attribute in getattr(base, "_fields", ()):
            return
        if issubclass(base, enum.Enum) and attribute.startswith("_"):
            return
        stated = value.value if isinstance(value, enum.Enum) else value
        try:
            expected = self.text.attribute(imported_name(base.__module__), base.__qualname__, attribute)
        except Unfollowable as error:
            self._refuse(label, str(error))
        self._compare(label, stated, expected)

    def _visit_use(self, function: FunctionType, use: Use) -> None:
        root, *attributes = use.names
        module = home_of(function)
        if root in original_code(function).co_freevars:
            return  # captured
        if root not in function.__globals__:
            if root in IMPURE_BUILTINS and hasattr(builtins, root):
                self._refuse(root, "it gives something else in every process")
            return  # a builtin, or a name that is never reached
        owner, name, value = module, root, function.__globals__[root]
        steps: list[tuple[Mapping[str, Any], str, Any]] = [(function.__globals__, name, value)]
        while isinstance(value, ModuleType) and attributes:
            namespace = vars(value)
            owner, name = imported_name(value.__name__), attributes.pop(0)
            value = getattr(value, name, MISSING)
            steps.append((namespace, name, value))
        if not isinstance(value, ModuleType) and value is not MISSING:
            self._check_value(owner, name, value, use)
            if attributes and owner in self.text.digests and function_below(value) is not None:
                self._check_attribute(getattr(value, attributes[0], MISSING), ".".join(use.names))
        if not is_trusted(owner):
            for step in steps:
                self._note(*step)

    def _note(self, namespace: Mapping[str, Any], name: str, value: Any) -> None:
        is_mutable = isinstance(value, (list, dict)) and is_same(value, value)
        content = copy.deepcopy(value) if is_mutable else None
        self.captured.append(Captured(namespace, name, value, content))

    def _check_attribute(self, value: Any, label: str) -> None:
        """Follow what a function has as an attribute: a method of its compiler's, or something that was put there."""
        if value is not MISSING and not callable(value):
            self._refuse(label, f"it is {value!r}, an attribute of a function, and no text says what those are")
        self.visit(value, label)

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
            found = (imported_name(getattr(defined, "__module__", "")), getattr(defined, "__qualname__", None))
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
        code = original_code(function)
        module = home_of(function)
        for node in ast.walk(self.text.tree(module)):
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
                first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
                if first == code.co_firstlineno and self.text.has_code(module, code):
                    return node
        self._refuse(name, f"its text is not in {module}: it was made by exec, or by a decorator")

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise errors.UnkeyedCapture(self.kernel, name, reason)


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
