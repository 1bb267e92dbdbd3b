"""The text of kernels: which modules make a program, their digests, and loading exactly that text."""

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import msgpack

from planfreeze.errors import SourceChanged, SourceUnreadable, UnparsableSource

__all__ = ["Sources", "check_sources", "hash_source", "load_exactly", "read_sources"]

# The kernels that ship with planfreeze are their own scope: the rest of planfreeze makes no code.
KERNELS_SCOPE = "planfreeze.kernels"


@dataclass(frozen=True, slots=True)
class Sources:
    """Modules by name with the sha256 of their text, sorted by name."""

    modules: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """One digest over all names and digests."""
        return hashlib.sha256(msgpack.packb(self.modules)).hexdigest()


def read_sources(roots: Iterable[str]) -> Sources:
    """Find and hash the modules that ``roots`` reach by import statements.

    Followed are the root's own top-level package and the kernels that ship with planfreeze.

    Found from the text alone: nothing is imported.

    Raises
    ------
    SourceUnreadable
        A root has no Python source file.
    """
    digests: dict[str, str] = {}
    waiting = list(roots)
    required = set(waiting)
    while waiting:
        name = waiting.pop()
        if name in digests:
            continue
        path = find_source(name)
        if path is None:
            if name in required:
                raise SourceUnreadable(name)
            continue
        text = path.read_bytes()
        digests[name] = hashlib.sha256(text).hexdigest()
        scopes = (scope_of(name), KERNELS_SCOPE)
        waiting += [
            found
            for found in (*parents(name), *imported_names(name, text, path.name == "__init__.py"))
            if any(found == scope or found.startswith(scope + ".") for scope in scopes)
        ]
    return Sources(tuple(sorted(digests.items())))


def check_sources(expected: Sources) -> tuple[str, ...]:
    """Return the modules whose text here is not the text that was hashed; empty when all agree."""
    return tuple(
        name
        for name, digest in expected.modules
        if (path := find_source(name)) is None or hashlib.sha256(path.read_bytes()).hexdigest() != digest
    )


def hash_source(name: str) -> str:
    """Return the sha256 of one module's text.

    Raises
    ------
    SourceUnreadable
        The module has no Python source file.
    """
    path = find_source(name)
    if path is None:
        raise SourceUnreadable(name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def scope_of(name: str) -> str:
    """Return the package that is followed from ``name``."""
    if name.startswith(KERNELS_SCOPE + "."):
        return KERNELS_SCOPE
    return name.partition(".")[0]


def parents(name: str) -> Iterator[str]:
    """Yield the packages that importing ``name`` runs."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def imported_names(name: str, text: bytes, is_package: bool) -> Iterator[str]:
    """Yield every dotted name an import statement of a module can load."""
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{anchor}.{base}".rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def find_source(name: str) -> Path | None:
    """Return the source file of a module, or None when it has none (a namespace, a name inside a module).

    Nothing is imported: the packages above a kernel's module may import a compiler.
    """
    top, *inner = name.split(".")
    spec = importlib.util.find_spec(top)
    for depth in range(1, len(inner) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        folders = list(spec.submodule_search_locations)
        spec = importlib.machinery.PathFinder.find_spec(".".join([top, *inner[:depth]]), folders)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


class ExactLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from text with a known digest, never from bytecode.

    The same text is what ``inspect`` and so every kernel compiler sees for the module from then on.
    """

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self.digest = digest

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = Path(path).read_bytes()
        if hashlib.sha256(text).hexdigest() != self.digest:
            raise SourceChanged(fullname, path)
        decoded = importlib.util.decode_source(text)
        # An entry without a modification time is never re-read from disk.
        linecache.cache[path] = (len(decoded), None, decoded.splitlines(keepends=True), path)
        return self.source_to_code(text, path)


class ExactFinder(importlib.abc.MetaPathFinder):
    """Finds modules as usual, and hands those with a known digest to :class:`ExactLoader`."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        self.digests = dict(digests)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.digests:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.origin is None:
            return None
        spec.loader = ExactLoader(fullname, spec.origin, self.digests[fullname])
        return spec


def load_exactly(sources: Sources) -> None:
    """Make this process import the modules of ``sources`` from exactly the text that was hashed.

    Raises
    ------
    SourceChanged
        A module was loaded before from other text; on import, the text on disk is no longer the hashed one.
    """
    finder = next((f for f in sys.meta_path if isinstance(f, ExactFinder)), None)
    if finder is None:
        finder = ExactFinder({})
        sys.meta_path.insert(0, finder)
    for name, digest in sources.modules:
        if finder.digests.setdefault(name, digest) != digest:
            raise SourceChanged(name, str(find_source(name)))
