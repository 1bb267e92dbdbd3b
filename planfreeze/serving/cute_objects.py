"""Host objects in this process: checked, loaded by the DSL's own runtime, and run. Nothing is compiled."""

import ctypes
import functools
import inspect
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planfreeze import errors
from planfreeze.host_objects import HOST_FACTS, HOST_OBJECT, SYMBOL_PREFIX, HostFacts, HostObject, read_host_object
from planfreeze.recorded.cute_arguments import is_constant
from planfreeze.recorded.cute_calls import BoundCall
from planfreeze.recorded.values import pairs
from planfreeze.resolve import ResolvedProgram

__all__ = ["check_host_objects", "load_function", "run_function"]

# The linker's own.
LINKER_SYMBOLS = frozenset({"_GLOBAL_OFFSET_TABLE_"})


def check_host_objects(programs: Iterable[ResolvedProgram], arch: str) -> None:
    """Check that this process can run programs, before the first one runs.

    Parameters
    ----------
    arch : str
        The architecture that the DSL compiles for here: that of the device, unless it is told another.

    Raises
    ------
    HostObjectUnusable
        One was built with another version of the DSL or for another architecture or host, does not hold its own
        cubin, or needs a function that no runtime library here has; or a runtime library is missing.
    """
    import cutlass

    for program in programs:
        facts, host_object, data = read_companions(program)
        if facts.dsl != cutlass.__version__:
            raise errors.HostObjectUnusable(
                program.name,
                f"it was built with nvidia-cutlass-dsl {facts.dsl}, and {cutlass.__version__} is installed",
            )
        if host_object.machine != platform.machine():
            raise errors.HostObjectUnusable(program.name, f"it is for {host_object.machine}, not {platform.machine()}")
        if host_object.cubin is not None and program.record.arch != arch:
            raise errors.HostObjectUnusable(
                program.name, f"it is for {program.record.arch}, and the DSL is set to {arch}"
            )
        if (host_object.cubin or data) != program.cubin:
            raise errors.HostObjectUnusable(program.name, "its host object launches other kernels than its cubin holds")
        libraries = runtime_libraries(program.name)
        for symbol in host_object.undefined:
            if symbol not in LINKER_SYMBOLS and not any(hasattr(library, symbol) for library in libraries):
                raise errors.HostObjectUnusable(
                    program.name, f"no runtime library of the DSL has the function {symbol}"
                )


def read_companions(program: ResolvedProgram) -> tuple[HostFacts, HostObject, bytes]:
    """Return what a program's companions say."""
    companions = dict(program.companions)
    for name in (HOST_OBJECT, HOST_FACTS):
        if name not in companions:
            raise errors.HostObjectUnusable(program.name, f"it has no {name}")
    data = companions[HOST_OBJECT]
    return HostFacts.decode(companions[HOST_FACTS]), read_host_object(data), data


def runtime_libraries(program: str) -> tuple[ctypes.CDLL, ...]:
    """Load the DSL's runtime libraries, as its own loader does, and return them with the process itself."""
    from cutlass.base_dsl.env_manager import get_prefix_dsl_libs

    named = get_prefix_dsl_libs("CUTE_DSL")
    if not named:
        raise errors.HostObjectUnusable(program, "the DSL finds no runtime library libcute_dsl_runtime.so")
    return load_libraries(program, tuple(named.split(":")))


@functools.lru_cache
def load_libraries(program: str, paths: tuple[str, ...]) -> tuple[ctypes.CDLL, ...]:
    """Load libraries, named in the order they are looked through; the process itself is last."""
    for path in paths:
        if not Path(path).exists():
            raise errors.HostObjectUnusable(program, f"the runtime library {path} is not there")
    return (*(ctypes.CDLL(path) for path in paths), ctypes.CDLL(None))


def load_function(program: ResolvedProgram, call: BoundCall) -> Any:
    """Load a program as what ``cute.compile`` returns for the call: callable with the arguments of a run.

    Each loaded function is of its own: unloading one leaves the others alone.
    """
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine
    from cutlass.base_dsl.jit_executor import JitFunctionArtifacts
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    facts, host_object, data = read_companions(program)
    dsl = call.body._dsl_object
    engine = BinaryExecutionEngine(data, dsl.get_shared_libs(), True)
    address = engine.lookup(f"_mlir_{SYMBOL_PREFIX}__mlir_ciface_{facts.entry}")
    if not address:
        raise errors.HostObjectUnusable(program.name, f"its host object has no entry {facts.entry}")
    artifacts = JitFunctionArtifacts(PTX=None, CUBIN=None, SASS=None, MLIR=None)
    artifacts.CUBIN = host_object.cubin
    signature = expanded_signature(dsl, call)
    function = CudaDialectJitCompiledFunction(
        None,
        engine,
        ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address),
        signature,
        facts.entry,
        facts.kernels,
        dsl.envar.jit_time_profiling,
        artifacts,
        prefix=SYMBOL_PREFIX,
        load_from_binary=True,
        has_gpu_module=host_object.cubin is not None,
    )
    execution = function.execution_args
    execution.set_adapter_scope(dsl._jit_arg_adapter_scope)
    positional, named = dsl.extract_dynamic_args(call.body, call.bound.args, call.bound.kwargs, signature)
    execution.record_arg_specs_from_compile_args(tuple(positional), named)
    return function


def expanded_signature(dsl: Any, call: BoundCall) -> inspect.Signature:
    """Return the signature with variable parameters made named ones, as the DSL compiles it."""
    signature = call.bound.signature
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if not any(parameter.kind in variable for parameter in signature.parameters.values()):
        return signature
    expanded: inspect.Signature = dsl._expand_varargs_varkw(call.bound.args, call.bound.kwargs, signature)
    return expanded


def run_function(function: Any, program: ResolvedProgram, call: BoundCall) -> None:
    """Run a loaded function with the arguments of a direct call.

    Raises
    ------
    DSLCudaRuntimeError
        The DSL's own error, with the name of CUDA's and a note of the program, when a launch fails.
    """
    execution = function.execution_args
    values = execution.get_rectified_args_from_original_args(call.bound.args, call.bound.kwargs)
    # What tracing baked in is no argument of the compiled function, whatever is passed for it.
    baked = {name for name, field in pairs(program.payload.to_fields()["arguments"]) if is_constant(field)}
    names = execution.signature.parameters
    taken = tuple(None if name in baked else value for name, value in zip(names, values, strict=True))
    pointers, adapted = execution.generate_execution_args(taken, {})
    try:
        function.run_compiled_program(pointers)
    except Exception as error:
        error.add_note(f"It was served from a plan as {program.name}")
        raise
    del adapted  # what the pointers point into lives until here
