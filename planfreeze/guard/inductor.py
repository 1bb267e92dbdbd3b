"""The Inductor road: lowering of graphs, and kernels that generated code hands to Inductor's workers.

What counts as an attempt: entering Inductor with a graph, also from autograd for a backward graph that was put off
until it is needed, and also where its cache on disk would have had the result; and a kernel that generated code asks
for while it is loaded, from that cache or from a package. It is refused in the process that asks: the workers may
have been started before the guard was armed, and know nothing of it. Running a compiled graph comes to none of this,
nor does loading a package of AOTInductor, which is a library.

Not seen: work that was handed to the workers before the guard was armed.
"""

import inspect
from types import FunctionType, ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, Describe, NoAttempt, Release, Report, user_location
from planfreeze.guard.gates import install_gate
from planfreeze.guard.roads import Door, Road, release_all, watch_doors
from planfreeze.guard.values import describe_value, shorten

__all__ = ["road"]

LOWERING, KERNELS, LIBRARIES, WORKERS = (
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    "torch._inductor.codecache",
    "torch._inductor.compile_worker.subproc_pool",
)


def make_attempt(kernel: str, signature: str) -> Attempt:
    return Attempt(
        road="inductor",
        kernel=shorten(kernel),
        signature=shorten(signature),
        location=user_location("unknown:0"),
    )


def describe_graph(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``compile_fx(graph, inputs, ...)`` and its like: the calls of the graph, and its inputs."""
    graph, inputs = (*arguments[:2], options.get("example_inputs", ()))[:2] if arguments else (None, ())
    nodes = getattr(getattr(graph, "graph", None), "nodes", ())
    targets = [node.target for node in nodes if node.op.startswith("call")]
    calls = [str(target) if "." in str(target) else getattr(target, "__name__", str(target)) for target in targets]
    values = [describe_value(value) for value in inputs] if isinstance(inputs, list | tuple) else []
    return make_attempt(f"a graph of {' '.join(calls) or 'no calls'}", ", ".join(values))


def describe_kernel(method: str, parameters: tuple[str, ...]) -> Describe:
    """Return what describes a call of one of the methods by which generated code asks for kernels."""

    def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
        call = dict(zip(parameters, arguments, strict=False)) | options
        types = call.get("argtypes")
        return make_attempt(
            str(call.get("kernel_name", f"a kernel of {method}")), ", ".join(types) if isinstance(types, list) else ""
        )

    return describe


def describe_library(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``CppCodeCache.load_async(cls, source, ...)``."""
    return make_attempt("a C++ library", "")


def describe_job(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe ``SubprocPool.submit(self, function, ...)``."""
    function = arguments[1] if len(arguments) > 1 else options.get("job_fn")
    name = getattr(getattr(function, "func", function), "__name__", repr(function))
    # A job that does nothing: it asks whether the workers have started.
    return NO_ATTEMPT if name == "_get_ready" else make_attempt(f"a kernel, by {name} in a worker", "")


def watch_kernels(module: ModuleType, report: Report) -> Release:
    """Gate every method that takes the source of a kernel; which there are differs between versions of torch."""
    owner = getattr(module, "AsyncCompile", object)
    methods = {
        name: tuple(inspect.signature(function).parameters)
        for name, function in vars(owner).items()
        if isinstance(function, FunctionType)
    }
    found = {name: names for name, names in methods.items() if {"source_code", "source"}.intersection(names)}
    if not {"triton", "cpp_pybinding"} <= found.keys():
        raise errors.UnwatchableRoad("inductor", f"{KERNELS}:AsyncCompile")
    releases = [install_gate(owner, name, describe_kernel(name, names), report) for name, names in found.items()]
    return lambda: release_all(releases)


DOORS = (
    Door(module=LOWERING, path="compile_fx", describe=describe_graph),
    Door(module=LOWERING, path="compile_fx_aot", describe=describe_graph),
    # Second line, and the first for backward graphs.
    Door(module=LOWERING, path="compile_fx_inner", describe=describe_graph),
    # Before torch tries out which vector instructions the C++ compiler has: it would remember that it has none.
    Door(module=LIBRARIES, path="CppCodeCache.load_async", describe=describe_library),
    Door(module=WORKERS, path="SubprocPool.submit", describe=describe_job),
)
watch_others = watch_doors("inductor", DOORS)


def install(module: ModuleType, report: Report) -> Release:
    """Put the hooks of one of the road's modules in place."""
    return watch_kernels(module, report) if module.__name__ == KERNELS else watch_others(module, report)


def attempt_lowering() -> object:
    """Lower a graph of one addition."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(torch.fx.symbolic_trace(lambda x: x + 1), [torch.zeros(1)])


def attempt_inner() -> object:
    """Lower it past the first door."""
    import torch
    from torch._inductor.compile_fx import compile_fx_inner

    return compile_fx_inner(torch.fx.symbolic_trace(lambda x: (x + 1,)), [torch.zeros(1)])


def attempt_kernel() -> object:
    """Ask for a kernel that no compiler would accept."""
    from torch._inductor.async_compile import AsyncCompile

    return AsyncCompile().cpp_pybinding([], "#error a deliberate attempt of planfreeze")


road = Road(
    name="inductor",
    package="torch",
    modules=(LOWERING, KERNELS, LIBRARIES, WORKERS),
    install=install,
    attempts=(attempt_lowering, attempt_inner, attempt_kernel),
)
