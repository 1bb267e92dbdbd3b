"""What the text of keyed modules says that their names are; runs none of it."""

import ast
import builtins
import functools
import hashlib
import math
import operator
from collections.abc import Callable, Mapping
from importlib import import_module
from types import CodeType
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.compilers.bindings import Imported, Scope, Unfollowable, bind, bind_module
from planfreeze.module_files import find_source
from planfreeze.recorded.values import inner_codes
from planfreeze.sources import KERNELS_SCOPE, Sources, is_within

__all__ = ["KeyedText", "Reference", "is_pure", "is_trusted", "keyed_text", "unwrap_constexpr"]

TRUSTED = ("triton", "cutlass", "planfreeze")
"""Packages whose content the key's toolchain covers, and planfreeze itself, which makes no code."""
# Modules of the standard library that give the same in every process, and read no file, clock or setting.
PURE = frozenset(
    {"abc", "array", "ast", "base64", "binascii", "bisect", "cmath", "collections", "colorsys", "contextlib", "copy"}
    | {"dataclasses", "decimal", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq", "itertools", "json"}
    | {"keyword", "math", "numbers", "operator", "re", "reprlib", "statistics", "string", "struct", "textwrap", "token"}
    | {"types", "typing", "unicodedata", "warnings", "zlib"}
)
PURE_CALLS = frozenset({abs, bool, divmod, float, frozenset, int, len, max, min, pow, range, round, str, sum, tuple})
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow},
    **{ast.LShift: operator.lshift, ast.RShift: operator.rshift},
    **{ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor},
    **{ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b},
}


class Reference(Struct, frozen=True):
    """A function or class by the module and the name it is defined with; a module by itself."""

    module: str
    name: str | None = None


class KeyedText:
    """The modules of a program's key, as text."""

    def __init__(self, sources: Sources) -> None:
        self.digests = dict(sources.modules)
        self._trees: dict[str, ast.Module] = {}
        self._codes: dict[str, frozenset[CodeType]] = {}
        self._scopes: dict[str, Scope] = {}
        self._values: dict[tuple[str, str], Any] = {}

    def tree(self, module: str) -> ast.Module:
        """Return the parsed text of a module, after checking that it is the text that was keyed."""
        if module not in self._trees:
            self._trees[module] = self._parse(module)
        return self._trees[module]

    def has_code(self, module: str, code: CodeType) -> bool:
        """Tell whether a function's code is what the text of a module compiles to, wherever it was compiled."""
        if module not in self._codes:
            whole = compile(self.tree(module), module, "exec", dont_inherit=True)
            self._codes[module] = frozenset(inner_codes(whole))
        return code in self._codes[module]

    def _parse(self, module: str) -> ast.Module:
        path = find_source(module)
        data = b"" if path is None else path.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.digests[module]:
            raise errors.SourceChanged(module, str(path))
        return ast.parse(data)

    def value(self, module: str, name: str) -> Any:
        """Return what a top-level name of a module is: a plain value, a :class:`Reference`, or a compiler's object.

        Raises
        ------
        Unfollowable
            Its text does not say.
        """
        key = (module, name)
        if key not in self._values:
            self._values[key] = Unfollowable(f"{name} of {module} is assigned from itself")
            try:
                self._values[key] = self._find(module, name)
            except Unfollowable as error:
                self._values[key] = error
        found = self._values[key]
        if isinstance(found, Unfollowable):
            raise found
        return found

    def attribute(self, module: str, class_name: str, name: str) -> Any:
        """Return what an attribute that a class assigns in its body is.

        Raises
        ------
        Unfollowable
            The class, or its text, does not say.
        """
        scope = self._class_scope(module, class_name)
        return self._resolve(module, name, scope.get(name), scope)

    def default(self, module: str, qualname: str, expression: ast.expr) -> Any:
        """Return what the default of a parameter is, of a function of a module or of a class of its top level.

        Raises
        ------
        Unfollowable
            The text does not say, or the function is inside another one.
        """
        owner = qualname.rpartition(".")[0]
        if not owner:
            return self._evaluate(module, expression)
        return self._evaluate(module, expression, self._class_scope(module, owner))

    def _class_scope(self, module: str, class_name: str) -> Scope:
        found = self._scope(module).get(class_name)
        if not isinstance(found, ast.ClassDef):
            raise Unfollowable(f"{class_name} of {module} is no class that is defined once, at the top level")
        scope: Scope = {}
        bind(module, found.body, scope, lambda test: self._evaluate(module, test))
        return scope

    def _scope(self, module: str) -> Scope:
        if module not in self._scopes:
            scope = self._scopes[module] = {}  # conditions are evaluated in what is bound before them
            bind_module(module, self.tree(module), scope, lambda test: self._evaluate(module, test))
        return self._scopes[module]

    def _find(self, module: str, name: str) -> Any:
        scope = self._scope(module)
        if name in scope:
            return self._resolve(module, name, scope[name])
        for starred in scope.get("*", ()):
            if starred in self.digests and name in self._scope(starred):
                return self.value(starred, name)
        raise Unfollowable(f"no statement at the top level of {module} assigns {name}")

    def _resolve(self, module: str, name: str, bound: Any, scope: Scope | None = None) -> Any:
        """Return what a binding gives; the names of ``scope``, that of a class body, are nearer than the module's."""
        if isinstance(bound, Unfollowable):
            raise bound
        if isinstance(bound, (ast.FunctionDef, ast.ClassDef)):
            return Reference(module, name)
        if isinstance(bound, Imported):
            return self._import(bound)
        if bound is None:
            raise Unfollowable(f"{module} does not assign {name} in its text")
        inner = {other: value for other, value in (scope or {}).items() if other != name}
        return self._evaluate(module, bound, inner)

    def _import(self, bound: Imported) -> Any:
        if bound.name is None:
            return Reference(bound.module)
        inner = f"{bound.module}.{bound.name}"
        if bound.module in self.digests and (bound.name in self._scope(bound.module) or inner not in self.digests):
            return self.value(bound.module, bound.name)
        if inner in self.digests:
            return Reference(inner)
        return self._outside(bound.module, bound.name)

    def _outside(self, module: str, name: str) -> Any:
        if not is_trusted(module) and not is_pure(module):
            raise Unfollowable(f"{name} comes from {module}, which is not in the key")
        loaded = import_module(module)
        return getattr(loaded, name) if hasattr(loaded, name) else Reference(f"{module}.{name}")

    def _evaluate(self, module: str, node: ast.expr, scope: Scope | None = None) -> Any:
        visit = functools.partial(self._evaluate, module, scope=scope)
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() if scope and node.id in scope:
                return self._resolve(module, node.id, scope[node.id], scope)
            case ast.Name():
                is_builtin = hasattr(builtins, node.id) and node.id not in self._scope(module)
                return getattr(builtins, node.id) if is_builtin else self.value(module, node.id)
            case ast.Attribute():
                return self._evaluate_attribute(visit(node.value), node.attr)
            case ast.Tuple():
                return tuple(map(visit, node.elts))
            case ast.List():
                return list(map(visit, node.elts))
            case ast.Dict() if None not in node.keys:
                return {visit(key): visit(value) for key, value in zip(node.keys, node.values, strict=True) if key}
            case ast.UnaryOp() | ast.BinOp() | ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.Subscript():
                return operate(node, visit)
            case ast.Call() if not any(isinstance(found, ast.Starred) for found in node.args) and not node.keywords:
                return self._call(visit(node.func), list(map(visit, node.args)), node)
        raise Unfollowable(f"it is assigned from {ast.unparse(node)}")

    def _evaluate_attribute(self, base: Any, name: str) -> Any:
        if not isinstance(base, Reference):
            raise Unfollowable(f"it is assigned from the attribute {name} of a value")
        if base.name is not None:
            return self.attribute(base.module, base.name, name)
        if base.module in self.digests:
            inner = f"{base.module}.{name}"
            return self.value(base.module, name) if inner not in self.digests else Reference(inner)
        return self._outside(base.module, name)

    def _call(self, function: Any, arguments: list[Any], node: ast.Call) -> Any:
        is_constexpr = getattr(function, "__name__", "") == "constexpr" and is_trusted(function.__module__)
        try:
            is_plain = function in PURE_CALLS or getattr(math, getattr(function, "__name__", ""), None) is function
        except TypeError:  # not hashable
            is_plain = False
        if not is_constexpr and not is_plain:
            raise Unfollowable(f"it is assigned from a call: {ast.unparse(node)}")
        return attempt(function, *arguments)


