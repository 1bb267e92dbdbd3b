"""Compile options: each one that a compiler lists, flipped alone, gives another key or is refused by its name."""

import importlib
import textwrap
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from planfreeze.cache.digest import digest_of
from planfreeze.compilers import CompiledProgram
from planfreeze.constants import freeze_constant
from planfreeze.errors import CompileFailed
from planfreeze.family import family_of
from planfreeze.key import Key, differing_labels, make_key, source_roots
from planfreeze.recorded.cute_calls import REFUSED_OPTIONS, SILENT_OPTIONS
from planfreeze.recorded.cute_function import CuteFunctionPayload
from planfreeze.recorded.triton_kernel import FILE_OPTIONS, TritonKernelPayload
from planfreeze.sources import read_sources
from planfreeze.target import target
from planfreeze.toolchain import Toolchain
from planfreeze.workers import Task, Worker

SM_90A = target("sm_90a")
FAMILIES = """
    from typing import ClassVar
    from planfreeze.family import Definition, TritonSource, family, pointer, scalar
    from planfreeze.payload import Field, Payload

    class MixedPayload(Payload):
        family_name: ClassVar[str] = "mixed"
        warps: int = 4
        stages: int = 3
        options: tuple[Field, ...] = ()

    @family(MixedPayload, version=1)
    def mixed(payload, target):
        return Definition(
            arguments=(pointer("source", "f32", len), pointer("out", "f32", len), scalar("count")),
            source=TritonSource(
                kernel="optional.mixed_triton:mixed_kernel",
                constants=(),
                num_warps=payload.warps,
                num_stages=payload.stages,
                options=payload.options,
            ),
            grid=lambda scalars, resident_blocks: (1, 1, 1),
        )
    """
# A product of matrices in a pipelined loop, a sum of products, a function of libdevice: what options are about.
MIXED = """
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    @triton.jit
    def mixed_kernel(source, out, count):
        places = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        total = tl.zeros((16, 16), tl.float32)
        for step in range(count):
            total = tl.dot(tl.load(source + places), tl.load(source + step * 256 + places), total)
        tl.store(out + places, libdevice.exp(total * total + 0.1 * total))
    """
PLAIN = """
    from cutlass import cute

    @cute.kernel
    def kernel():
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            cute.printf("thread {}", thread)

    @cute.jit
    def run():
        kernel().launch(grid=[1, 1, 1], block=[32, 1, 1])
    """
# Valid values unlike the default, where its type alone does not say one.
FLIPPED = {
    "arch": "sm80",
    "backend_name": "hip",
    "default_dot_input_precision": "ieee",
    "extern_libs": (("libdevice", "/nowhere/libdevice.bc"),),
    "instrumentation_mode": "fpsan",
    "ir_override": "/nowhere/kernel.ttir",
    "max_num_imprecise_acc_default": 0,
    "maxnreg": 64,
    "min_shared_mem": 65536,
    "ptx_options": "--opt-level 1",
    "ptx_version": 82,
    "ExtraCompilerOpts": "enable-iket=true",
    "GPUArch": "sm_100a",
    "HostTarget": "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic",
    "OptLevel": 1,
    "PtxasOptions": "--opt-level 1",
}


def flip(name, default):
    if name in FLIPPED:
        return FLIPPED[name]
    match default:
        case bool():
            return not default
        case int():
            return default * 2
        case list():
            return tuple(default[:-1])
        case str():
            return "other"
    raise AssertionError(f"give FLIPPED a valid value of the option {name}, whose default is {default!r}")


@dataclass(frozen=True)
class Tried:
    """What became of a payload: its key, and the program or why there is none."""

    key: Key
    compiled: CompiledProgram | None
    reason: str

    @property
    def result(self):
        return None if self.compiled is None else (digest_of(self.compiled.cubin), self.compiled.launch)


@pytest.fixture(scope="module")
def attempt(tmp_path_factory):
    """Compile a payload in the one worker of this module; the key is made as if the payload had no options."""
    folder = tmp_path_factory.mktemp("options") / "optional"
    folder.mkdir()
    for name, text in (("__init__", ""), ("families", FAMILIES), ("mixed_triton", MIXED), ("plain_cute", PLAIN)):
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder.parent))
        families = importlib.import_module("optional.families")
        with Worker(SM_90A) as worker:

            def run(payload, base=None):
                family = family_of(payload)
                definition = family.define(payload, SM_90A)
                sources = read_sources(source_roots(family, definition))
                dialect = "cute" if isinstance(payload, CuteFunctionPayload) else "triton"
                stated = (family, base or payload, definition, SM_90A, sources, Toolchain(dialect, "", ""))
                key = make_key(*stated)
                try:
                    compiled = worker.compile(Task(family.reference, payload, SM_90A, sources))
                except CompileFailed as error:
                    return Tried(key, None, str(error))
                return Tried(key, compiled, "")

            run.families = families
            yield run


def state(name, value):
    return ((name, freeze_constant(name, value)),)


def check_flips(attempt, base, variants):
    """Try variants of a payload by the option that differs; return their results, all with a key of their own."""
    plain = attempt(base)
    assert plain.compiled is not None, plain.reason
    tried = {name: attempt(variant, base) for name, variant in variants.items()}
    for name, found in tried.items():
        assert differing_labels(plain.key, found.key) == ("definition",), name
    return plain, tried


