"""The text of kernels: which modules make a program, their digests, and loading exactly that text."""

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import msgspec
from msgspec import Struct

from planfreeze import errors
from planfreeze.memory import recall, remember
from planfreeze.module_files import Specs, find_source, is_beside

__all__ = ["ModuleReader", "Sources", "check_sources", "find_source", "hash_source", "load_exactly", "read_sources"]

# The kernels that ship with planfreeze are their own scope: the rest of planfreeze makes no code.
KERNELS_SCOPE = "planfreeze.kernels"
# CPython 3.11 counts the depth of syntax trees for all threads at once: two that parse raise SystemError (3.11.7).
ONE_PARSES = threading.Lock()


class Sources(Struct, frozen=True):
    """Modules by name with the sha256 of their text, sorted by name."""

    modules: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """One digest over all names and digests."""
        return hashlib.sha256(msgspec.msgpack.encode(self.modules)).hexdigest()


class ModuleText(Struct, frozen=True):
    """What the text of a module says: its sha256, and the modules that are followed from it."""

    digest: str
    followed: tuple[str, ...]


class ModuleReader:
    """Reads every module once, for programs that stand for the text of one moment.

    Parameters
    ----------
    memo : Path, optional
        File that remembers between processes what texts import, behind their digests. Only parsing is saved: every
        text is read and hashed.
    """

    def __init__(self, memo: Path | None = None) -> None:
        self._memo = memo
        self._modules: dict[str, ModuleText | None] = {}
        self._specs: dict[str, ModuleSpec | None] = {}
        recalled = None if memo is None else recall(memo)
        self._recalled: dict[str, list[str]] = {} if recalled is None else json.loads(recalled)
        self._imports: dict[str, list[str]] = {}

    def read(self, name: str) -> ModuleText | None:
        """Return a module; None when it has no text: a namespace, an extension, no module at all."""
        if name not in self._modules:
            path = find_source(name, self._specs)
            self._modules[name] = None if path is None else self._read_text(name, path)
        return self._modules[name]

    def _read_text(self, name: str, path: Path) -> ModuleText:
        text = path.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        # What a text imports depends on the package it is in, and on the grammar that reads it.
        key = f"{sys.version_info.major}.{sys.version_info.minor} {package} {digest}"
        imported = self._recalled.get(key)
        if imported is None:
            imported = list(imported_names(name, package, path, text))
        self._imports[key] = imported
        followed = (
            found
            for found in (*parents(name), *imported)
            if is_within(found, scope_of(name)) or is_within(found, KERNELS_SCOPE) or is_beside(found, name)
        )
        return ModuleText(digest, tuple(followed))

    def remember(self) -> None:
        """Keep what the texts import that were read, and nothing older."""
        if self._memo is not None and self._imports != self._recalled:
            remember(self._memo, json.dumps(self._imports))


def read_sources(roots: Iterable[str], reader: ModuleReader | None = None) -> Sources:
    """Find and hash the modules that ``roots`` reach by import statements.

    Followed are a module's own top-level package, the modules and packages that lie beside it in a folder of one's
    own, and the kernels that ship with planfreeze.

    Found from the text alone: nothing is imported.

    Raises
    ------
    SourceUnreadable
        A root has no Python source file, or a module it reaches is Python code without its text.
    UnparsableSource
        The text of a module is not Python that this interpreter reads.

    Notes
    -----
    Not followed: what is installed (unless it is the root's own package), the standard library, compilers,
    extension modules, and imports that are no statements.
    """
    reader = reader or ModuleReader()
    digests: dict[str, str] = {}
    waiting = list(roots)
    required = set(waiting)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        module = reader.read(name)
        if module is not None:
            digests[name] = module.digest
            waiting += module.followed
        elif name in required:
            raise errors.SourceUnreadable(name)
    return Sources(tuple(sorted(digests.items())))


def check_sources(expected: Sequence[Sources]) -> tuple[tuple[str, ...], ...]:
    """Return of each of them the modules whose text here is not the text that was hashed; empty where all agree.

    A module that several share is read once.
    """
    found: Specs = {}
    names = {name for sources in expected for name, _ in sources.modules}
    here = {name: hash_if_readable(name, found) for name in names}
    return tuple(tuple(name for name, digest in sources.modules if here[name] != digest) for sources in expected)


def hash_source(name: str, known: Specs | None = None) -> str:
    """Return the sha256 of one module's text.

    Parameters
    ----------
    known : dict, optional
        As :func:`planfreeze.module_files.find_source`.

    Raises
    ------
    SourceUnreadable
        The module has no Python source file.
    """
    path = find_source(name, known)
    if path is None:
        raise errors.SourceUnreadable(name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_if_readable(name: str, known: Specs) -> str | None:
    """Return the sha256 of one module's text, or None when it has none here."""
    try:
        return hash_source(name, known)
    except errors.SourceUnreadable:
        return None


def scope_of(name: str) -> str:
    """Return the package that is followed from ``name``."""
    if name.startswith(KERNELS_SCOPE + "."):
        return KERNELS_SCOPE
    return name.partition(".")[0]


def is_within(name: str, scope: str) -> bool:
    """Tell whether a module is a package or one of its modules."""
    return name == scope or name.startswith(scope + ".")


def parents(name: str) -> Iterator[str]:
    """Yield the packages that importing ``name`` runs."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def imported_names(name: str, package: str, path: Path, text: bytes) -> tuple[str, ...]:
    """Return every dotted name an import statement of a module can load."""
    try:
        with ONE_PARSES:
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise errors.UnparsableSource(name, str(path), str(error)) from error
    found: list[str] = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = imported_from(package, node)
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(found))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement of a module, also those inside of others; no expression holds one."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            held = getattr(node, part, ())
            if isinstance(held, list):  # of an expression such as a lambda or a conditional one, it is no list
                waiting += held


def imported_from(package: str, node: ast.ImportFrom) -> str:
    """Return the module that a ``from`` statement names, in a module of ``package``."""
    base = node.module or ""
    if not node.level:
        return base
    anchor = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
    return f"{anchor}.{base}".rstrip(".")


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
            raise errors.SourceChanged(fullname, path)
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
        if finder.digests.setdefault(name, digest) != digest or not is_loaded_exactly(name, digest):
            raise errors.SourceChanged(name, str(find_source(name)))


def is_loaded_exactly(name: str, digest: str) -> bool:
    """Tell whether a module is not loaded yet, or was loaded from the text with this digest."""
    loaded = sys.modules.get(name)
    loader = getattr(getattr(loaded, "__spec__", None), "loader", None)
    return loaded is None or (isinstance(loader, ExactLoader) and loader.digest == digest)
