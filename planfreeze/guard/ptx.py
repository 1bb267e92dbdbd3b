"""The PTX road: text handed to the driver, which compiles it, and the driver's linker; through cuda.bindings.

What counts as an attempt: loading something that holds no machine code, and opening a linker. A cubin loads. The
driver's own cache of compiled PTX is not looked into: whether it has a result is known only after the load.

Not seen: a fat binary whose cubins are all for other architectures, names of these functions kept in a container,
and the driver loaded by ctypes or called from C++.
"""

from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, Describe, NoAttempt, user_location
from planfreeze.guard.attributes import exchange_bound_names
from planfreeze.guard.images import Read, is_machine_code, read_file, read_image
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import shorten

__all__ = ["describe_file", "describe_image", "make_probe", "road"]

DRIVER, RUNTIME = "cuda.bindings.driver", "cuda.bindings.runtime"
SHOWN_BYTES = 4096


def describe_image(road_name: str, position: int, name: str) -> Describe:
    """Return what describes a call that loads the image at a position, or of a name."""

    def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
        image = arguments[position] if len(arguments) > position else options.get(name)
        return describe_load(road_name, read_image(image), "an image in memory")

    return describe


def describe_file(road_name: str, position: int, name: str) -> Describe:
    """Return what describes a call that loads the file at a position, or of a name."""

    def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
        path = arguments[position] if len(arguments) > position else options.get(name)
        read = read_file(path)
        # No such file: the call fails by itself.
        return NO_ATTEMPT if read is None else describe_load(road_name, read, str(path))

    return describe


def describe_load(road_name: str, read: Read | None, source: str) -> Attempt | NoAttempt:
    if read is None or is_machine_code(read):
        # Nothing there can be read: the driver refuses it, too.
        return NO_ATTEMPT
    return Attempt(
        road=road_name,
        kernel=source,
        signature="holds no machine code" + find_target(read),
        location=user_location("unknown:0"),
        action="load",
    )


def find_target(read: Read) -> str:
    """Return what PTX says it was made for."""
    head = read_head(read)
    target = head.partition(b".target")[2].split(b"\n")[0]
    return shorten(f"; PTX for {target.decode(errors='replace').strip()}") if target else ""


def read_head(read: Read) -> bytes:
    """Read the beginning of a text, which ends with a zero where its length is not known."""
    head = b""
    while len(head) < SHOWN_BYTES and (byte := read(len(head), 1)) not in (b"", b"\0"):
        head += byte
    return head


def describe_linker(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``cuLinkCreate``."""
    return Attempt(road="ptx", kernel="a linked program", signature="", location=user_location("unknown:0"))


def make_probe() -> bytes:
    """Make the smallest PTX."""
    return b".version 8.0\n.target sm_90\n.address_size 64\n\0"


def attempt_load() -> object:
    """Load PTX; unguarded, it fails for want of a context."""
    from cuda.bindings import driver

    return driver.cuModuleLoadData(make_probe())


def attempt_library() -> object:
    """Load PTX as a library."""
    from cuda.bindings import driver

    return driver.cuLibraryLoadData(make_probe(), [], [], 0, [], [], 0)


def attempt_link() -> object:
    """Open a linker."""
    from cuda.bindings import driver

    return driver.cuLinkCreate(0, [], [])


def attempt_runtime() -> object:
    """Load PTX through the runtime library."""
    from cuda.bindings import runtime

    return runtime.cudaLibraryLoadData(make_probe(), [], [], 0, [], [], 0)


DOORS = (
    Door(module=DRIVER, path="cuModuleLoadData", describe=describe_image("ptx", 0, "image")),
    Door(module=DRIVER, path="cuModuleLoadDataEx", describe=describe_image("ptx", 0, "image")),
    Door(module=DRIVER, path="cuModuleLoadFatBinary", describe=describe_image("ptx", 0, "fatCubin")),
    Door(module=DRIVER, path="cuModuleLoad", describe=describe_file("ptx", 0, "fname")),
    Door(module=DRIVER, path="cuLibraryLoadData", describe=describe_image("ptx", 0, "code")),
    Door(module=DRIVER, path="cuLibraryLoadFromFile", describe=describe_file("ptx", 0, "fileName")),
    Door(module=DRIVER, path="cuLinkCreate", describe=describe_linker),
    Door(module=RUNTIME, path="cudaLibraryLoadData", describe=describe_image("ptx", 0, "code")),
    Door(module=RUNTIME, path="cudaLibraryLoadFromFile", describe=describe_file("ptx", 0, "fileName")),
)

road = Road(
    name="ptx",
    package="cuda.bindings",
    modules=(DRIVER, RUNTIME),
    install=exchange_bound_names(watch_doors("ptx", DOORS), [door.path for door in DOORS]),
    attempts=(attempt_load, attempt_library, attempt_link, attempt_runtime),
)
