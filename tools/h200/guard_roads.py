"""One deliberately unplanned call per road: refused while a session is frozen, fine after it is closed."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from cuda.bindings import driver, nvrtc
from cuda.core import ObjectCode, Program, ProgramOptions

import planfreeze
from planfreeze import errors

__all__ = ["PREPARE", "try_roads"]

CUDA_TEXT = 'extern "C" __global__ void probe_{name}(int *out) {{ out[threadIdx.x] = {value}; }}'
Attempt = Callable[[], Any]


@triton.jit
def fill_kernel(out, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's habit
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, offsets, mask=offsets < count)


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (64, 128)], key=["count"])
@triton.jit
def tuned_kernel(out, count, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, offsets, mask=offsets < count)


def make_out(count: int = 4096, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="cuda")


def fill(count: int, block: int, *, dtype: torch.dtype = torch.int32) -> None:
    fill_kernel[(triton.cdiv(count, block),)](make_out(dtype=dtype), count, BLOCK=block)


def prepare_triton() -> Attempt:
    """A constant that no call had before."""
    fill(1024, 64)
    return lambda: fill(1024, 128)


def prepare_divisibility() -> Attempt:
    """A count that is no multiple of 16, where all before were."""
    fill(1024, 256)
    return lambda: fill(1025, 256)


def prepare_warmup() -> Attempt:
    return lambda: fill_kernel.warmup(make_out(), 1024, BLOCK=512, grid=(1,))


def prepare_autotune() -> Attempt:
    """A tuning key that was not benchmarked, of kernels that are compiled."""
    for count in (1024, 2048):
        tuned_kernel[(64,)](make_out(), count)
    tuned_kernel.cache.popitem()
    return lambda: tuned_kernel[(64,)](make_out(), 2048)


def prepare_load() -> Attempt:
    """A program that was compiled before and never loaded."""
    fill_kernel.warmup(torch.int64, 1024, BLOCK=64, grid=(1,))
    return lambda: fill(1024, 64, dtype=torch.int64)


def prepare_gcc() -> Attempt:
    from triton.runtime.build import compile_module_from_src

    text = '#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "guard_probe", 0, -1, 0};\n'
    text += "PyMODINIT_FUNC PyInit_guard_probe(void) { return PyModule_Create(&d); }\n"
    return lambda: compile_module_from_src(src=text, name="guard_probe")


def prepare_recompile() -> Attempt:
    """A type that the compiled function was not compiled for."""
    compiled = torch.compile(lambda x: torch.sin(x) * 2 + 1)
    compiled(torch.ones(64, device="cuda"))
    return lambda: compiled(torch.ones(64, device="cuda", dtype=torch.float64))


def prepare_first_compile() -> Attempt:
    compiled = torch.compile(lambda x: torch.cos(x) * 3)
    return lambda: compiled(torch.ones(64, device="cuda"))


def prepare_inductor() -> Attempt:
    from torch._inductor import compile as compile_graph

    example = torch.ones(48, device="cuda")
    graph = torch.fx.symbolic_trace(lambda x: (torch.tanh(x) + x,))
    return lambda: compile_graph(graph, [example])(example)


def prepare_extension() -> Attempt:
    from torch.utils.cpp_extension import load_inline

    text = "int guard_probe(int x) { return x + 1; }"
    return lambda: load_inline("guard_probe_extension", text, functions=["guard_probe"])


def prepare_spawn() -> Attempt:
    return lambda: subprocess.run(["nvcc", "-cubin", "-o", "/dev/null", "/dev/null"], capture_output=True, check=False)


def prepare_core() -> Attempt:
    options = ProgramOptions(arch="sm_90")
    return lambda: Program(CUDA_TEXT.format(name="core", value=1), "c++", options).compile("cubin")


def prepare_bindings() -> Attempt:
    text = CUDA_TEXT.format(name="bindings", value=2).encode()

    def compile_text() -> None:
        _, program = nvrtc.nvrtcCreateProgram(text, b"probe.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"])
        assert not status.value, status

    return compile_text


def prepare_cupy() -> Attempt:
    import cupy

    out = cupy.empty(32, dtype=cupy.int32)
    kernel = cupy.RawKernel(CUDA_TEXT.format(name="cupy", value=3), "probe_cupy")
    return lambda: kernel((1,), (32,), (out,))


def prepare_cupy_elementwise() -> Attempt:
    import cupy

    ones = cupy.ones(32, dtype=cupy.float32)
    return lambda: cupy.ElementwiseKernel("T x", "T y", "y = x * 17", "probe_elementwise")(ones)


def prepare_torch_nvrtc() -> Attempt:
    out = make_out(32)

    def compile_text() -> None:
        kernel = torch.cuda._compile_kernel(CUDA_TEXT.format(name="torch", value=4), "probe_torch")
        kernel((1, 1, 1), (32, 1, 1), (out,))

    return compile_text


def make_ptx(name: str) -> bytes:
    options = ProgramOptions(arch="compute_90")
    code = Program(CUDA_TEXT.format(name=name, value=5), "c++", options).compile("ptx").code
    return bytes(code)


def prepare_core_ptx() -> Attempt:
    text = make_ptx("core_ptx")
    return lambda: ObjectCode.from_ptx(text).get_kernel("probe_core_ptx")


def prepare_driver_ptx() -> Attempt:
    text = make_ptx("driver_ptx")

    def load() -> None:
        status, _ = driver.cuModuleLoadData(text + b"\0")
        assert not status.value, status

    return load


def prepare_capture() -> Attempt:
    """An unplanned program in the middle of a capture: it is refused before anything that would end the capture."""
    out = torch.zeros(32, device="cuda")

    def capture() -> None:
        graph, refusals = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            out.add_(1)
            try:
                fill(1024, 1024)
            except errors.CompilationForbidden as error:
                refusals.append(error)
            out.add_(1)
        graph.replay()
        assert out.tolist() == [2.0] * 32, out
        if refusals:
            raise refusals[0]

    return capture


PREPARE: dict[str, Callable[[], Attempt]] = {
    "triton: another constant": prepare_triton,
    "triton: another divisibility": prepare_divisibility,
    "triton: warm-up": prepare_warmup,
    "triton: in a graph capture": prepare_capture,
    "triton: autotuning": prepare_autotune,
    "triton: a late load": prepare_load,
    "triton: a gcc build": prepare_gcc,
    "torch.compile: a recompile": prepare_recompile,
    "torch.compile: a first compile": prepare_first_compile,
    "inductor: a graph": prepare_inductor,
    "torch.utils.cpp_extension: load_inline": prepare_extension,
    "spawn: nvcc": prepare_spawn,
    "NVRTC: cuda.core": prepare_core,
    "NVRTC: cuda.bindings": prepare_bindings,
    "NVRTC: CuPy RawKernel": prepare_cupy,
    "NVRTC: CuPy ElementwiseKernel": prepare_cupy_elementwise,
    "NVRTC: torch": prepare_torch_nvrtc,
    "PTX: cuda.core": prepare_core_ptx,
    "PTX: cuda.bindings": prepare_driver_ptx,
}


def try_roads(store: Path, plan: str, prepared: dict[str, Attempt], folder: Path) -> list[dict[str, Any]]:
    """Attempt every road under a frozen session, then once more after it is closed."""
    found = []
    with planfreeze.session(plan, store=store, is_trusted=True) as session:
        session.freeze()
        before = count_files(folder)
        for name, attempt in prepared.items():
            found.append({"name": name, **judge(attempt)})
        attempts = dict(session.attempts)
        written = count_files(folder) - before
    for row, attempt in zip(found, prepared.values(), strict=True):
        row["afterwards"] = judge(attempt)
        # Without a guard, loading what it compiles breaks a capture: that is the driver's rule.
        if row["afterwards"]["state"] != "COMPILED" and "capture" not in row["name"]:
            row["state"] += ", BROKEN AFTERWARDS"
    found.append(
        {
            "name": f"{attempts} attempts, {written} files compiled meanwhile",
            "state": "refused" if written == 0 and sum(attempts.values()) == len(prepared) else "MISCOUNTED",
            "error": "",
        }
    )
    return found


def judge(attempt: Attempt) -> dict[str, str]:
    """Make one attempt and say what became of it."""
    try:
        attempt()
    except errors.CompilationForbidden as error:
        return {"state": "refused", "error": str(error)}
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return {"state": f"FAILED: {type(error).__name__}", "error": str(error)[:400]}
    return {"state": "COMPILED", "error": ""}


def count_files(folder: Path) -> int:
    """Count what compilers left below a folder: all files but sources, which torch writes before it builds."""
    return sum(path.is_file() and path.suffix != ".cpp" for path in folder.rglob("*"))
