"""The road of NVIDIA's compiler libraries through cuda.bindings: NVRTC, NVVM and nvJitLink.

What counts as an attempt: compiling an NVRTC or NVVM program, and opening an nvJitLink linker, which compiles PTX and
LTO IR. Making a program and asking for versions compiles nothing.

Not seen: these libraries called from C++ (torch's jiterator, cuFFT, other extensions) or by ctypes; names of these
functions kept in a container; numba, pycuda and Warp, which bind the libraries themselves.
"""

from typing import Any

from planfreeze.guard.attempts import Attempt, Describe, user_location
from planfreeze.guard.attributes import exchange_bound_names
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import shorten

__all__ = ["describe_options", "road"]


def describe_options(road_name: str, kernel: str, position: int) -> Describe:
    """Return what describes a call with a list of compiler options at a position."""

    def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
        stated = arguments[position] if len(arguments) > position else options.get("options")
        words = stated if isinstance(stated, list | tuple) else ()
        texts = [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in words]
        return Attempt(
            road=road_name,
            kernel=kernel,
            signature=shorten(" ".join(texts)),
            location=user_location("unknown:0"),
        )

    return describe


def attempt_nvrtc() -> object:
    """Compile no program at all; unguarded, the library refuses it."""
    from cuda.bindings import nvrtc

    return nvrtc.nvrtcCompileProgram(None, 0, [])


def attempt_nvvm() -> object:
    """Compile no program at all."""
    from cuda.bindings import nvvm

    return nvvm.compile_program(0, 0, [])


def attempt_nvjitlink() -> object:
    """Open a linker with an option it does not have."""
    from cuda.bindings import nvjitlink

    return nvjitlink.create(1, ["-deliberate"])


DOORS = (
    Door(
        module="cuda.bindings.nvrtc",
        path="nvrtcCompileProgram",
        describe=describe_options("nvrtc", "an NVRTC program", 2),
    ),
    Door(
        module="cuda.bindings.nvvm",
        path="compile_program",
        describe=describe_options("nvrtc", "an NVVM program", 2),
    ),
    Door(
        module="cuda.bindings.nvjitlink",
        path="create",
        describe=describe_options("nvrtc", "a linked program", 1),
    ),
)

road = Road(
    name="nvrtc",
    package="cuda.bindings",
    modules=tuple(door.module for door in DOORS),
    install=exchange_bound_names(watch_doors("nvrtc", DOORS), [door.path for door in DOORS]),
    attempts=(attempt_nvrtc, attempt_nvvm, attempt_nvjitlink),
)
