"""Triton's own C builds: its driver module and, in 3.6, a launcher per kernel, Triton 3.6 to 3.9.

What counts as an attempt: a build that would start a C compiler. A module that Triton finds in its cache, and one
that ``knobs.build.impl`` makes or fetches without Triton's compiler call, are none.

Not seen: what ``knobs.build.impl`` itself does; a compiler process it starts is seen where processes are watched.
"""

import sys
from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, NoAttempt, user_location
from planfreeze.guard.roads import Door, Road, watch_doors

__all__ = ["road"]

PARAMETERS = ("name", "src", "srcdir", "library_dirs", "include_dirs", "libraries")


def describe_build(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe a call of ``_build(name, src, srcdir, library_dirs, include_dirs, libraries, ...)``."""
    if is_served():
        return NO_ATTEMPT
    call = dict(zip(PARAMETERS, arguments, strict=False)) | options
    libraries = " ".join(str(library) for library in call.get("libraries") or ())
    return Attempt(
        road="triton-build",
        kernel=str(call.get("name")),
        facts=(("language", str(options.get("language", "c"))), ("libraries", libraries or "none")),
        location=user_location("unknown:0"),
        action="build",
    )


def is_served() -> bool:
    """Tell whether something else than Triton's compiler call makes the module."""
    building = getattr(sys.modules.get("triton.knobs"), "build", None)
    return getattr(building, "impl", None) is not None


def attempt_build() -> object:
    """Build a module from a file that does not exist."""
    from triton import knobs
    from triton.runtime.build import _build

    with knobs.build.scope():
        knobs.build.impl = None
        return _build("probe", "/nonexistent/probe.c", "/nonexistent", [], [], [], [])


DOORS = (
    # All of Triton's builds end here, after its cache was asked and before a compiler is looked for.
    Door(module="triton.runtime.build", path="_build", describe=describe_build),
)

road = Road(
    name="triton-build",
    package="triton",
    modules=tuple(door.module for door in DOORS),
    install=watch_doors("triton-build", DOORS),
    attempts=(attempt_build,),
)
