"""Launches: what a ``@cute.jit`` function does around its kernel, read from what CuTe DSL 4.8 makes of it.

A frozen program is the kernel alone, called with the function's own arguments. So the function has to launch one
kernel, once and always, with its arguments as they came, and with a block and shared memory that are constants.
"""

import re
from collections.abc import Sequence
from typing import NoReturn

from msgspec import Struct

from planfreeze import errors
from planfreeze.family import LaunchInfo

__all__ = ["read_launch"]

VALUE = r"%[\w.#-]+"
# What a launch may be configured by, with how its operands become launch facts.
CREATE = re.compile(rf"({VALUE}) = cuda\.launch_cfg\.create[^(]*\((.*?)\) :")
SETTING = re.compile(rf"cuda\.launch_cfg\.(\w+)\[{VALUE}\]\s*\(?(.*?)\)? :")
LAUNCH = re.compile(rf"cuda\.launch_ex @\S+?<{VALUE}>\s*\((.*?)\)")
SIZE = re.compile(rf"({VALUE}) = cute\.kernel_smem_size")
CONFIGURATION = re.escape("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>")
CONSTANT = re.compile(rf"({VALUE}) = arith\.constant (-?\d+|true|false)\b")


class Host(Struct, frozen=True):
    """The host function of a module.

    Parameters
    ----------
    arguments : tuple of str
        Its arguments without the stream.
    lines : tuple of (int, str)
        Its lines, each with how deep it is nested; 1 is the function's own level.
    constants : dict
        Values that are constant.
    sizes : set
        Values that are the shared memory that the DSL counted for the kernel.
    """

    arguments: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]
    constants: dict[str, int]
    sizes: frozenset[str]


def read_launch(kernel: str, module: str, lowered: str) -> LaunchInfo:
    """Return the facts of the one launch in a module of MLIR text.

    Parameters
    ----------
    kernel : str
        The function, for messages.
    module, lowered : str
        The module as the function was traced, and as it was compiled in the end: shared memory that a launch leaves
        to the DSL has its size there alone.

    Raises
    ------
    UnfreezableKernel
        There is no launch, or several, or one under a condition; it is given something else than the function's
        arguments in order; its block, cluster or shared memory is no constant.
    """
    host = read_host(kernel, module)
    launches = [(depth, found[1]) for depth, line in host.lines if (found := LAUNCH.search(line))]
    if len(launches) != 1:
        refuse(kernel, f"it launches {len(launches)} kernels", "Make one family of each kernel")
    depth, passed = launches[0]
    if depth != 1:
        refuse(kernel, "it launches under a condition or in a loop", "Decide in the caller whether to launch")
    if tuple(split(passed)) != host.arguments:
        expected = f"its {len(host.arguments)} arguments as they came, in order"
        refuse(kernel, f"it gives its kernel ({passed}), not {expected}", "Compute in the kernel, not around it")
    return make_info(kernel, host, lowered)


def make_info(kernel: str, host: Host, lowered: str) -> LaunchInfo:
    """Make the launch facts of what a host function configures."""

    def constant(name: str, what: str) -> int:
        if name not in host.constants:
            refuse(kernel, f"{what} of its launch is no constant", f"Pass {what} as a number, or as a constant")
        return host.constants[name]

    def constants(text: str, what: str) -> list[int]:
        return [constant(name, what) for name in split(text)]

    facts: dict[str, object] = {}
    for _, line in host.lines:
        if found := CREATE.search(line):
            block = re.search(r"blockDim = \((.*?)\)", found[2])
            shared = re.search(rf"dynamicSmemBytes = ({VALUE})", found[2])
            facts["block"] = tuple(constants(block[1] if block else "", "block"))
            size = read_shared_bytes(lowered) if shared and shared[1] in host.sizes else None
            facts["shared_bytes"] = constant(shared[1] if shared else "", "smem") if size is None else size
        elif found := SETTING.search(line):
            name, values = found[1], constants(found[2], found[1])
            read_setting(kernel, name, values, facts)
    return LaunchInfo(**facts)  # type: ignore[arg-type]


FLAGS = {"cooperative": "is_cooperative", "programmatic_stream_serialization_allowed": "is_programmatic"}


def read_setting(kernel: str, name: str, values: Sequence[int], facts: dict[str, object]) -> None:
    """Add one further property of a launch to its facts."""
    if name in FLAGS:
        facts[FLAGS[name]] = bool(values[0])
    elif name == "cluster_dim":
        facts["cluster"] = tuple(values)
    else:
        refuse(kernel, f"its launch sets {name}, which a frozen launch does not", f"Launch without {name}")


def read_host(kernel: str, module: str) -> Host:
    """Find the host function in a module."""
    start = module.find("  func.func @")
    if start < 0:
        refuse(kernel, "the DSL made no host function of it", "Name a function decorated with @cute.jit")
    head, *body = module[start:].splitlines()
    parameters = re.findall(rf"({VALUE}): (\S+?)[,)]", head)
    lines, depth = [], 1
    for line in body:
        depth -= line.lstrip().startswith("}")
        if depth == 0:
            break
        lines.append((depth, line))
        depth += line.rstrip().endswith("{")
    constants = {}
    for _, line in lines:
        if found := CONSTANT.search(line):
            constants[found[1]] = int(found[2]) if found[2].lstrip("-").isdigit() else int(found[2] == "true")
        elif found := re.search(rf"({VALUE}) = arith\.(?:ext[su]i|trunci|index_cast) ({VALUE})", line):
            constants.update({found[1]: constants[found[2]]} if found[2] in constants else {})
    arguments = tuple(name for name, kind in parameters if kind != "!cuda.stream")
    sizes = frozenset(found[1] for _, line in lines if (found := SIZE.search(line)))
    return Host(arguments, tuple(lines), constants, sizes)


def read_shared_bytes(lowered: str) -> int | None:
    """Return the dynamic shared memory that a compiled host function writes into its one launch configuration."""
    places = set(re.findall(rf"({VALUE}) = llvm\.getelementptr {VALUE}\[0, 2\] : .*?{CONFIGURATION}", lowered))
    stored = [
        value for value, place in re.findall(rf"llvm\.store ({VALUE}), ({VALUE}) : i64", lowered) if place in places
    ]
    if len(stored) != 1:
        return None
    found = re.search(rf"{re.escape(stored[0])} = llvm\.mlir\.constant\((\d+) : i64\)", lowered)
    return int(found[1]) if found else None


def split(values: str) -> list[str]:
    """Split operands."""
    return [value.strip() for value in values.split(",") if value.strip()]


def refuse(kernel: str, reason: str, remedy: str) -> NoReturn:
    raise errors.UnfreezableKernel(kernel, reason, remedy)
