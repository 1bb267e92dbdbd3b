"""Attempts to compile: the value that describes one, and the line of user code it came from."""

import sys
from collections.abc import Callable
from enum import Enum
from types import CodeType, FrameType, ModuleType
from typing import Any, Literal, NamedTuple

from planfreeze.settings import Mode

__all__ = [
    "NO_ATTEMPT",
    "Attempt",
    "Describe",
    "Facts",
    "Install",
    "Mode",
    "NoAttempt",
    "Release",
    "Report",
    "definition_of",
    "user_location",
]

Action = Literal["compile", "build", "benchmark", "load"]
Facts = tuple[tuple[str, str], ...]
PARTICIPLES = {"compile": "compiled", "build": "built", "benchmark": "benchmarked", "load": "loaded"}

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


class Parts(NamedTuple):
    """The parts of an attempt."""

    road: str
    kernel: str
    signature: str
    location: str
    facts: Facts
    action: Action


class Attempt(Parts):
    """One entry to a compiler.

    Parameters
    ----------
    road : str
        Name of the road it took, such as ``triton``.
    kernel : str
        Qualified name of what would be compiled.
    location : str
        ``file.py:123`` of the innermost user frame; where a pool thread calls the compiler with no user frame
        below it, the line that defines the kernel.
    facts : tuple of (str, str)
        The specialization: argument or option name, and what it is: type and divisibility, value, option.
    signature : str, optional
        The specialization in words; spelled from the facts unless given.
    action : str
        What it came to do: compile, build, benchmark or load.
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        road: str,
        kernel: str,
        location: str,
        signature: str = "",
        facts: Facts = (),
        action: Action = "compile",
    ) -> "Attempt":
        spelled = signature or ", ".join(f"{name}: {value}" if name else value for name, value in facts)
        return super().__new__(cls, road, kernel, spelled, location, facts, action)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), self._asdict()  # for copies and other processes

    def __str__(self) -> str:
        return f"{self.road} was asked to {self.action} {self.kernel}({self.signature}) at {self.location}"

    @property
    def participle(self) -> str:
        """What may not be done, as in "nothing may be compiled"."""
        return PARTICIPLES[self.action]


class NoAttempt(Enum):
    """A description of a call that is no attempt itself, while what it calls may be one."""

    NO_ATTEMPT = "no attempt"


NO_ATTEMPT = NoAttempt.NO_ATTEMPT

Report = Callable[[Attempt], None]
Release = Callable[[], None]
Install = Callable[[ModuleType, Report], Release]
# None: the call goes on with an attempt that was already reported, and so does all that it calls.
Describe = Callable[[tuple[Any, ...], dict[str, Any]], Attempt | NoAttempt | None]


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
