"""Runs of pytest of their own, with a device that is none."""

import os
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# An installation that was made before the plugin came has no entry point for it.
IS_INSTALLED = any(found.value == "planfreeze.pytest_plugin" for found in entry_points(group="pytest11"))
OPTIONS = () if IS_INSTALLED else ("-p", "planfreeze.pytest_plugin")

# A device that is none: it takes every program and answers every launch with success.
CONFTEST = """
from types import SimpleNamespace
import pytest
import planfreeze.sessions
from planfreeze.cache.store import Store
from planfreeze.sessions import Session
from toys.families import AddPayload, CopyPayload

OK = SimpleNamespace(name="CUDA_SUCCESS", value=0)

class Driver:
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=0)
    def __getattr__(self, name):
        return lambda *arguments: (OK,) if name == "cuLaunchKernel" else (OK, 1)

class Tensor:
    dtype, device, itemsize = "i32", "nowhere", 4
    def is_contiguous(self): return True
    def storage_offset(self): return 0
    def data_ptr(self): return 4096
    def numel(self): return 4096

class Torch:
    Tensor = Tensor

class Device:
    ordinal, name, capability, sm_count, torch_device, dtypes = 0, "none", (9, 0), 1, "nowhere", {"i32": "i32"}
    driver, torch = Driver(), Torch
    def __init__(self, ordinal): pass
    def _current_stream(self, ordinal): return 0
    def check(self, what, outcome): return outcome[1]
    def run_in_context(self, call): return call()

planfreeze.sessions.Device = Device

def launch(session, *payloads, times=1):
    for payload in payloads:
        bound = session.program(payload).bind(Tensor(), Tensor(), 128)
        for _ in range(times):
            bound.launch()

def try_to_compile(block=128):
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, compile
    from toys.add_triton import add_kernel
    signature = {"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"}
    source = ASTSource(fn=add_kernel, signature=signature, constexprs={"block": block})
    try:
        compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception:
        pass

@pytest.fixture
def unfrozen():
    with Session(("toys-tp1-sm_90a",), STORE, device=None, build=False, is_trusted=False) as made:
        yield made

@pytest.fixture
def session(unfrozen):
    return unfrozen.freeze()
"""
USES_ALL = """
from conftest import *
def test_add(session): launch(session, AddPayload(block=64), times=2)
def test_copy(session): launch(session, CopyPayload())
"""
# Starts a Python process that tries to compile.
TRY_IN_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "from conftest import try_to_compile; try_to_compile()"], check=True)
"""


class Outcome:
    """What a run of pytest printed and how it ended."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def reasons(self) -> list[str]:
        return re.findall(r"^FAILED: (.*)$", self.text, re.MULTILINE)


@pytest.fixture
def run(
    pytester: pytest.Pytester, toys, built, with_triton_alone: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run pytest over a test module beside a conftest with the stand-in device."""
    pytester.makepyfile(sitecustomize=with_triton_alone)

    def start(tests: str, *options: str, plans: tuple[str, ...] = ("toys-tp1-sm_90a",), store: Path | None = None):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (pytester.path, ROOT, toys.folder))))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "triton"))
        place = store or built.store.path
        pytester.makeconftest(CONFTEST.replace("STORE", f"__import__('pathlib').Path({str(place)!r})"))
        pytester.makepyfile(test_inner=tests)
        replay = [f"--planfreeze-replay={plan}" for plan in plans]
        done = pytester.runpytest_subprocess(*OPTIONS, f"--planfreeze-store={place}", *replay, *options)
        return Outcome(int(done.ret), done.stdout.str() + done.stderr.str())

    return start


@pytest.fixture
def run_plain(run) -> Callable[..., Outcome]:
    """Run pytest without a replay."""
    return lambda tests, *options: run(tests, *options, plans=())
