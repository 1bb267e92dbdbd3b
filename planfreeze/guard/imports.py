"""Imports: see a module as soon as it has been executed, before the importing statement returns.

Finder and loader here derive from no base class: ``importlib.abc`` takes milliseconds to import, at the start of every
guarded child, and the import system asks for methods alone.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportWatcher", "is_importing", "wait_for_imports"]

Arrived = Callable[[ModuleType], None]


class ImportWatcher:
    """A finder for ``sys.meta_path`` that lets the others find, and calls back when the module has been executed.

    Parameters
    ----------
    names : frozenset of str
        Modules to see.
    arrived : callable
        Called with each of them, after its code ran and before its import statement returns, at every import
        and reload.
    look_around : callable
        Called at every import that is not answered from ``sys.modules``, to notice modules that came another way.
    """

    def __init__(self, names: frozenset[str], arrived: Arrived, look_around: Callable[[], None]) -> None:
        self.names, self.arrived, self.look_around = names, arrived, look_around
        # Other finders of this kind ask the whole path again; the inner question gets no answer from here.
        self.thread = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module through the other finders and put the callback behind its loader."""
        self.look_around()
        if fullname not in self.names or getattr(self.thread, "is_asking", False):
            return None
        self.thread.is_asking = True
        try:
            spec = find_elsewhere(self, fullname, path, target)
        finally:
            self.thread.is_asking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = WatchedLoader(spec.loader, self.arrived)  # type: ignore[assignment]  # by its methods alone
        return spec


class WatchedLoader:
    """A loader that calls back after the real one executed the module; it leaves itself out of the module."""

    def __init__(self, real: Any, arrived: Arrived) -> None:
        self.real, self.arrived = real, arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        made: ModuleType | None = self.real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then call back."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        module.__loader__ = self.real
        self.real.exec_module(module)
        self.arrived(module)


def find_elsewhere(
    asking: ImportWatcher, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Ask every other finder in the order of ``sys.meta_path``."""
    for finder in tuple(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is asking or find_spec is None:
            continue
        spec: ModuleSpec | None = find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def is_importing(module: ModuleType) -> bool:
    """Tell whether a module in ``sys.modules`` is still being executed."""
    return bool(getattr(module.__spec__, "_initializing", False))


def wait_for_imports(names: frozenset[str]) -> None:
    """Wait until other threads have executed the modules they are importing; imports nothing itself.

    A module this thread is importing stays unfinished.
    """
    for name in names:
        module = sys.modules.get(name)
        if module is None or not is_importing(module):
            continue
        try:
            # The import system waits for the module's lock here.
            import_module(name)
        except ImportError:
            # The other thread's import failed: there is no such compiler in this process.
            continue
