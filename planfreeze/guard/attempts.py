"""Attempts to compile: the value that describes one, and the line of user code it came from."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal

__all__ = ["Attempt", "Describe", "Mode", "Release", "Report", "definition_of", "user_location"]

Mode = Literal["raise", "warn", "count", "off"]

# Frames of these packages are never the user's: compilers, this package, and what runs callables on other threads.
INNER_PACKAGES = frozenset(
    {
        "",  # code a library generated, in a namespace without a name
        "_frozen_importlib",
        "asyncio",
        "concurrent",
        "contextlib",
        "cuda",
        "cupy",
        "cupyx",
        "cutlass",
        "importlib",
        "multiprocessing",
        "os",
        "planfreeze",
        "pty",
        "setuptools",
        "subprocess",
        "threading",
        "torch",
        "triton",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One entry to a compiler.

    Parameters
    ----------
    road : str
        Name of the road it took, such as ``triton``.
    kernel : str
        Qualified name of what would be compiled.
    signature : str
        The specialization in words: types, divisibility, constants, options.
    location : str
        ``file.py:123`` of the innermost user frame; where a pool thread calls the compiler with no user frame
        below it, the line that defines the kernel.
    """

    road: str
    kernel: str
    signature: str
    location: str

    def __str__(self) -> str:
        return f"{self.road} was asked to compile {self.kernel}({self.signature}) at {self.location}"


Report = Callable[[Attempt], None]
Release = Callable[[], None]
Describe = Callable[[tuple[Any, ...], dict[str, Any]], Attempt | None]


def user_location(definition: str) -> str:
    """Return ``file:line`` of the innermost frame outside compilers and planfreeze, else ``definition``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in INNER_PACKAGES:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return definition


def definition_of(function: object) -> str:
    """Return ``file:line`` of a function's first line, or ``unknown:0`` for something without Python code."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    return "unknown:0"
