"""The CuPy road: raw kernels, raw modules, elementwise and reduction kernels, fusion and ``cupyx.jit``, CuPy 13 and 14.

What counts as an attempt: entering CuPy's compiler, also where its cache on disk would have had the result, because
it runs NVRTC to name the entry; linking; and loading PTX. A kernel that this process has compiled is found before.

Not seen: callbacks of cuFFT, Thrust and other libraries CuPy was built with.
"""

from typing import Any

from planfreeze.guard.attempts import Attempt, user_location
from planfreeze.guard.attributes import exchange_bound_names
from planfreeze.guard.nvrtc import describe_options
from planfreeze.guard.ptx import describe_file, describe_image, make_probe
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import shorten

__all__ = ["road"]

COMPILER, LIBRARY, MODULES = "cupy.cuda.compiler", "cupy_backends.cuda.libs.nvrtc", "cupy.cuda.function"


def describe_source(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call whose first argument is CUDA C++ and whose second are the compiler's options."""
    source = arguments[0] if arguments else options.get("source", "")
    flags = arguments[1] if len(arguments) > 1 else options.get("options", ())
    return Attempt(
        road="cupy",
        kernel=find_kernel(str(source)),
        signature=shorten(" ".join(map(str, flags if isinstance(flags, list | tuple) else ()))),
        location=user_location("unknown:0"),
    )


def find_kernel(source: str) -> str:
    """Return the name of the first kernel in CUDA C++."""
    head = source.partition("__global__")[2].partition("(")[0].split()
    return head[-1].lstrip("*") if head else "CUDA C++"


def describe_program(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``_NVRTCProgram.compile(self, options, ...)``."""
    return describe_source((getattr(arguments[0], "src", ""), *arguments[1:]), options)


def describe_linker(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``LinkState.complete(self)``."""
    return Attempt(road="cupy", kernel="a linked program", signature="", location=user_location("unknown:0"))


def attempt_compile() -> object:
    """Compile an empty source for a stated architecture."""
    from cupy.cuda import compiler

    return compiler._compile_module_with_cache("", arch="90")


def attempt_nvrtc() -> object:
    """Compile it past the first door."""
    from cupy.cuda import compiler

    return compiler.compile_using_nvrtc("", arch="90")


def attempt_load() -> object:
    """Load PTX; unguarded, it fails for want of a driver."""
    from cupy.cuda import function

    return function.Module().load(make_probe())


DOORS = (
    Door(module=COMPILER, path="_compile_module_with_cache", describe=describe_source),
    Door(module=COMPILER, path="compile_using_nvrtc", describe=describe_source),
    Door(module=COMPILER, path="compile_using_nvcc", describe=describe_source),
    # Second line, and what CuPy's own parts call.
    Door(module=COMPILER, path="_NVRTCProgram.compile", describe=describe_program),
    Door(module=LIBRARY, path="compileProgram", describe=describe_options("cupy", "an NVRTC program", 1)),
    Door(module=MODULES, path="Module.load", describe=describe_image("cupy", 1, "cubin")),
    Door(module=MODULES, path="Module.load_file", describe=describe_file("cupy", 1, "filename")),
    Door(module=MODULES, path="LinkState.complete", describe=describe_linker),
)

road = Road(
    name="cupy",
    package="cupy",
    modules=(COMPILER, LIBRARY, MODULES),
    install=exchange_bound_names(watch_doors("cupy", DOORS), ["compileProgram"]),
    attempts=(attempt_compile, attempt_nvrtc, attempt_load),
)
