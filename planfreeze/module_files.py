"""Where the text of modules is, without importing them or the packages above them."""

import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from planfreeze import errors

__all__ = ["Specs", "find_source", "is_beside", "package_of"]

Specs: TypeAlias = dict[str, importlib.machinery.ModuleSpec | None]

# Where installers put packages of all kinds.
INSTALLED_FOLDERS = ("site-packages", "dist-packages")
NEVER_BESIDE = ("planfreeze", "triton", "cutlass", "torch", "cuda")


def is_beside(name: str, other: str) -> bool:
    """Tell whether a module lies in the same folder of the search path as another, and that folder is somebody's own.

    Installed packages and the standard library have their folders to themselves; each is a scope of its own.
    """
    top, other_top = name.partition(".")[0], other.partition(".")[0]
    if top in NEVER_BESIDE or other_top in NEVER_BESIDE or top in sys.stdlib_module_names:
        return False
    folder = folder_of(top)
    return folder is not None and folder == folder_of(other_top) and folder.name not in INSTALLED_FOLDERS


def folder_of(top: str) -> Path | None:
    """Return the folder of the search path that a top-level module, package or namespace is found in."""
    spec = find_top(top)
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        return next((Path(location).parent for location in spec.submodule_search_locations), None)
    return Path(spec.origin).parent if spec.origin is not None and spec.has_location else None


def package_of(name: str) -> str:
    """Return the package that relative imports of a module start from."""
    path = find_source(name)
    return name if path is not None and path.name == "__init__.py" else name.rpartition(".")[0]


def find_source(name: str, known: Specs | None = None) -> Path | None:
    """Return the source file of a module, or None when there is none: a namespace, an extension, no module at all.

    Parameters
    ----------
    known : dict, optional
        What was found at this moment, by name, and is not looked for again.

    Raises
    ------
    SourceUnreadable
        The module is Python code, but its text is no file: bytecode alone, an archive.
    """
    spec = find_module(name, {} if known is None else known)
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    if isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        return None
    path = Path(spec.origin)
    if path.suffix != ".py" or not path.is_file():
        raise errors.SourceUnreadable(name)
    return path


def find_module(name: str, known: Specs) -> importlib.machinery.ModuleSpec | None:
    """Return where a module would be loaded from, or None when there is no such module.

    Nothing is imported: the packages above a kernel's module may import a compiler.
    """
    if name not in known:
        package, _, inner = name.rpartition(".")
        if not inner or not package:
            known[name] = find_top(name)
        else:
            above = find_module(package, known)
            folders = None if above is None else above.submodule_search_locations
            known[name] = None if folders is None else find_below(name, folders)
    return known[name]


def find_top(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where a module that is in no package would be loaded from."""
    if name == "__main__":  # a compile worker has another one
        return None
    try:
        return importlib.util.find_spec(name)
    except (ValueError, ImportError):  # a module made by hand; a relative name, as no family's text has
        return None


def find_below(name: str, folders: Iterable[str]) -> importlib.machinery.ModuleSpec | None:
    """Return where a module of a package is, given the package's folders; the package need not be loaded."""
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or ()
    namespace = importlib.machinery.ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace if portions else None
