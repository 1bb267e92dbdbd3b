"""Compilers: from a program's source and target to bytes. Only a compile worker imports these modules."""

from importlib import import_module
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.family import LaunchInfo

__all__ = ["CompiledProgram", "check_no_paths", "load_kernel"]


class CompiledProgram(Struct, frozen=True, kw_only=True):
    """What a compile gives: the cubin, and the launch facts that only the compiler knows.

    Parameters
    ----------
    companions : tuple of (str, bytes)
        What else a compiler's own runtime needs to launch the program, by name.
    log : str
        What the assembler said of the program.
    """

    cubin: bytes
    launch: LaunchInfo
    companions: tuple[tuple[str, bytes], ...] = ()
    log: str = ""


def load_kernel(reference: str) -> Any:
    """Import the kernel named as "module:attribute"."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError as error:
        raise errors.CompileFailed(reference, f"{module} has no {attribute}") from error


def check_no_paths(kernel: str, name: str, options: object) -> None:
    """Refuse an option whose text, for the assembler or the passes, names a file; compiles run in an empty folder.

    Raises
    ------
    CompileFailed
        It holds a path.
    """
    named = next((option for option in str(options).split() if "/" in option), None)
    if named is not None:
        raise errors.CompileFailed(kernel, f"its option {name} has {named}, which names a file and no part of a key")
