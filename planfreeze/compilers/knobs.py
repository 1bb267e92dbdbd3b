"""Knobs: what steers a compiler besides what it is given, looked up in a compile process after each program.

A key holds the pinned variables and no other knob. So a module that sets one while it is imported would change what
its process compiles from then on, and nothing would tell those programs from the ones of another process.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from planfreeze.key import COMPILE_ENVIRONMENT

__all__ = ["find_changed", "is_steering"]

# How the variables begin that Triton, the CuTe DSL and the LLVM, NVVM and ptxas within them read.
STEERING = (
    *("TRITON_", "CUTE_", "CUTLASS_", "MLIR_", "LLVM_", "NVPTX_", "NVVM_", "LIBNVVM_", "PTXAS_", "AMDGCN_"),
    *("DISABLE_", "ALLOW_LHS_TMEM_", "USE_IR_LOC", "DUMP_KNOBS_", "CAN_FINALIZE_DEBUG"),
)
# Of those, the ones that say where compilers keep what they made, when they use it again, and what they print.
KEEPING = frozenset(
    {
        *("TRITON_HOME", "TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_ALWAYS_COMPILE", "TRITON_STORE_BINARY_ONLY"),
        *("TRITON_CACHE_AUTOTUNING", "TRITON_PRINT_AUTOTUNING", "TRITON_DUMP_PTXAS_LOG"),
        *("CUTE_DSL_CACHE_DIR", "CUTE_DSL_NO_CACHE", "CUTE_DSL_DISABLE_FILE_CACHING", "CUTE_DSL_JIT_CACHE_MAX_ELEMS"),
        *("CUTE_DSL_LOG_TO_CONSOLE", "CUTE_DSL_LOG_TO_FILE", "CUTE_DSL_LOG_LEVEL"),
    }
)
# What a worker is started with for itself.
OWN = ("CUTE_DSL_ARCH", "CUTE_DSL_KEEP", "CUTE_DSL_DUMP_DIR")
# Knobs of Triton that have no variable and change what it compiles; the others hear of compiles and launches.
WITHOUT_VARIABLE = ("add_stages_inspection_hook", "debug", "instrumentation_mode")


def is_steering(name: str) -> bool:
    """Tell whether a variable of the environment may change what a compiler makes."""
    return name.startswith(STEERING) and name not in KEEPING


def find_changed(environ: Mapping[str, str], started: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every knob of this process that is not as a worker has it, with its value.

    Parameters
    ----------
    environ, started : mapping
        The environment now, and when the process was started.
    """
    pinned = {
        **{name: started[name] for name in OWN if name in started},
        **COMPILE_ENVIRONMENT["triton"],
        **COMPILE_ENVIRONMENT["cute"],
    }
    found = {name: value for name, value in environ.items() if is_steering(name)}
    for name in sorted(found.keys() | pinned.keys()):
        if found.get(name) != pinned.get(name):
            yield name, found.get(name, "unset")
    yield from changed_in_triton()
    yield from changed_in_cute()


def changed_in_triton() -> Iterator[tuple[str, str]]:
    """Yield the knobs of Triton, 3.6 to 3.9, that were set by assignment: those stand on a group, not on its class."""
    module = sys.modules.get("triton.knobs")
    for group_name, group in vars(module).items() if module is not None else ():
        if not isinstance(group, module.base_knobs):  # type: ignore[union-attr]
            continue
        for name, value in vars(group).items():
            descriptor = group.knob_descriptors.get(name)
            steers = name in WITHOUT_VARIABLE if descriptor is None else is_steering(descriptor.key)
            if steers and (descriptor is not None or value != getattr(type(group), name)):
                yield f"triton.knobs.{group_name}.{name}", repr(value)


def changed_in_cute() -> Iterator[tuple[str, str]]:
    """Yield the settings of the CuTe DSL 4.8 that differ from what it reads from the environment."""
    module = sys.modules.get("cutlass.cutlass_dsl")
    for dsl in (getattr(module, name, None) for name in ("CuTeDSL", "CuteExperimentalDSL")):
        if dsl is None:
            continue
        settings: Any = dsl._get_dsl().envar
        fresh = type(settings)(settings.prefix)
        for entry in settings._ENV_VAR_SPEC:
            name = entry.attribute
            if is_steering(f"{settings.prefix}_{entry.source}") and getattr(settings, name) != getattr(fresh, name):
                yield f"{dsl.__name__}.envar.{name}", repr(getattr(settings, name))
