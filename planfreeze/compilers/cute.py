"""Compile CuTe DSL kernels without a device. The architecture is latched when the DSL is imported."""

import inspect
import os
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream

from planfreeze import errors
from planfreeze.compilers import CompiledProgram, load_kernel
from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.compilers.dumps import check_libraries, clear_dump_folder, read_module
from planfreeze.compilers.launches import read_launch
from planfreeze.constants import thaw_constant
from planfreeze.elf import read_cubin
from planfreeze.family import Argument, CuteSource
from planfreeze.key import COMPILE_OPTIONS
from planfreeze.target import Target

__all__ = ["compile_program"]

ASSEMBLER_REMARKS = "remarks{ptx}"
NUMBERS = {
    "bool": cutlass.Boolean,
    **{
        f"{letter}{bits}": getattr(cutlass, f"{kind}{bits}")
        for letter, kind in (("i", "Int"), ("u", "Uint"))
        for bits in (8, 16, 32, 64)
    },
    **{"f32": cutlass.Float32, "f64": cutlass.Float64},
}


def compile_program(
    source: CuteSource, arguments: tuple[Argument, ...], target: Target, text: KeyedText
) -> CompiledProgram:
    """Compile one kernel class or function; parameters are flat addresses and numbers.

    Parameters
    ----------
    text : KeyedText
        The text that was keyed, which has to account for all that the kernel captures.

    Raises
    ------
    CompileFailed
        This process compiles for another architecture, a function's parameters are not the family's arguments and
        constants, the kernel links a library, or the DSL gave no cubin.
    UnfreezableKernel, UnkeyedCapture
        A function does something else than launch one kernel with its own arguments; the kernel uses something that
        is not in its key.
    """
    latched = os.environ.get("CUTE_DSL_ARCH")
    if latched != target.arch:
        raise errors.CompileFailed(source.kernel, f"this process compiles for {latched}, not {target.arch}")
    named = load_kernel(source.kernel)
    constants = {name: thaw_constant(value) for name, value in source.constants}
    check_captures(source.kernel, (named, *constants.values()), text)
    placeholders = {a.name: cutlass.Int64(0) if a.is_pointer else NUMBERS[a.dtype](0) for a in arguments}
    dumps = clear_dump_folder(source.kernel)
    if source.launch is not None:
        kernel, passed = named(launch=source.launch, **constants), [*placeholders.values(), make_fake_stream()]
    else:
        kernel, passed = named, order_values(source.kernel, named, arguments, placeholders, constants)
    compiled = cute.compile(kernel, *passed, options=COMPILE_OPTIONS["cute"])
    check_libraries(source.kernel, dumps)
    cubin = compiled.artifacts.CUBIN
    if not cubin:
        raise errors.CompileFailed(source.kernel, "the DSL gave no cubin")
    launch = source.launch or read_launch(source.kernel, read_module(dumps), str(compiled.ir_module))
    if any(function.stack_bytes for function in read_cubin(bytes(cubin)).kernels):
        # Only for what the assembler prints of it: the option that makes it print is kept in the cubin.
        cute.compile(kernel, *passed, options=f"{COMPILE_OPTIONS['cute']} {ASSEMBLER_REMARKS}")
    return CompiledProgram(cubin=bytes(cubin), launch=launch)


def order_values(
    kernel: str,
    function: Any,
    arguments: tuple[Argument, ...],
    placeholders: dict[str, Any],
    constants: dict[str, Any],
) -> list[Any]:
    """Return what a ``@cute.jit`` function is called with, in its own order.

    Raises
    ------
    CompileFailed
        Its parameters are not the family's arguments in order, its constants, and a stream; or one is annotated with
        another type.
    """
    wrapped = getattr(function, "__wrapped__", None)
    if not inspect.isfunction(function) or wrapped is None:
        raise errors.CompileFailed(kernel, f"a {type(function).__name__} without launch facts is no @cute.jit function")
    types = {a.name: cutlass.Int64 if a.is_pointer else NUMBERS[a.dtype] for a in arguments}
    taken, passed = [], []
    rest = []
    for name, parameter in inspect.signature(wrapped, eval_str=True).parameters.items():
        if name in constants:
            passed.append(constants[name])
        elif name in types:
            if parameter.annotation is not types[name]:
                found = parameter.annotation
                spelled = (
                    "without annotation" if found is parameter.empty else f"as {getattr(found, '__name__', found)}"
                )
                raise errors.ContradictoryMarking(kernel, name, types[name].__name__, spelled)
            taken.append(name)
            passed.append(placeholders[name])
        else:
            rest.append(name)
            passed.append(make_fake_stream())
    if tuple(taken) != tuple(types) or len(rest) != 1 or len(passed) != len(types) + len(constants) + 1:
        declared = (*types, *constants, "stream")
        found = tuple(inspect.signature(wrapped).parameters)
        raise errors.CompileFailed(kernel, f"it takes {found}, its family declares {declared}")
    return passed
