"""The watch of this process: which guards are armed, which hooks are in place, and who hears of an attempt."""

import sys
import threading
from types import ModuleType
from typing import Protocol

from planfreeze.guard.attempts import Attempt, Release
from planfreeze.guard.cpp_extension import road as cpp_extension_road
from planfreeze.guard.cuda_core import road as cuda_core_road
from planfreeze.guard.cupy import road as cupy_road
from planfreeze.guard.cute import road as cute_road
from planfreeze.guard.imports import ImportWatcher, is_importing, wait_for_imports
from planfreeze.guard.inductor import road as inductor_road
from planfreeze.guard.nvrtc import road as nvrtc_road
from planfreeze.guard.ptx import road as ptx_road
from planfreeze.guard.roads import Road, release_all
from planfreeze.guard.spawn import road as spawn_road
from planfreeze.guard.torch_compile import road as torch_compile_road
from planfreeze.guard.torch_cuda import road as torch_cuda_road
from planfreeze.guard.triton import road as triton_road

__all__ = ["ROADS", "Listener", "ProbeStopped", "Watch", "installed_roads", "probing", "watch"]

ROADS: tuple[Road, ...] = (
    triton_road,
    cute_road,
    torch_compile_road,
    inductor_road,
    torch_cuda_road,
    cpp_extension_road,
    nvrtc_road,
    cuda_core_road,
    cupy_road,
    ptx_road,
    spawn_road,
)


class Listener(Protocol):
    """An armed guard, as the watch sees it."""

    def count(self, attempt: Attempt) -> None:
        """Count the attempt."""

    def answer(self, attempt: Attempt) -> None:
        """Warn of it or refuse it by raising."""


class ProbeStopped(BaseException):
    """A deliberate attempt met its hook. Not an Exception, so that no compiler's handler swallows it."""


class ThreadState(threading.local):
    """Whether this thread makes deliberate attempts, which no guard hears of."""

    is_probing = False


probing = ThreadState()


class Watch:
    """Hooks that stand as long as at least one guard is armed."""

    def __init__(self, roads: tuple[Road, ...]) -> None:
        self.roads = roads
        self.armed: tuple[Listener, ...] = ()
        # Never held while importing or waiting: an importing thread may need it in `arrived`.
        self.lock = threading.RLock()
        self.releases: list[Release] = []
        self.seen: dict[str, ModuleType] = {}
        self.names = frozenset(name for road in roads for name in road.modules)
        self.finder = ImportWatcher(self.names, self.arrived, self.look_around)

    def arm(self, guard: Listener) -> None:
        """Add a guard, innermost; the first one puts the hooks in place. All or nothing."""
        with self.lock:
            if not self.armed:
                sys.meta_path.insert(0, self.finder)
            self.armed = (*self.armed, guard)
        try:
            wait_for_imports(self.names)
            self.look_around()
        except BaseException:
            self.release(guard)
            raise

    def release(self, guard: Listener) -> None:
        """Remove a guard; the last one takes the hooks off."""
        with self.lock:
            self.armed = tuple(other for other in self.armed if other is not guard)
            if self.armed:
                return
            if self.finder in sys.meta_path:
                sys.meta_path.remove(self.finder)
            release_all(self.releases)
            self.releases.clear()
            self.seen.clear()

    def look_around(self) -> None:
        """Hook modules that are loaded and were not seen yet."""
        for name in self.names:
            module = sys.modules.get(name)
            if module is None or self.seen.get(name) is module or is_importing(module):
                continue
            with self.lock:
                if self.seen.get(name) is not module:
                    self.arrived(module)

    def arrived(self, module: ModuleType) -> None:
        """Hook a module that was just executed; after a reload its functions are new ones."""
        with self.lock:
            if not self.armed:
                return
            for road in self.roads:
                if module.__name__ in road.modules:
                    self.releases.append(road.install(module, self.report))
            self.seen[module.__name__] = module

    def report(self, attempt: Attempt) -> None:
        """Tell every armed guard; the innermost one that refuses raises."""
        if probing.is_probing:
            raise ProbeStopped(attempt)
        armed = self.armed
        for guard in armed:
            guard.count(attempt)
        for guard in reversed(armed):
            guard.answer(attempt)


watch = Watch(ROADS)


def installed_roads() -> tuple[str, ...]:
    """Return the names of the roads with hooks in place; a road whose compiler is not imported has none yet."""
    return tuple(road.name for road in ROADS if any(name in watch.seen for name in road.modules))
