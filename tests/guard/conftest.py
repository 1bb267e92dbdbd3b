"""Scripts in processes of their own: guards change what a whole process may do."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST_TRITON = "3.6.0"

# What a script sees of compiling: files in a fresh cache, calls of the listener, programs started.
WITNESSES = """
import os, sys
from pathlib import Path
started = []
sys.addaudithook(lambda event, arguments: started.append(arguments[0]) if event == "subprocess.Popen" else None)
cache_dir = Path(os.environ["TRITON_CACHE_DIR"])
def traces():
    return len(list(cache_dir.rglob("*"))), len(started)
def refused(function, *arguments, **options):
    from planfreeze.errors import CompilationForbidden
    try:
        function(*arguments, **options)
    except CompilationForbidden as error:
        return error
    raise AssertionError(f"{function} was not refused")
"""

TRITON_KERNEL = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
SM_90 = GPUTarget("cuda", 90, 32)
@triton.jit
def fill(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, offsets.to(tl.float32), mask=offsets < n)
def make_source(block=64):
    return ASTSource(
        fn=fill,
        signature={"x": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": block},
        attrs={(0,): [["tt.divisibility", 16]]},
    )
class Driver:
    "Names a device without one; launches nothing and keeps what it was asked to."
    launched, utils = [], None
    def launcher_cls(self, src, metadata): return lambda *arguments: self.launched.append(src.fn.__name__)
    def get_current_target(self): return SM_90
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_benchmarker(self): return lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
def use_driver():
    triton.runtime.driver.set_active(Driver())
class Pointer:
    dtype = "fp32"
    def data_ptr(self): return 4096
"""

CUTE_KERNEL = """
import cutlass
import cutlass.cute as cute
@cute.kernel
def empty(x: cutlass.Int64):
    pass
@cute.jit
def host(x: cutlass.Int64):
    empty(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
@cute.jit
def greet(count: cutlass.Int32):
    cute.printf("called %d", count)
"""

RunScript = Callable[..., str]


@dataclass(frozen=True)
class Interpreter:
    """A Python and the folders in front of its search path."""

    program: str
    folders: tuple[str, ...] = ()


def make_run(interpreter: Interpreter, folder: Path) -> RunScript:
    """Return what runs parts of a script; its standard output is the result, failure fails the test."""

    def run(*parts: str, status: int = 0, **variables: str) -> str:
        script = folder / "script.py"
        script.write_text("".join(textwrap.dedent(part) for part in (WITNESSES, *parts)))
        environ = os.environ | {
            "CUTE_DSL_ARCH": "sm_90a",
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join((*interpreter.folders, str(ROOT))),
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "TRITON_DEFAULT_FP_FUSION": "1",
            **variables,
        }
        done = subprocess.run(
            [interpreter.program, str(script)], env=environ, cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run parts of a script in a fresh interpreter of the kind that runs the tests."""
    return make_run(Interpreter(sys.executable), tmp_path)


@pytest.fixture(params=["installed", OLDEST_TRITON])
def run_triton(request: pytest.FixtureRequest, hidden_frameworks: Path, tmp_path: Path) -> RunScript:
    """Run parts of a script under the installed Triton, and under the oldest that is supported; without frameworks.

    The oldest imports torch where it looks for a device, which takes longer than everything else here.
    """
    pytest.importorskip("triton")
    if request.param == "installed":
        return make_run(Interpreter(sys.executable, (str(hidden_frameworks),)), tmp_path)
    program, folders = request.getfixturevalue("oldest_triton")
    run = make_run(Interpreter(program, (str(hidden_frameworks), *folders)), tmp_path)

    def run_oldest(*parts: str, **options: Any) -> str:
        return run(*parts, f"\nimport triton\nassert triton.__version__ == {OLDEST_TRITON!r}\n", **options)

    return run_oldest


@pytest.fixture
def triton_kernel() -> str:
    """A Triton kernel, its source for sm_90, and a driver that only names a device."""
    pytest.importorskip("triton")
    return TRITON_KERNEL


@pytest.fixture
def cute_kernel() -> str:
    """A CuTe kernel with its host function, and a host function that needs no GPU."""
    pytest.importorskip("cutlass")
    return CUTE_KERNEL
