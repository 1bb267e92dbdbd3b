"""Compile recorded CuTe DSL functions without a device: the cubin of their kernels, the object of their host code."""

import inspect
import json
import os
import platform

import cutlass
import cutlass.cute as cute
from cutlass.base_dsl.compiler import HostTarget

from planfreeze import errors
from planfreeze.compilers import CompiledProgram, check_no_paths
from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.compilers.dumps import check_libraries, clear_dump_folder
from planfreeze.family import LaunchInfo, RecordedSource
from planfreeze.host_objects import HOST_FACTS, HOST_OBJECT, SYMBOL_PREFIX, read_host_object
from planfreeze.recorded.cute_calls import make_call, make_options
from planfreeze.recorded.cute_function import CuteFunctionPayload
from planfreeze.recorded.values import pairs, unwrap
from planfreeze.target import Target

__all__ = ["compile_program"]

# What every processor of a kind runs, by the name that ``platform.machine()`` gives the kind.
HOST_BASELINES = {
    "x86_64": "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64",
    "aarch64": "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic",
}


def compile_program(source: RecordedSource, target: Target, text: KeyedText) -> CompiledProgram:
    """Compile one function as ``cute.compile`` would, with placeholders for its arguments.

    The host object holds the cubin too: it is what the DSL's own runtime loads. A function that launches no kernel
    has no cubin; its object is the program then.

    Raises
    ------
    CompileFailed
        The function cannot be made again here, this process compiles for another architecture, the function links a
        library, or the host code needs more from its callers than the DSL's runtime gives a loaded function.
    UnkeyedCapture
        The function uses something that is not in its key.
    """
    latched = os.environ.get("CUTE_DSL_ARCH")
    if latched != target.arch:
        raise errors.CompileFailed(source.kernel, f"this process compiles for {latched}, not {target.arch}")
    payload = CuteFunctionPayload.from_fields(dict(source.facts))
    for name, value in pairs(payload.options):
        check_no_paths(source.kernel, name, value)
    try:
        function, arguments, named = make_call(payload)
        compile_with = cute.compile[make_options(payload)] if payload.options else cute.compile
    except (errors.UnnameableConstant, errors.Unrecordable) as error:
        raise errors.CompileFailed(source.kernel, str(error)) from error
    passed = (unwrap(value) for value in (*arguments, *named.values()) if inspect.isfunction(value))
    check_captures(source.kernel, (function, *passed), text, are_cells_keyed=True)
    dumps = clear_dump_folder(source.kernel)
    compiled = compile_with(function, *arguments, **named)
    check_libraries(source.kernel, dumps)
    if compiled.total_added_arguments:
        raise errors.CompileFailed(source.kernel, f"its callers pass {compiled.total_added_arguments} workspaces")
    # Code for the processor of this host would not run on an older one, nor be the same on another.
    compiled.host_target = HostTarget(HOST_BASELINES[platform.machine()])
    # The DSL would pickle the signature into the object; whoever serves it reads the function's own.
    compiled.execution_args.signature = inspect.Signature()
    data = compiled.dump_to_object(SYMBOL_PREFIX)
    try:
        host_object = read_host_object(data)
    except errors.InvalidHostObject as error:
        raise errors.CompileFailed(source.kernel, str(error)) from error
    facts = {
        "dsl": cutlass.__version__,
        "entry": compiled.function_name,
        "kernels": compiled.kernel_info,
    }
    return CompiledProgram(
        cubin=host_object.cubin or data,
        launch=LaunchInfo(block=(0, 0, 0)),  # the host code launches, each kernel with its own
        companions=((HOST_OBJECT, data), (HOST_FACTS, json.dumps(facts).encode())),
    )
