"""What a process does at its start because the one that started it asked for it: be guarded, served, recorded.

Every Python process of such a command comes here, most of them without ever launching a kernel. Until a compiler is
imported, nothing more than the settings, a guard where one is asked for, and a finder is loaded.
"""

import functools
import sys
from importlib import import_module
from types import ModuleType

from planfreeze.guard.imports import ImportWatcher
from planfreeze.settings import InheritedSettings, read_guard_settings, read_inherited_settings

__all__ = ["RECORDED_MODULES", "SERVED_MODULES", "start_inherited"]

# What servers and recorders wait for, stated here so that they need not be loaded to be asked.
SERVED_MODULES = frozenset(
    {
        "cutlass.base_dsl.compiler",
        "cutlass.base_dsl.dsl",
        "triton.backends.nvidia.compiler",
        "triton.compiler.compiler",
        "triton.experimental.gluon._runtime",
        "triton.knobs",
        "triton.runtime.autotuner",
    }
)
RECORDED_MODULES = frozenset(
    {
        "cutlass.base_dsl.dsl",
        "cutlass.base_dsl.jit_executor",
        "triton.compiler.compiler",
        "triton.runtime.autotuner",
        "triton.runtime.jit",
    }
)


def start_inherited() -> None:
    """Put in place what the environment asks for; a compiler is hooked when it is imported.

    Raises
    ------
    InvalidSetting
        The variables do not say what to do.
    """
    if read_guard_settings().mode is not None:
        import_module("planfreeze.guard.inherited").arm_inherited()
    settings = read_inherited_settings()
    if settings.plan is not None:
        wait(SERVED_MODULES, "planfreeze.serving.processes", settings)
    if settings.folder is not None:
        wait(RECORDED_MODULES, "planfreeze.recorders.processes", settings)


def wait(names: frozenset[str], home: str, settings: InheritedSettings) -> None:
    """Let ``arrived(module, settings)`` of the module ``home`` see each of the named modules when it is imported."""
    meet = functools.partial(arrive, home, settings)
    sys.meta_path.insert(0, ImportWatcher(names, meet, lambda: None))


def arrive(home: str, settings: InheritedSettings, module: ModuleType) -> None:
    """Hand a module that was just imported on."""
    import_module(home).arrived(module, settings)
