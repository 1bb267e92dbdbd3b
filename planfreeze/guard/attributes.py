"""Attributes of extension modules and extension types: no Python code is under them that could be exchanged.

The methods of an extension type stand in a dictionary that ``setattr`` refuses to change, although a lookup from
Python reads it every time. It is reached through the garbage collector's view of the type, and the interpreter is
told that the type changed, as CPython's C API asks of whoever changes ``tp_dict``. Calls that the extension makes in
C never look there and are not affected.

A name that another module bound by ``from module import function`` is a second reference to the function itself:
those among the globals of loaded modules are exchanged, too. One kept in a container, a default or an instance
keeps the original and is not seen.
"""

import ctypes
import gc
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from planfreeze.guard.attempts import Install, Release, Report

__all__ = ["exchange_bound_names", "set_attribute"]

# A function that only its module's dictionary knows: that reference, and the argument of getrefcount.
OWN_REFERENCES = 2


def set_attribute(owner: type | ModuleType, name: str, value: object) -> None:
    """Set an attribute of a module or class, also of a class that is immutable to Python."""
    try:
        setattr(owner, name, value)
    except TypeError:
        attributes: dict[str, Any] = gc.get_referents(owner.__dict__)[0]
        attributes[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def exchange_bound_names(install: Install, names: Iterable[str]) -> Install:
    """Return an ``install`` that gates functions of an extension module under their names in other modules, too.

    Parameters
    ----------
    install : callable
        Exchanges attributes of a module.
    names : iterable of str
        The functions among them; one that a module does not have is passed over.
    """

    def install_everywhere(module: ModuleType, report: Report) -> Release:
        shared = [
            name for name in names if name in vars(module) and sys.getrefcount(vars(module)[name]) > OWN_REFERENCES
        ]
        originals = {id(vars(module)[name]): (name, vars(module)[name]) for name in shared}
        places = find_globals(originals.keys(), apart_from=module) if originals else []
        release = install(module, report)
        exchanged = []
        for bindings, key in places:
            name, original = originals[id(bindings[key])]
            bindings[key] = vars(module)[name]
            exchanged.append((bindings, key, original, bindings[key]))

        def release_everywhere() -> None:
            for bindings, key, original, entry in exchanged:
                if bindings.get(key) is entry:
                    bindings[key] = original
            release()

        return release_everywhere

    return install_everywhere


def find_globals(identities: Iterable[int], apart_from: ModuleType) -> list[tuple[dict[str, Any], str]]:
    """Find the globals of loaded modules that are bound to one of the objects."""
    wanted = frozenset(identities)
    spaces = {id(vars(module)): vars(module) for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
    spaces.pop(id(vars(apart_from)), None)
    return [(space, key) for space in spaces.values() for key, value in list(space.items()) if id(value) in wanted]
