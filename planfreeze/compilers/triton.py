"""Compile Triton kernels without a device."""

import tempfile
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction

from planfreeze import errors
from planfreeze.compilers import CompiledProgram, check_no_paths, load_kernel
from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.compilers.triton_target import make_current
from planfreeze.constants import thaw_constant
from planfreeze.dtypes import TRITON_TYPES
from planfreeze.family import Argument, LaunchInfo, TritonSource
from planfreeze.recorded.triton_kernel import FILE_OPTIONS
from planfreeze.target import Target
from planfreeze.tuning import find_hook

__all__ = ["compile_program"]

SPELLED = {
    "specialized": "specialized",
    "unaligned": "in do_not_specialize_on_alignment",
    "free": "in do_not_specialize",
}
"""What markings are called where they are declared."""
STATED_ELSEWHERE = {
    "arch": "a plan's target says it",
    "backend_name": "there is one backend",
    "num_stages": "a source has a field of that name",
    "num_warps": "a source has a field of that name",
    "warp_size": "every target has warps of 32",
}
DIVISIBLE_BY_16 = [["tt.divisibility", 16]]


def compile_program(
    source: TritonSource, arguments: tuple[Argument, ...], target: Target, text: KeyedText
) -> CompiledProgram:
    """Compile one kernel, with the specialisation that its source and the alignment of its pointers say.

    Parameters
    ----------
    text : KeyedText
        The text that was keyed, which has to account for all that the kernel captures.

    Raises
    ------
    CompileFailed
        The kernel's parameters are not the family's arguments, an option is not one to declare, or it
        needs scratch memory.
    UnfreezableKernel, ContradictoryMarking, UnkeyedCapture
        Its decorators do something around a launch; it is marked in another way than its family says; it uses
        something that is not in its key.
    """
    kernel = find_function(source.kernel, load_kernel(source.kernel))
    check_markings(source, kernel)
    constants: dict[str, Any] = {name: thaw_constant(value) for name, value in source.constants}
    check_captures(source.kernel, (kernel, *constants.values()), text)
    types = {a.name: type_name(a) for a in arguments}
    runtime = tuple(name for name in kernel.arg_names if name not in constants)
    if runtime != tuple(types):
        raise errors.CompileFailed(source.kernel, f"kernel takes {runtime}, its family declares {tuple(types)}")
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    divisible = {a.name for a in arguments if a.is_pointer and a.alignment % 16 == 0} | set(source.divisible)
    attributes = {(i,): DIVISIBLE_BY_16 for i, name in enumerate(kernel.arg_names) if name in divisible}
    gpu = GPUTarget("cuda", target.sm, 32)
    make_current(gpu)
    options = {name: thaw_constant(value) for name, value in source.options}
    check_options(source.kernel, options, make_backend(gpu).parse_options({}))
    with tempfile.TemporaryDirectory(prefix="planfreeze-triton-") as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        compiled = triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=gpu,
            options={"num_warps": source.num_warps, "num_stages": source.num_stages, **options},
        )
    facts = compiled.metadata
    scratch = {name: getattr(facts, name, 0) or 0 for name in ("global_scratch_size", "profile_scratch_size")}
    if any(scratch.values()):
        raise errors.CompileFailed(source.kernel, f"it needs scratch memory in every launch: {scratch}")
    return CompiledProgram(
        cubin=compiled.asm["cubin"],
        launch=LaunchInfo(
            # Warps that take other parts of a kernel come on top of the declared ones.
            block=(facts.num_warps * facts.warp_size, 1, 1),
            cluster=(facts.num_ctas, 1, 1),
            shared_bytes=facts.shared,
            is_cooperative=bool(getattr(facts, "launch_cooperative_grid", False)),
            is_programmatic=bool(getattr(facts, "launch_pdl", False)),
        ),
    )


def check_options(kernel: str, options: Mapping[str, Any], known: Any) -> None:
    """Refuse compile options that Triton would ignore, and those that say what a plan or a file says.

    Raises
    ------
    CompileFailed
        Names the first option.
    """
    for name in options:
        if not hasattr(known, name):
            raise errors.CompileFailed(kernel, f"Triton has no option {name}, and would ignore it")
        if name in FILE_OPTIONS:
            raise errors.CompileFailed(kernel, f"its option {name} names files, which are no part of a key")
        if name in STATED_ELSEWHERE:
            raise errors.CompileFailed(kernel, f"its option {name} is not one to declare: {STATED_ELSEWHERE[name]}")
    check_no_paths(kernel, "ptx_options", options.get("ptx_options"))


def type_name(argument: Argument) -> str:
    """Return an argument's type as Triton's signatures spell it."""
    return "*" * argument.is_pointer + TRITON_TYPES[argument.dtype]


def find_function(reference: str, kernel: Any) -> Any:
    """Return the function below a kernel's decorators.

    Raises
    ------
    UnfreezableKernel
        A decorator, or the function, runs something before or after each launch.
    """
    while not isinstance(kernel, JITFunction):
        hook = find_hook(kernel) if hasattr(kernel, "configs") else None
        if hook is not None:
            reason = f"its autotuner has {hook}, which a frozen launch would leave out"
            raise errors.UnfreezableKernel(reference, reason, "Do it in the caller, and declare the kernel without")
        if not hasattr(kernel, "fn"):
            raise errors.CompileFailed(reference, f"a {type(kernel).__name__} is no @triton.jit function")
        kernel = kernel.fn
    if getattr(kernel, "pre_run_hooks", ()):
        reason = f"it has {len(kernel.pre_run_hooks)} hooks, run before every launch"
        raise errors.UnfreezableKernel(reference, reason, "Do it in the caller, and add no hook to the kernel")
    return kernel


def check_markings(source: TritonSource, kernel: Any) -> None:
    """Hold what a family says of its parameters against the kernel.

    Raises
    ------
    ContradictoryMarking
        Names the first parameter of which they say different things.
    """
    if source.markings is None:
        return
    declared = {name: (marking, annotations) for name, marking, annotations in source.markings}
    for parameter in kernel.params:
        found = marking_of(parameter)
        if parameter.is_constexpr:
            if found != "specialized":
                raise errors.ContradictoryMarking(source.kernel, parameter.name, "a constant", SPELLED[found])
            if parameter.name in declared:
                raise errors.ContradictoryMarking(source.kernel, parameter.name, "an argument", "as tl.constexpr")
            continue
        if parameter.name not in declared:
            continue  # the comparison of parameters reports it
        marking, annotations = declared[parameter.name]
        if marking != found:
            raise errors.ContradictoryMarking(source.kernel, parameter.name, SPELLED[marking], SPELLED[found])
        if parameter.annotation_type not in annotations:
            spelled = " or ".join(name or "without annotation" for name in annotations)
            annotation = parameter.annotation_type or "without annotation"
            raise errors.ContradictoryMarking(source.kernel, parameter.name, spelled, annotation)


def marking_of(parameter: Any) -> str:
    """Return what a parameter is told apart by, as :data:`planfreeze.declared.specialization.Marking` names it."""
    if parameter.do_not_specialize:
        return "free"
    return "unaligned" if parameter.do_not_specialize_on_alignment else "specialized"
