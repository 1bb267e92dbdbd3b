"""Compile CuTe DSL kernels without a device. The architecture is latched when the DSL is imported."""

import os
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream

from planfreeze.compilers import CompiledProgram, load_kernel
from planfreeze.errors import CompileFailed
from planfreeze.family import Argument, CuteSource
from planfreeze.key import COMPILE_OPTIONS
from planfreeze.target import Target

__all__ = ["compile_program"]

PLACEHOLDERS = {"i32": cutlass.Int32, "i64": cutlass.Int64}


def compile_program(source: CuteSource, arguments: tuple[Argument, ...], target: Target) -> CompiledProgram:
    """Compile one kernel class; parameters are flat addresses and integers.

    Raises
    ------
    CompileFailed
        This process compiles for another architecture, or the DSL gave no cubin.
    """
    latched = os.environ.get("CUTE_DSL_ARCH")
    if latched != target.arch:
        raise CompileFailed(source.kernel, f"this process compiles for {latched}, not {target.arch}")
    kernel = load_kernel(source.kernel)(launch=source.launch, **dict(source.constants))
    placeholders = [cutlass.Int64(0) if a.is_pointer else PLACEHOLDERS[a.dtype](0) for a in arguments]
    clear_dump_folder(source.kernel)
    compiled = cute.compile(kernel, *placeholders, make_fake_stream(), options=COMPILE_OPTIONS["cute"])
    cubin = compiled.artifacts.CUBIN
    if not cubin:
        raise CompileFailed(source.kernel, "the DSL gave no cubin")
    return CompiledProgram(cubin=bytes(cubin), launch=source.launch)


def clear_dump_folder(kernel: str) -> None:
    """Empty the folder that the DSL writes cubins to and reads them back from.

    All variants of a kernel get one file name there, so that two processes with one folder take each other's cubins.
    """
    named = os.environ.get("CUTE_DSL_DUMP_DIR")
    if named is None:
        raise CompileFailed(kernel, "CUTE_DSL_DUMP_DIR does not name a folder of this process alone")
    for left_over in Path(named).iterdir():
        left_over.unlink()