@functools.lru_cache(maxsize=4)
def keyed_text(sources: Sources) -> KeyedText:
    """Return the text of modules, parsed once for all variants that are compiled from it one after another."""
    return KeyedText(sources)


def operate(node: ast.expr, visit: Callable[[ast.expr], Any]) -> Any:
    """Evaluate an operation on plain values."""

    def plain(inner: ast.expr) -> Any:
        return unwrap_constexpr(visit(inner))

    match node:
        case ast.UnaryOp():
            return attempt(OPERATORS[type(node.op)], plain(node.operand))
        case ast.BinOp() if type(node.op) in OPERATORS:
            return attempt(OPERATORS[type(node.op)], plain(node.left), plain(node.right))
        case ast.Compare():
            values = [plain(node.left), *map(plain, node.comparators)]
            pairs = zip(node.ops, values, values[1:], strict=False)
            return all(attempt(OPERATORS[type(op)], left, right) for op, left, right in pairs)
        case ast.BoolOp():
            *values, last = map(plain, node.values)
            is_and = isinstance(node.op, ast.And)
            return next((value for value in values if bool(value) != is_and), last)
        case ast.IfExp():
            return visit(node.body) if plain(node.test) else visit(node.orelse)
        case ast.Subscript():
            return attempt(operator.getitem, plain(node.value), plain(node.slice))
    raise Unfollowable(f"it is assigned from {ast.unparse(node)}")


def attempt(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a pure function to values that the text stated."""
    try:
        return function(*values)
    except Exception as error:
        raise Unfollowable(f"its text cannot be computed: {error!r}") from error


def unwrap_constexpr(value: Any) -> Any:
    """Return the plain value of a Triton ``constexpr``."""
    is_constexpr = type(value).__name__ == "constexpr" and is_trusted(type(value).__module__)
    return unwrap_constexpr(value.value) if is_constexpr else value


def is_trusted(module: str) -> bool:
    """Tell whether a module belongs to a compiler, whose content the key covers, or to what makes no code."""
    return module.partition(".")[0] in TRUSTED and not is_within(module, KERNELS_SCOPE)


def is_pure(module: str) -> bool:
    """Tell whether a module is one of the standard library that gives the same values in every process."""
    return module.partition(".")[0] in PURE
