"""Compile Triton kernels without a device."""

import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from planfreeze.compilers import CompiledProgram, load_kernel
from planfreeze.errors import CompileFailed
from planfreeze.family import TRITON_TYPES, Argument, LaunchInfo, TritonSource
from planfreeze.target import Target

__all__ = ["compile_program"]

DIVISIBLE_BY_16 = [["tt.divisibility", 16]]


def compile_program(source: TritonSource, arguments: tuple[Argument, ...], target: Target) -> CompiledProgram:
    """Compile one kernel. Every pointer of 16-byte alignment is declared so; no scalar is specialised.

    Raises
    ------
    CompileFailed
        The kernel's parameters are not the family's arguments, or it needs scratch memory.
    """
    kernel = load_kernel(source.kernel)
    constants: dict[str, Any] = dict(source.constants)
    types = {a.name: ("*" if a.is_pointer else "") + TRITON_TYPES[a.dtype] for a in arguments}
    runtime = tuple(name for name in kernel.arg_names if name not in constants)
    if runtime != tuple(types):
        raise CompileFailed(source.kernel, f"kernel takes {runtime}, its family declares {tuple(types)}")
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {a.name for a in arguments if a.is_pointer and a.alignment % 16 == 0}
    attributes = {(i,): DIVISIBLE_BY_16 for i, name in enumerate(kernel.arg_names) if name in aligned}
    with tempfile.TemporaryDirectory(prefix="planfreeze-triton-") as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        compiled = triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=GPUTarget("cuda", target.sm, 32),
            options={"num_warps": source.num_warps, "num_stages": source.num_stages},
        )
    facts = compiled.metadata
    scratch = {name: getattr(facts, name, 0) or 0 for name in ("global_scratch_size", "profile_scratch_size")}
    if any(scratch.values()):
        raise CompileFailed(source.kernel, f"it needs scratch memory in every launch: {scratch}")
    return CompiledProgram(
        cubin=compiled.asm["cubin"],
        launch=LaunchInfo(
            block=(source.num_warps * 32, 1, 1),
            shared_bytes=facts.shared,
            is_cooperative=bool(getattr(facts, "launch_cooperative_grid", False)),
            is_programmatic=bool(getattr(facts, "launch_pdl", False)),
        ),
    )
