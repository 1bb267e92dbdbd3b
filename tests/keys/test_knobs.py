"""Environment knobs: every one that a compiler lists or reads, set by the caller, changes neither keys nor bytes."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from planfreeze import key as keys
from planfreeze import toolchain, workers
from planfreeze.cache.digest import digest_of
from planfreeze.compilers.knobs import KEEPING, is_steering
from planfreeze.errors import CompileFailed
from planfreeze.key import COMPILE_ENVIRONMENT, differing_labels
from planfreeze.keyed import key_plan
from planfreeze.target import target
from planfreeze.workers import PASSED_ON, Worker

SM_90A = target("sm_90a")
# Valid and unlike the default, by the kind that the registry states.
UNUSUAL = {
    "env_bool": ("1", "0"),
    "env_opt_bool": ("1", "0"),
    "<class 'bool'>": ("1", "0"),
    "env_int": ("7",),
    "<class 'int'>": ("7",),
    "int | None": ("7",),
    "env_opt_str": ("unusual",),
    "env_str": ("unusual",),
    "env_str_callable_default": ("/nowhere",),
    "env_class": ("nowhere:Manager",),
    "env_nvidia_tool": ("/nowhere/tool",),
    "<class 'str'>": ("unusual",),
    "str | None": ("unusual",),
}
# What a compile asks for besides its knobs, and why that changes no byte.
BESIDE_KNOBS = {
    r"HOME|PATH|PYTHON\w+|LANG\w*|LC_\w+|TMPDIR|TEMP|TMP|USER|USERNAME|COLUMNS|LINES|_PYTHON_SYSCONFIGDATA_NAME": (
        "Python's own; the worker's are fixed, or tested below to change nothing"
    ),
    r"NPY_\w+|NUMPY_\w+|OPENBLAS_\w+|GOTO_NUM_THREADS|OMP_\w+|GFORTRAN_\w+|OPENSSL_\w+|MAKEFLAGS|KMP_\w+|MKL_\w+": (
        "of numpy, OpenSSL and their libraries, which the CuTe DSL imports and which make no code"
    ),
    r"CUDA_HOME|CUDA_PATH|CUDA_ROOT|CUDA_VISIBLE_DEVICES|CUDA_PREFER_SPINLOCKS_ON_HOST|CUDA_7a3f9c2d": (
        "of the CUDA libraries: where a toolkit is, how they lock; set in the test of a toolkit of the caller's"
    ),
}


def is_listed(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in BESIDE_KNOBS)


def test_every_name_that_a_compile_reads_is_a_knob_that_workers_watch_or_is_listed_with_a_reason(registry, reads):
    assert len(reads.python) > 50 and len(reads.machine) > 30, "both kinds of reading were seen"
    names = {*registry["variables"], *reads.python, *reads.machine}
    left = {name for name in names if not is_steering(name) and name not in KEEPING and not is_listed(name)}
    assert left - {"CC"} == set(), "CC is the host compiler's, which launchers are built with and no cubin is"


def test_the_registries_and_a_compile_that_is_watched_agree(registry, reads):
    """Names that are read and in no registry are the machine code's own: a worker has none of them."""
    unlisted = {name for name in {*reads.python, *reads.machine} - {*registry["variables"]} if is_steering(name)}
    assert unlisted & set(workers.worker_environment(SM_90A, "/nowhere")) == {"CUTE_DSL_KEEP"}


def test_watching_a_compile_changes_nothing(reads, blobs):
    assert list(reads.blobs) == blobs


def show(worker, task, toys):
    with pytest.raises(CompileFailed) as raised:
        worker.compile(task(toys.families.CopyPayload(mode="show")))
    seen = dict(re.findall(r"<(\w+)=([^>]*)>", str(raised.value)))
    return {name: value for name, value in seen.items() if name not in ("TMPDIR", "CUTE_DSL_DUMP_DIR")}


@pytest.mark.parametrize("turn", [0, 1])
def test_no_knob_that_the_caller_sets_reaches_a_worker_a_key_or_a_byte(
    registry, reads, toys, built, task, blobs, toolchains, monkeypatch, turn
):
    with Worker(SM_90A) as started:
        before = show(started, task, toys)
    values = {name: UNUSUAL[kind] for name, kind in registry["variables"].items()}
    values |= {name: ("1", "0") for name in {*reads.python, *reads.machine} if is_steering(name) and name not in values}
    assert len(values) > 120
    for name, choices in values.items():
        monkeypatch.setenv(name, choices[turn % len(choices)])
    with Worker(SM_90A) as started:
        made = [started.compile(task(payload)) for payload in built.plan.payloads]
        assert show(started, task, toys) == before
    assert [digest_of(one.cubin) for one in made] == blobs
    assert [program.key for program in key_plan(built.plan, toolchains)] == [program.key for program in built.keyed]


@pytest.mark.parametrize("value", [None, "", "0", "1", "false", "true"], ids=repr)
def test_a_switch_of_the_caller_that_is_unset_empty_or_off_gives_one_key(built, toolchains, monkeypatch, value):
    for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_DISABLE_LINE_INFO", "TRITON_DEBUG", "CUTE_DSL_LINEINFO"):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert [program.key for program in key_plan(built.plan, toolchains)] == [program.key for program in built.keyed]
    worker = workers.worker_environment(SM_90A, "/nowhere")
    assert {name: worker[name] for name in COMPILE_ENVIRONMENT["triton"]} == COMPILE_ENVIRONMENT["triton"]
    assert not {"TRITON_DEBUG", "CUTE_DSL_LINEINFO"} & worker.keys()