# Refusals for another reason than that an option is not one to declare.
OTHER_REFUSALS = {"clc": "clc=True requires", "instrumentation_mode": "scratch memory in every launch"}
STATED_BY_THE_PLAN = {"arch", "backend_name", "warp_size"}


def test_every_option_of_a_triton_kernel_flipped_alone_gives_another_key_or_is_refused_by_name(attempt, registry):
    base = attempt.families.MixedPayload()
    options = registry["triton"]
    variants = {name: replace(base, options=state(name, flip(name, default))) for name, (_, default) in options.items()}
    variants |= {"num_warps": replace(base, warps=8), "num_stages": replace(base, stages=2)}
    plain, tried = check_flips(attempt, base, variants)
    refused = {name: found.reason for name, found in tried.items() if found.compiled is None}
    for name in FILE_OPTIONS | STATED_BY_THE_PLAN:
        assert f"its option {name} " in refused[name]
    left = set(refused) - FILE_OPTIONS - STATED_BY_THE_PLAN
    assert {name: OTHER_REFUSALS[name] in refused[name] for name in left} == dict.fromkeys(left, True), refused
    changed = {name for name, found in tried.items() if found.result not in (None, plain.result)}
    assert {"num_warps", "num_stages", "num_ctas", "maxnreg", "ptx_options", "enable_fp_fusion"} <= changed
    assert {"enable_reflect_ftz", "launch_cooperative_grid", "launch_pdl", "debug"} <= changed
    assert tried["num_ctas"].compiled.launch.cluster == (2, 1, 1)
    assert tried["num_warps"].compiled.launch.block == (256, 1, 1)


def test_an_option_spelled_at_its_default_is_another_key_for_the_same_bytes(attempt, registry):
    """A default belongs to a version of the compiler: spelled, it is stated; left out, it is the compiler's choice."""
    base = attempt.families.MixedPayload()
    spelled = {
        name: replace(base, options=state(name, tuple(default) if isinstance(default, list) else default))
        for name, (_, default) in registry["triton"].items()
        if default is not None and name not in FILE_OPTIONS | STATED_BY_THE_PLAN | {"num_warps", "num_stages"}
    }
    plain, tried = check_flips(attempt, base, spelled)
    assert {name for name, found in tried.items() if found.result != plain.result} == set()


@pytest.mark.parametrize("name", ["num_wraps", "num_warps", "num_stages"])
def test_an_option_that_triton_would_ignore_or_a_field_states_is_refused_by_name(attempt, name):
    found = attempt(attempt.families.MixedPayload(options=state(name, 8)))
    assert found.compiled is None and name in found.reason


@pytest.mark.parametrize("text", ["--options-file /etc/hostname", "-optf=/etc/hostname", "--opt-level 1 ./more.ptx"])
def test_an_option_for_the_assembler_that_names_a_file_is_refused(attempt, text):
    for payload in (
        attempt.families.MixedPayload(options=state("ptx_options", text)),
        replace(RECORDED, options=state("ptx_options", text)),
        replace(CUTE, options=state("PtxasOptions", text)),
    ):
        assert "which names a file and no part of a key" in attempt(payload).reason


RECORDED = TritonKernelPayload(
    kernel="optional.mixed_triton:mixed_kernel",
    signature=(("source", "*fp32"), ("out", "*fp32"), ("count", "i32")),
    attributes=(((0,), (("tt.divisibility", 16),)), ((1,), (("tt.divisibility", 16),))),
)
CUTE = CuteFunctionPayload(function="optional.plain_cute:run")


def test_every_option_of_a_recorded_triton_kernel_flipped_alone_gives_another_key_or_is_refused(attempt, registry):
    options = registry["triton"]
    variants = {
        name: replace(RECORDED, options=state(name, flip(name, default))) for name, (_, default) in options.items()
    }
    plain, tried = check_flips(attempt, RECORDED, variants)
    refused = {name: found.reason for name, found in tried.items() if found.compiled is None}
    left = set(refused) - FILE_OPTIONS
    assert {name: OTHER_REFUSALS[name] in refused[name] for name in left} == dict.fromkeys(left, True), refused
    changed = {name for name, found in tried.items() if found.result not in (None, plain.result)}
    assert {"num_warps", "num_stages", "num_ctas", "maxnreg", "ptx_options", "enable_fp_fusion"} <= changed


def test_every_option_of_a_recorded_cute_function_flipped_alone_gives_another_key_or_is_refused(attempt, registry):
    variants = {
        name: replace(CUTE, options=state(name, flip(name, default))) for name, (_, default) in registry["cute"].items()
    }
    plain, tried = check_flips(attempt, CUTE, variants)
    refused = {name for name, found in tried.items() if found.compiled is None}
    assert all(f"option {name}" in tried[name].reason for name in refused), {n: tried[n].reason for n in refused}
    assert refused == REFUSED_OPTIONS.keys() | SILENT_OPTIONS
    changed = {name for name, found in tried.items() if found.result not in (None, plain.result)}
    assert {"OptLevel", "PtxasOptions", "GenerateLineInfo"} & changed
