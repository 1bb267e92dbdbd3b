"""Which statement of a module binds each of its names, where one alone does, unconditionally."""

import ast
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from planfreeze.module_files import package_of
from planfreeze.sources import imported_from

__all__ = ["Imported", "Scope", "Unfollowable", "bind", "bind_module"]

Scope = dict[str, Any]
"""Names with the expression, definition, import or :class:`Unfollowable` that binds them."""


class Unfollowable(Exception):
    """Why the text alone does not say what a name is."""


class Imported(Struct, frozen=True):
    """A name that an import statement binds."""

    module: str
    name: str | None


Evaluate = Callable[[ast.expr], Any]


def bind_module(module: str, tree: ast.Module, scope: Scope, evaluate: Evaluate) -> None:
    """Fill ``scope`` with the names that a module binds; those that its functions assign are unfollowable."""
    bind(module, tree.body, scope, evaluate)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            scope.update((name, Unfollowable(f"a function of {module} assigns {name}")) for name in node.names)


def bind(module: str, body: Iterable[ast.stmt], scope: Scope, evaluate: Evaluate) -> None:
    """Fill ``scope`` with the names that statements bind; ``evaluate`` decides conditions."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                put(scope, node.name, node)
            case ast.Assign():
                for target in node.targets:
                    bind_target(scope, target, node.value)
            case ast.AnnAssign() if node.value is not None:
                bind_target(scope, node.target, node.value)
            case ast.Import() | ast.ImportFrom():
                bind_import(module, node, scope)
            case ast.If():
                bind_branch(module, node, scope, evaluate)
            case ast.Expr() | ast.Pass() | ast.AnnAssign() | ast.Assert():
                pass
            case _:
                close(scope, [node], f"it is bound in a {type(node).__name__.lower()} statement")


def bind_import(module: str, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            put(scope, alias.asname or name, Imported(name, None))
        return
    base = imported_from(package_of(module), node)
    for alias in node.names:
        if alias.name == "*":
            scope["*"] = (*scope.get("*", ()), base)
        else:
            put(scope, alias.asname or alias.name, Imported(base, alias.name))


def bind_branch(module: str, node: ast.If, scope: Scope, evaluate: Evaluate) -> None:
    try:
        is_taken = evaluate(node.test)
    except Unfollowable as error:
        close(scope, [*node.body, *node.orelse], f"it is bound under the condition {ast.unparse(node.test)}: {error}")
        return
    bind(module, node.body if is_taken else node.orelse, scope, evaluate)


def bind_target(scope: Scope, target: ast.expr, value: ast.expr) -> None:
    match target, value:
        case ast.Name(), _:
            put(scope, target.id, value)
        case ast.Tuple(), ast.Tuple() if len(target.elts) == len(value.elts):
            for inner, part in zip(target.elts, value.elts, strict=True):
                bind_target(scope, inner, part)
        case _:
            close(scope, [target], f"it is bound by unpacking {ast.unparse(value)}")


def put(scope: Scope, name: str, bound: Any) -> None:
    """Bind a name; a name that is bound twice is what no single statement says."""
    scope[name] = Unfollowable(f"{name} is bound more than once") if name in scope else bound


def close(scope: Scope, nodes: Iterable[ast.AST], reason: str) -> None:
    """Make every name that is bound below ``nodes`` unfollowable."""
    for root in nodes:
        for node in ast.walk(root):
            match node:
                case ast.Name(ctx=ast.Store() | ast.Del()):
                    names = [node.id]
                case ast.FunctionDef() | ast.ClassDef():
                    names = [node.name]
                case ast.alias():
                    names = [node.asname or node.name.partition(".")[0]]
                case _:
                    continue
            scope.update(dict.fromkeys(names, Unfollowable(reason)))
