"""Compile the CuTe kernels for TVM-FFI: python tools/launch_bench/export_cute.py OUT --tvm-ffi WHEEL.

Needs nvidia-cutlass-dsl, apache-tvm-ffi and gcc, no GPU. OUT gets what :mod:`launch_bench.arms` loads on a machine that
has none of them: the kernels as one shared object, the DSL's runtime library, packed, and the wheel, which has to be of
that machine's Python.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["CUTE_DSL_ARCH"] = "sm_90a"  # read when the DSL is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from launch_bench.arms import KERNELS, RUNTIME
from launch_bench.sums_cute import Sum5, Sum19


def export(folder: Path, arguments: int, kernel: Sum5 | Sum19) -> Path:
    """Compile one kernel and return its object file."""
    length = cute.sym_int()
    tensors = [make_fake_compact_tensor(Float32, (length,), assumed_align=16) for _ in range(arguments - 1)]
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(kernel, *tensors, Int32(1), stream, options="--enable-tvm-ffi")
    path = folder / f"sum_{arguments}.o"
    compiled.export_to_c(str(path), function_name=f"sum_{arguments}")
    return path


def find_runtime() -> Path:
    """Return the DSL's runtime library."""
    package = Path(cutlass.__file__).resolve()
    roots = (parent for parent in package.parents if parent.name == "nvidia_cutlass_dsl")
    return next(next(roots).glob("cu1*/lib/libcute_dsl_runtime.so"))


def main() -> None:
    """Write everything into a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tvm-ffi", type=Path, required=True, metavar="WHEEL")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        objects = [export(Path(name), 5, Sum5()), export(Path(name), 19, Sum19())]
        subprocess.run(["gcc", "-shared", "-o", given.out / KERNELS, *objects], check=True)
    with find_runtime().open("rb") as plain, gzip.open(given.out / RUNTIME, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    shutil.copy(given.tvm_ffi, given.out)


if __name__ == "__main__":
    main()
