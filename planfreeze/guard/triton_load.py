"""Triton's late loads: moving a compiled kernel to the device at its first launch, Triton 3.6 to 3.9.

What counts as an attempt: the first use of a compiled kernel, which loads its module and makes its launcher. Later
launches of it are none. A build that making the launcher needs is an attempt of its own, on the build road.
``no_compilation()`` lets loads pass; a frozen session does not, since it loaded all that it planned.

Not seen: ``load_binary`` of Triton's driver module, called by hand.
"""

from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, NoAttempt, definition_of, user_location
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.triton import describe_options, describe_parameters, name_of

__all__ = ["road"]


def describe_load(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe a call of ``CompiledKernel._init_handles(self)``."""
    kernel = arguments[0]
    if getattr(kernel, "module", None) is not None:
        return NO_ATTEMPT
    source = getattr(kernel, "src", None)
    jitted = getattr(source, "fn", None)
    function = getattr(jitted, "fn", jitted)
    return Attempt(
        road="triton-load",
        kernel=str(getattr(kernel, "name", "unknown")) if function is None else name_of(function),
        facts=describe_parameters(source) + describe_options(getattr(kernel, "metadata", ())),
        location=user_location(definition_of(function)),
        action="load",
    )


def attempt_load() -> object:
    """Load a kernel that has nothing to load."""
    from triton.compiler.compiler import CompiledKernel

    kernel = object.__new__(CompiledKernel)
    kernel.module = None
    return kernel._init_handles()


DOORS = (
    Door(
        module="triton.compiler.compiler",
        path="CompiledKernel._init_handles",
        describe=describe_load,
        is_covering=False,
    ),
)

road = Road(
    name="triton-load",
    package="triton",
    modules=tuple(door.module for door in DOORS),
    install=watch_doors("triton-load", DOORS),
    attempts=(attempt_load,),
)
