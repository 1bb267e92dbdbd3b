"""The watch of this process: which guards are armed, which hooks are in place, and who hears of an attempt."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

from planfreeze.guard.attempts import Attempt, Install, Mode, Release
from planfreeze.guard.children import Announcement
from planfreeze.guard.imports import ImportWatcher, is_importing, wait_for_imports
from planfreeze.guard.roads import LazyRoad, Road, release_all
from planfreeze.settings import read_guard_settings

__all__ = [
    "ROADS",
    "Listener",
    "ProbeStopped",
    "Watch",
    "attempt_totals",
    "expose_attempts",
    "installed_roads",
    "probing",
    "road_names",
    "watch",
]

ROADS = (
    LazyRoad("triton", "triton", "triton.compiler.compiler", "triton.compiler.code_generator"),
    LazyRoad("triton-autotune", "triton", "triton.runtime.autotuner"),
    LazyRoad("triton-build", "triton", "triton.runtime.build"),
    LazyRoad("triton-load", "triton", "triton.compiler.compiler"),
    LazyRoad(
        "cute",
        "cutlass",
        "cutlass.base_dsl.compiler",
        "cutlass.base_dsl.dsl",
        "cutlass.cutlass_dsl.cutlass",
        "cutlass.compiler",
    ),
    LazyRoad(
        "torch-compile",
        "torch",
        "torch._dynamo.convert_frame",
        "torch._dynamo.eval_frame",
        "torch._dynamo.aot_compile",
    ),
    LazyRoad(
        "inductor",
        "torch",
        "torch._inductor.compile_fx",
        "torch._inductor.async_compile",
        "torch._inductor.codecache",
        "torch._inductor.compile_worker.subproc_pool",
    ),
    LazyRoad("torch-cuda", "torch", "torch.cuda._utils"),
    LazyRoad("cpp-extension", "torch", "torch.utils.cpp_extension"),
    LazyRoad("nvrtc", "cuda.bindings", "cuda.bindings.nvrtc", "cuda.bindings.nvvm", "cuda.bindings.nvjitlink"),
    LazyRoad("cuda-core", "cuda.core", "cuda.core._program", "cuda.core._linker", "cuda.core._module"),
    LazyRoad("cupy", "cupy", "cupy.cuda.compiler", "cupy_backends.cuda.libs.nvrtc", "cupy.cuda.function"),
    LazyRoad("ptx", "cuda.bindings", "cuda.bindings.driver", "cuda.bindings.runtime"),
    LazyRoad("spawn", "sys", "sys", "os"),
)


class Listener(Protocol):
    """An armed guard, as the watch sees it."""

    @property
    def mode(self) -> Mode:
        """What it does about an attempt."""

    @property
    def allowed(self) -> frozenset[str]:
        """Roads of which it does not want to hear."""

    def count(self, attempt: Attempt) -> None:
        """Count the attempt."""

    def answer(self, attempt: Attempt) -> None:
        """Warn of it or refuse it by raising."""

    def renew_lock(self) -> None:
        """Forget a lock that a fork may have left taken."""


class ProbeStopped(BaseException):
    """A deliberate attempt met its hook. Not an Exception, so that no compiler's handler swallows it."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self.attempt = attempt


class ThreadState(threading.local):
    """Whether this thread makes deliberate attempts, which no guard hears of, and whether it loads a road."""

    is_probing = False
    is_loading = False


probing = ThreadState()


