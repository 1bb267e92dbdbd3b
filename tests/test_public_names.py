"""The house: what is public, what is documented, and how it is called."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import pytest

from planfreeze import errors

from .modules import FRAMEWORK, is_kernel, parse, read_modules


def test_public_names_are_loaded_at_their_first_use(interpreter):
    interpreter.run(
        """
        import sys, planfreeze
        assert dir(planfreeze) == sorted(planfreeze.__all__)
        assert not [name for name in sys.modules if name.startswith("planfreeze.")]
        for name in planfreeze.__all__:
            assert getattr(planfreeze, name) is not None
        try:
            planfreeze.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise AssertionError
        """
    )


def test_every_error_is_found_where_it_is_and_no_other_is_loaded_for_it(interpreter):
    listed = {
        found.name: import_module(f"planfreeze.errors.{found.name}").__all__ for found in iter_modules(errors.__path__)
    }
    assert {module: names.split() for module, names in errors.NAMES.items()} == listed
    assert all(getattr(errors, name).__name__ == name for name in errors.__all__)
    assert {*errors.__all__} <= {*dir(errors)}
    with pytest.raises(AttributeError, match="nothing"):
        errors.nothing  # noqa: B018
    interpreter.run(
        """
        import sys
        from planfreeze.errors import InvalidScales
        loaded = {name for name in sys.modules if name.startswith("planfreeze.errors.")}
        assert loaded == {"planfreeze.errors.base", "planfreeze.errors.tensors"}
        """
    )


def public_definitions(name: str) -> Iterator[tuple[str, ast.AST]]:
    """Every public function, class and method of a module: those in __all__, and what they hold without underscore.

    A kernel is documented as a whole, by its class.
    """
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name: node for node in parse(name).body if isinstance(node, kinds)}
    for public in defined.keys() & set(public_names(name)):
        yield public, defined[public]
        if isinstance(defined[public], ast.ClassDef) and not is_kernel(name):
            for node in defined[public].body:
                if isinstance(node, kinds) and not node.name.startswith("_"):
                    yield f"{public}.{node.name}", node


def public_names(name: str) -> list[str]:
    """The names of a module's __all__; ``*part.__all__`` stands for those of a part, ``*TABLE`` for a table."""
    names = []
    for node in parse(name).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            for item in node.value.elts:
                if isinstance(item, ast.Starred) and isinstance(item.value, ast.Name):
                    names += getattr(import_module(name), item.value.id)
                elif isinstance(item, ast.Starred):
                    names += public_names(f"{name}.{ast.unparse(item.value).removesuffix('.__all__')}")
                else:
                    names.append(ast.literal_eval(item))
    return names


def test_every_module_is_documented():
    assert [name for name in read_modules() if parse(name).body and not ast.get_docstring(parse(name))] == []


def test_all_that_is_public_is_documented():
    undocumented = [
        f"{name}.{public}"
        for name in read_modules()
        for public, node in public_definitions(name)
        if not ast.get_docstring(node)
    ]
    assert undocumented == []


def test_every_module_of_the_framework_says_what_is_public():
    run = ("__main__", "sitecustomize")
    without = [name for name in FRAMEWORK if not name.endswith(run) and not public_names(name)]
    assert [name for name in without if not name.startswith("planfreeze.errors.")] == []


def test_no_function_has_the_name_of_a_module_beside_it():
    for name in read_modules():
        siblings = {other.rpartition(".")[2] for other in read_modules() if other.rpartition(".")[0] == name}
        assert not siblings & set(public_names(name)), f"{name}: a name is a module and something else"
