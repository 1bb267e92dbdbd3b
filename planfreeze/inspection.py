"""What a cubin must be before anyone keeps or loads it: one kernel, of the right architecture and parameters."""

import re

from planfreeze import errors
from planfreeze.elf import Cubin, Kernel, read_cubin
from planfreeze.family import Definition, LaunchInfo, RecordedSource, TritonSource
from planfreeze.target import Target

__all__ = ["find_tools", "inspect_cubin"]

# Triton ends every parameter list with the addresses of two scratch buffers, unused when their sizes are zero.
TRITON_TRAILING_BYTES = (8, 8)
# What ptxas writes into a note of newer cubins: "Cuda compilation tools, release 13.4, V13.4.59".
TOOLS = rb"Cuda compilation tools, release [0-9.]+, V([0-9.]+)"


def inspect_cubin(name: str, data: bytes, definition: Definition, launch: LaunchInfo, target: Target) -> Kernel:
    """Read a cubin and check it against its definition and launch facts.

    Parameters
    ----------
    name : str
        The program, for messages.

    Returns
    -------
    Kernel
        The one kernel of the cubin.

    Raises
    ------
    InvalidCubin
        The bytes are no cubin.
    WrongArch
        It is made for another architecture.
    UnexpectedCubin
        It holds no kernel or several, its parameters are not the family's arguments, or it
        was compiled for another block or asks for more shared memory than the architecture has.
    """
    if isinstance(definition.source, RecordedSource) and definition.source.dialect == "cute":
        return inspect_function(name, data, target)
    cubin = read_cubin(data)
    check_arch(name, cubin, target)
    if len(cubin.kernels) != 1:
        raise errors.UnexpectedCubin(name, f"it holds {len(cubin.kernels)} kernels, not one")
    kernel = cubin.kernels[0]
    declared = tuple(argument.size_bytes for argument in definition.arguments)
    if isinstance(definition.source, TritonSource):
        declared += TRITON_TRAILING_BYTES
    # A compiler's own runtime launches by the signature it compiled; planfreeze passes nothing to such a kernel.
    if kernel.parameter_sizes != declared and not isinstance(definition.source, RecordedSource):
        raise errors.UnexpectedCubin(
            name, f"its parameters have {kernel.parameter_sizes} bytes, the family's arguments {declared}"
        )
    if kernel.required_block not in (None, launch.block):
        raise errors.UnexpectedCubin(name, f"it was compiled for blocks of {kernel.required_block}, not {launch.block}")
    # A cubin counts what the system reserves for a block as its own; the limit of a block does not include it.
    shared_bytes = max(0, kernel.shared_bytes - target.reserved_shared_bytes) + launch.shared_bytes
    if shared_bytes > target.max_shared_bytes:
        raise errors.UnexpectedCubin(
            name, f"a block needs {shared_bytes} of {target.max_shared_bytes} bytes of shared memory"
        )
    return kernel


def find_tools(data: bytes) -> str | None:
    """Return the version of the CUDA tools that made a cubin, such as ``13.4.59``; None when it does not say."""
    found = re.search(TOOLS, data)
    return found[1].decode() if found else None


def check_arch(name: str, cubin: Cubin, target: Target) -> None:
    """Check that a cubin is for the exact architecture."""
    if cubin.arch != target.arch:
        raise errors.WrongArch(name, cubin.arch, target.arch)


def inspect_function(name: str, data: bytes, target: Target) -> Kernel:
    """Check the kernels that a CuTe DSL function launches; return the first with the most that any of them needs.

    A function that launches none is its host object.
    """
    from planfreeze.host_objects import is_host_object, read_host_object  # not needed for programs without host code

    if is_host_object(data):
        try:
            read_host_object(data)
        except errors.InvalidHostObject as error:
            raise errors.InvalidCubin(str(error)) from error
        kernels: tuple[Kernel, ...] = ()
    else:
        cubin = read_cubin(data)
        check_arch(name, cubin, target)
        kernels = cubin.kernels
        if not kernels:
            raise errors.UnexpectedCubin(name, "it holds no kernel")
    return Kernel(
        symbol=kernels[0].symbol if kernels else "",
        registers=max((kernel.registers for kernel in kernels), default=0),
        stack_bytes=max((kernel.stack_bytes for kernel in kernels), default=0),
        shared_bytes=max((kernel.shared_bytes for kernel in kernels), default=0),
        max_threads=None,
        required_block=None,
        parameter_offsets=kernels[0].parameter_offsets if kernels else (),
        parameter_sizes=kernels[0].parameter_sizes if kernels else (),
    )