class Watch:
    """Hooks that stand as long as at least one guard is armed.

    Parameters
    ----------
    roads : sequence of Road or LazyRoad
        What to watch.
    announcement : Announcement, optional
        Tells the children of this process; None leaves them alone.
    """

    def __init__(self, roads: Sequence[Road | LazyRoad], announcement: Announcement | None = None) -> None:
        self.roads = roads
        self.announcement = announcement
        self.armed: tuple[Listener, ...] = ()
        self.log: Path | None = None
        self.totals: Counter[str] = Counter()
        # Never held while importing or waiting: an importing thread may need it in `arrived`.
        self.lock = threading.RLock()
        self.releases: list[Release] = []
        self.seen: dict[str, ModuleType] = {}
        self.names = frozenset(name for road in roads for name in road.modules)
        self.finder = ImportWatcher(self.names, self.arrived, self.look_around)

    def arm(self, guard: Listener) -> None:
        """Add a guard, innermost; the first one puts the hooks in place. All or nothing."""
        log = read_guard_settings().log
        # Before the finder is there: who looks around in the midst of an import had better import nothing.
        for name in self.names & sys.modules.keys():
            self.load_roads(name)
        with self.lock:
            if not self.armed:
                sys.meta_path.insert(0, self.finder)
                self.log = log
            self.armed = (*self.armed, guard)
            self.announce()
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
            self.announce()
            if self.armed:
                return
            if self.finder in sys.meta_path:
                sys.meta_path.remove(self.finder)
            release_all(self.releases)
            self.releases.clear()
            self.seen.clear()

    def look_around(self) -> None:
        """Hook modules that are loaded and were not seen yet."""
        if probing.is_loading:
            return
        for name in self.names:
            module = sys.modules.get(name)
            if module is None or self.seen.get(name) is module or is_importing(module):
                continue
            self.arrived(module, is_executed=False)

    def arrived(self, module: ModuleType, *, is_executed: bool = True) -> None:
        """Hook a module that was not seen yet, or was just executed: after a reload its functions are new ones."""
        if not self.armed:
            return
        installs = self.load_roads(module.__name__)
        with self.lock:
            if not self.armed or (self.seen.get(module.__name__) is module and not is_executed):
                return
            # A module whose hooks do not fit counts as not seen, also one that was seen before it was reloaded.
            self.seen.pop(module.__name__, None)
            self.releases += self.install(module, installs)
            self.seen[module.__name__] = module

    def load_roads(self, name: str) -> list[Install]:
        """Load the roads of a module, which imports: nobody looks around for it, and the lock is not held."""
        was_loading, probing.is_loading = probing.is_loading, True
        try:
            return [road.install for road in self.roads if name in road.modules]
        finally:
            probing.is_loading = was_loading

    def install(self, module: ModuleType, installs: list[Install]) -> list[Release]:
        """Put the hooks of every road in a module in place, or none."""
        releases: list[Release] = []
        try:
            for install in installs:
                releases.append(install(module, self.report))
        except BaseException:
            release_all(releases)
            raise
        return releases

    def report(self, attempt: Attempt) -> None:
        """Tell every armed guard that wants to hear of it; the innermost one that refuses raises."""
        if probing.is_probing:
            raise ProbeStopped(attempt)
        hearing = [guard for guard in self.armed if attempt.road not in guard.allowed]
        if not hearing:
            return
        with self.lock:
            self.totals[attempt.road] += 1
        for guard in hearing:
            guard.count(attempt)
        if self.log is not None:
            from planfreeze.guard.logs import write_log  # here, not at the start of every guarded child

            write_log(self.log, attempt)
        for guard in reversed(hearing):
            guard.answer(attempt)

    def announce(self) -> None:
        """Tell children what the armed guards ask of them."""
        if self.announcement is not None:
            self.announcement.update([(guard.mode, guard.allowed) for guard in self.armed])

    def renew_locks(self) -> None:
        """In a forked child: forget locks that another thread of the parent may have held."""
        self.lock = threading.RLock()
        for guard in self.armed:
            guard.renew_lock()


watch = Watch(ROADS, Announcement())
# Every armed guard watches it. Loaded here and not in `arm`: where one thread arms while another forks, the child
# would wait without end for the rest of that import.
watch.load_roads("sys")
os.register_at_fork(after_in_child=watch.renew_locks)


def road_names() -> tuple[str, ...]:
    """Return the names of all roads, watched here or not."""
    return tuple(road.name for road in ROADS)


def attempt_totals() -> Mapping[str, int]:
    """Return how often each road was tried in this process while a guard was armed that forbids it."""
    return {name: watch.totals[name] for name in road_names()}


def expose_attempts(attempts: Mapping[str, int] | None = None) -> str:
    """Return attempts by road, those of this process unless given, in Prometheus' text format."""
    from planfreeze.exposition import expose_counter  # not needed to watch

    counted = attempt_totals() if attempts is None else attempts
    meaning = "Attempts to compile, build, benchmark or load while a guard was armed."
    return expose_counter("planfreeze_attempts", meaning, [({"road": road}, counted[road]) for road in counted])


def installed_roads() -> tuple[str, ...]:
    """Return the names of the roads with hooks in place; a road whose compiler is not imported has none yet."""
    return tuple(road.name for road in ROADS if any(name in watch.seen for name in road.modules))