@pytest.mark.parametrize("name", COMPILE_ENVIRONMENT["triton"])
def test_a_pinned_variable_with_another_value_changes_bytes_and_key(
    built, toys, compiles, blobs, toolchains, make_package, monkeypatch, name
):
    make_package("fused", add_triton=FUSED)
    from fused.families import AddPayload

    payload = AddPayload(block=64)
    assert compiles.run(payload) != compiles.run(payload, **{name: "0"})
    monkeypatch.setitem(keys.COMPILE_ENVIRONMENT["triton"], name, "0")
    for before, program in zip(built.keyed, key_plan(built.plan, toolchains), strict=True):
        is_triton = "add" in program.name
        assert differing_labels(before.key, program.key) == (("environment",) if is_triton else ())


def test_a_worker_that_sees_another_pinned_value_refuses_by_name(built, task, toys, monkeypatch):
    made = workers.worker_environment
    monkeypatch.setattr(workers, "worker_environment", lambda *a: {**made(*a), "TRITON_DEFAULT_FP_FUSION": "0"})
    with Worker(SM_90A) as started, pytest.raises(CompileFailed, match="while TRITON_DEFAULT_FP_FUSION was 0"):
        started.compile(task(toys.families.AddPayload(block=64)))


FUSED = """
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(source, out, count, block: tl.constexpr):
        offsets = tl.arange(0, block)
        value = tl.load(source + offsets).to(tl.float32)
        tl.store(out + offsets, (value * value + 0.1 * value).to(tl.int32))
    """

TOOLS = (
    "ptxas",
    "ptxas-blackwell",
    "nvcc",
    "cicc",
    "nvlink",
    "fatbinary",
    "cuobjdump",
    "nvdisasm",
    "llc",
    "opt",
    "lld",
)
LIBRARIES = (
    *("libtriton.so", "libcute_dsl_runtime.so", "libcuda.so.1", "libnvvm.so", "libnvptxcompiler.so"),
    *("libnvJitLink.so.13", "libnvrtc.so.13", "libMLIR.so", "libLLVM.so"),
)


def test_tools_libraries_and_a_toolkit_of_the_caller_are_not_used(tmp_path, compiles, built, blobs):
    """What reaches a worker from its caller: it must find no other compiler through it."""
    toolkit, home, ran = tmp_path / "cuda", tmp_path / "home", tmp_path / "ran"
    for folder in (toolkit / "bin", toolkit / "lib64", toolkit / "nvvm" / "libdevice", home / ".triton" / "override"):
        folder.mkdir(parents=True)
    for tool in TOOLS:
        path = toolkit / "bin" / tool
        path.write_text(f"#!/bin/sh\necho {tool} >> {ran}\nexit 3\n")
        path.chmod(0o755)
    for library in LIBRARIES:
        (toolkit / "lib64" / library).write_text("no library")
    (toolkit / "nvvm" / "libdevice" / "libdevice.10.bc").write_text("no bitcode")
    (home / ".triton" / "config").write_text("[nvidia]\nptxas = /nowhere")
    passed_on = {
        "PATH": f"{toolkit / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(toolkit / "lib64"),
        "HOME": str(home),
        "VIRTUAL_ENV": str(toolkit),
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
    }
    assert passed_on.keys() == set(PASSED_ON)
    set_by_modules = {"CUDA_HOME": str(toolkit), "CUDA_PATH": str(toolkit), "CUDA_7a3f9c2d": "1"}
    made = compiles.run(*built.plan.payloads, **passed_on, **set_by_modules)
    assert made == blobs and not ran.exists()
    assert [path for path in home.rglob("*") if path.is_file()] == [home / ".triton" / "config"]


def read_versions(data: bytes) -> set[bytes]:
    """Return the versions of NVIDIA's tools that a file names."""
    return set(re.findall(rb"Cuda compilation tools, release [\d.]+, (V[\d.]+)", data))


def test_the_assembler_that_ran_is_one_that_the_fingerprint_covers(toys, task):
    """Cubins name the version of their assembler; those of some older assemblers for sm_90a do not.

    Triton's is a program of its own, the DSL's is within its library.
    """
    with Worker(target("sm_120a")) as started:
        payloads = (toys.families.AddPayload(block=64), toys.families.CopyPayload())
        named = [read_versions(started.compile(task(payload, "sm_120a")).cubin) for payload in payloads]
    assert [len(versions) for versions in named] == [1, 1]
    assemblers = [path for path in files_of("triton") if path.name.startswith("ptxas")]
    assert named[0] in [read_versions(subprocess.check_output([path, "--version"])) for path in assemblers]
    libraries = [path for path in files_of("nvidia-cutlass-dsl-libs-cu12") if path.suffix == ".so"]
    assert any(named[1] <= read_versions(path.read_bytes()) for path in libraries)


def files_of(distribution: str) -> list[Path]:
    """Return the files that a fingerprint is made over."""
    found = toolchain.find_distribution(distribution)
    return [Path(path) for _, path in toolchain.list_files(found)]
