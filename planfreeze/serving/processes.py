"""Processes that are served: hooks wait for a compiler to be imported, and cost nothing where none is."""

import functools
import sys
from pathlib import Path
from types import ModuleType

from planfreeze.guard.imports import ImportWatcher
from planfreeze.serving.cute import server as cute_server
from planfreeze.serving.programs import Server, load_plan
from planfreeze.serving.triton import server as triton_server

__all__ = ["serve_process"]

SERVERS: tuple[Server, ...] = (triton_server, cute_server)


def serve_process(plan: str, store: Path, *, is_trusted: bool, log: Path | None) -> None:
    """Serve this process from a plan from now on; the plan is read when a compiler is imported."""
    served = functools.partial(load_plan, plan, store, is_trusted, log)

    def arrived(module: ModuleType) -> None:
        for server in SERVERS:
            if module.__name__ in server.modules:
                server.install(module, served)

    names = frozenset(name for server in SERVERS for name in server.modules)
    sys.meta_path.insert(0, ImportWatcher(names, arrived, lambda: None))
