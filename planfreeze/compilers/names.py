"""Which names from outside a function uses, from its text."""

import ast
from collections.abc import Iterator

from msgspec import Struct

__all__ = ["Use", "uses_of"]

Scoped = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)


class Use(Struct, frozen=True):
    """A name that a function does not bind, with the attributes that are read from it in a row."""

    names: tuple[str, ...]
    is_annotation: bool


def uses_of(node: ast.FunctionDef) -> Iterator[Use]:
    """Yield what a function uses from outside; its decorators are not its own."""
    for part in (*arguments_of(node.args), *filter(None, [node.returns])):
        is_default = part in (*node.args.defaults, *node.args.kw_defaults)
        yield from find_uses(part, frozenset(), is_annotation=not is_default)
    bound = bound_names(node)
    for statement in node.body:
        yield from find_uses(statement, bound)


def arguments_of(arguments: ast.arguments) -> Iterator[ast.expr]:
    """Yield defaults and annotations, which are evaluated outside the function."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (found.annotation for found in every if found is not None and found.annotation is not None)
    yield from (default for default in (*arguments.defaults, *arguments.kw_defaults) if default is not None)


def find_uses(node: ast.AST, bound: frozenset[str], *, is_annotation: bool = False) -> Iterator[Use]:
    """Yield the uses below a node, where the names in ``bound`` are the function's own."""
    chain = chain_of(node)
    if chain is not None:
        if chain[0] not in bound:
            yield Use(chain, is_annotation)
        return
    if isinstance(node, ast.AnnAssign):
        yield from find_uses(node.annotation, bound, is_annotation=True)
        parts: list[ast.AST] = [part for part in (node.target, node.value) if part is not None]
    else:
        parts = list(ast.iter_child_nodes(node))
    inner = bound | bound_names(node) if isinstance(node, Scoped) else bound
    for part in parts:
        yield from find_uses(part, inner, is_annotation=is_annotation)


def chain_of(node: ast.AST) -> tuple[str, ...] | None:
    """Return ``("a", "b", "c")`` of ``a.b.c``; None of anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = chain_of(node.value)
        return None if inner is None else (*inner, node.attr)
    return None


def bound_names(scope: ast.AST) -> frozenset[str]:
    """Return the names that a function, lambda or comprehension binds itself."""
    found: set[str] = set()
    waiting = list(ast.iter_child_nodes(scope))
    shared: set[str] = set()
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case ast.arg():
                found.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add(node.asname or node.name.partition(".")[0])
            case ast.Global():
                shared.update(node.names)
        waiting += ast.iter_child_nodes(node)
    return frozenset(found - shared)
