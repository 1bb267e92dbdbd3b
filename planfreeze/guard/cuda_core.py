"""The cuda.core road: compiling a ``Program``, linking, and kernels of PTX objects, which the driver compiles.

What counts as an attempt: every ``Program.compile``, also with a cache; every ``Linker.link``; and asking an object
of PTX or LTO IR for a kernel, its module or its handle, because that loads it. An object does not say whether it was
loaded before: take its kernels before arming. Objects of cubins load.

Not seen: ``repr()`` and comparison of a PTX object, which load it as well, but go past its attributes.
"""

from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, NoAttempt, Release, Report, user_location
from planfreeze.guard.attributes import set_attribute
from planfreeze.guard.gates import Gate
from planfreeze.guard.ptx import make_probe
from planfreeze.guard.roads import Door, Road, watch_doors

__all__ = ["road"]

PROGRAMS, LINKERS, OBJECTS = "cuda.core._program", "cuda.core._linker", "cuda.core._module"
COMPILED_BY_DRIVER = ("ptx", "ltoir")


def make_attempt(kernel: str, signature: str) -> Attempt:
    return Attempt(road="cuda-core", kernel=kernel, signature=signature, location=user_location("unknown:0"))


def describe_compile(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``Program.compile(self, target_type, name_expressions, ...)``."""
    target = arguments[1] if len(arguments) > 1 else options.get("target_type")
    names = arguments[2] if len(arguments) > 2 else options.get("name_expressions", ())
    facts = [f"target {target}", *map(str, names if isinstance(names, list | tuple) else ())]
    return make_attempt(f"a program by {getattr(arguments[0], 'backend', '?')}", ", ".join(facts))


def describe_link(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``Linker.link(self, target_type)``."""
    target = arguments[1] if len(arguments) > 1 else options.get("target_type")
    return make_attempt("a linked program", f"target {target}")


def describe_object(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe ``ObjectCode.get_kernel(self, name)`` and its like."""
    loaded = arguments[0]
    kind = str(loaded.code_type)
    if kind not in COMPILED_BY_DRIVER:
        return NO_ATTEMPT
    name = arguments[1] if len(arguments) > 1 else options.get("name", loaded.name)
    return Attempt(
        road="cuda-core",
        kernel=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        signature=f"from {kind}",
        location=user_location("unknown:0"),
        action="load",
    )


DOORS = (
    Door(module=PROGRAMS, path="Program.compile", describe=describe_compile),
    Door(module=LINKERS, path="Linker.link", describe=describe_link),
    Door(module=OBJECTS, path="ObjectCode.get_kernel", describe=describe_object),
    Door(module=OBJECTS, path="ObjectCode.get_module", describe=describe_object),
)
watch_methods = watch_doors("cuda-core", DOORS)


def install(module: ModuleType, report: Report) -> Release:
    """Put the hooks of one of the road's modules in place."""
    release_methods = watch_methods(module, report)
    if module.__name__ != OBJECTS:
        return release_methods
    release_handle = watch_handle(module.ObjectCode, report)

    def release() -> None:
        release_handle()
        release_methods()

    return release


def watch_handle(owner: Any, report: Report) -> Release:
    """Gate the property that loads an object."""
    original = vars(owner).get("handle")
    if not hasattr(original, "__get__"):
        raise errors.UnwatchableRoad("cuda-core", f"{OBJECTS}:ObjectCode.handle")
    gate = Gate(original.__get__, describe_object, report, is_covering=True)
    entry = property(lambda loaded: gate.enter((loaded,), {}), doc=original.__doc__)
    set_attribute(owner, "handle", entry)

    def release() -> None:
        gate.is_live = False
        if vars(owner).get("handle") is entry:
            set_attribute(owner, "handle", original)

    return release


def attempt_compile() -> object:
    """Compile no program at all: a program cannot be made without NVRTC's library, its method can be asked."""
    from cuda.core import Program

    return Program.compile(None, "cubin")


def attempt_link() -> object:
    """Link no program at all: a linker cannot be made without a library, its method can be asked."""
    from cuda.core import Linker

    return Linker.link(None, "cubin")


def attempt_load() -> object:
    """Take a kernel of PTX; unguarded, it fails for want of a driver."""
    from cuda.core import ObjectCode

    return ObjectCode.from_ptx(make_probe()).get_kernel("probe")


road = Road(
    name="cuda-core",
    package="cuda.core",
    modules=(PROGRAMS, LINKERS, OBJECTS),
    install=install,
    attempts=(attempt_compile, attempt_link, attempt_load),
)
