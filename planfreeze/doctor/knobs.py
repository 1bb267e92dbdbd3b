"""Knobs: environment variables by which compilers make other code, compile again, or do not compile at all."""

from collections.abc import Mapping

from msgspec import Struct

from planfreeze.key import COMPILE_ENVIRONMENT

__all__ = ["Setting", "find_differing", "find_hindering"]


class Setting(Struct, frozen=True, kw_only=True):
    """A variable of the environment with what follows from it.

    Parameters
    ----------
    name, value : str
        The variable; "unset" where it is not there.
    effect : str
        What follows.
    advice : str
        What to do about it.
    """

    name: str
    value: str
    effect: str
    advice: str


# Variables that change what Triton or CuTe generate. A build pins those in COMPILE_ENVIRONMENT and passes no other on.
CODE_KNOBS = {
    "triton": (
        "DISABLE_LLVM_OPT",
        "DISABLE_MMA_V3",
        "DISABLE_MMA_V5",
        "DISABLE_PTXAS_OPT",
        "LLVM_PASS_PLUGIN_PATH",
        "PTXAS_OPTIONS",
        "TRITON_DEBUG",
        "TRITON_ENABLE_ASAN",
        "TRITON_F32_DEFAULT",
        "TRITON_FORCE_DISABLE_FP_FUSION",
        "TRITON_INSTRUMENTATION_MODE",
        "TRITON_KERNEL_OVERRIDE",
        "TRITON_LIBDEVICE_PATH",
        "TRITON_MOCK_PTX_VERSION",
        "TRITON_OVERRIDE_ARCH",
        "TRITON_PLUGIN_PATHS",
        "TRITON_PTXAS_BLACKWELL_PATH",
        "TRITON_PTXAS_PATH",
        "USE_IR_LOC",
    ),
    "cute": (
        "CUTE_DSL_AUTO_M2S",
        "CUTE_DSL_COMPILER_BACKEND",
        "CUTE_DSL_COMPILER_OPT",
        "CUTE_DSL_DEBUG",
        "CUTE_DSL_ENABLE_ASSERTIONS",
        "CUTE_DSL_ENABLE_PYIR",
        "CUTE_DSL_LINEINFO",
        "CUTE_DSL_TOLERATE_M2M",
    ),
}
# What Triton 3.6 to 3.9 take where nothing is set.
DEFAULTS = {"TRITON_DEFAULT_FP_FUSION": "1"}
OFF = ("", "0", "false", "off", "no", "n")
DIFFERENT_CODE = "the store's programs were made with {wanted}; what {dialect} compiles here is other code"
UNPLANNED_ONLY = "planned programs stay as they are; set {name} alike where results are compared"
# Name, what follows when it is on, what to do.
HINDERING = (
    (
        "TRITON_ALWAYS_COMPILE",
        "Triton compiles every kernel again, whatever its cache holds",
        "unset TRITON_ALWAYS_COMPILE",
    ),
    (
        "TRITON_INTERPRET",
        "Triton kernels run in Python and compile nothing, so that a check here proves nothing for a GPU",
        "unset TRITON_INTERPRET",
    ),
    (
        "CUDA_FORCE_PTX_JIT",
        "the driver ignores compiled code and compiles PTX, which planned programs do not carry",
        "unset CUDA_FORCE_PTX_JIT",
    ),
    (
        "CUDA_FORCE_JIT",
        "the driver ignores compiled code and compiles what it finds beside it",
        "unset CUDA_FORCE_JIT",
    ),
    (
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        "torch.compile compiles in every process, whatever its caches hold",
        "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    ),
)
# As above; these only cost a compile where something is compiled anyway.
COSTLY = (
    (
        "CUDA_CACHE_DISABLE",
        "what the driver compiles from PTX is compiled again in every process; planned programs hold no PTX",
        "unset CUDA_CACHE_DISABLE if anything else here comes as PTX",
    ),
    (
        "CUTE_DSL_NO_CACHE",
        "the CuTe DSL compiles in every process what it is asked for; planned programs do not ask it",
        "unset CUTE_DSL_NO_CACHE if anything else here uses the CuTe DSL",
    ),
    (
        "CUTE_DSL_DISABLE_FILE_CACHING",
        "the CuTe DSL compiles in every process what it is asked for; planned programs do not ask it",
        "unset CUTE_DSL_DISABLE_FILE_CACHING if anything else here uses the CuTe DSL",
    ),
)


def find_differing(
    environ: Mapping[str, str], made_with: Mapping[str, Mapping[str, str]] = COMPILE_ENVIRONMENT
) -> tuple[Setting, ...]:
    """Return the variables that make a compiler generate other code here than it did for a store.

    Parameters
    ----------
    environ : mapping
        The environment here.
    made_with : mapping
        For each dialect the variables that were set when the store's programs were compiled; no other was.
    """
    return tuple(
        Setting(
            name=name,
            value=environ.get(name, "unset"),
            effect=DIFFERENT_CODE.format(wanted=pinned.get(name, "unset"), dialect=dialect),
            advice=UNPLANNED_ONLY.format(name=name),
        )
        for dialect, pinned in made_with.items()
        for name in sorted({*pinned, *CODE_KNOBS.get(dialect, ())})
        if environ.get(name, DEFAULTS.get(name)) != pinned.get(name, DEFAULTS.get(name))
    )


def find_hindering(environ: Mapping[str, str]) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """Return the variables that hinder frozen serving, and those that only make other compiles costlier."""
    hindering, costly = (
        tuple(
            Setting(name=name, value=environ[name], effect=effect, advice=advice)
            for name, effect, advice in known
            if environ.get(name, "").lower() not in OFF
        )
        for known in (HINDERING, COSTLY)
    )
    return hindering, costly
