"""Programs of somebody who never heard of planfreeze: recorded, built and served, each step in processes of its own.

No GPU is needed: a stand-in for the DSL's runtime library takes launches and writes them down.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planfreeze.serving import serving_environment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "record_replay"
ARCH = "sm_90a"

# Arrays at the same addresses in every process, aligned as memory of a device is. The DSL asks the driver for the
# number of devices: one is enough.
DEVICE = """
import ctypes, mmap
import numpy as np
from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
CudaDialectJitCompiledFunction.num_devices = 1
START, SIZE, FIXED = 0x200000000000, 1 << 26, 0x10
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED
assert libc.mmap(START, SIZE, protection, flags, -1, 0) == START
used = [0]
def array(*shape, dtype=np.float32):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = (ctypes.c_char * count).from_address(START + used[0])
    used[0] += -(-count // 256) * 256
    return np.frombuffer(data, dtype).reshape(shape)
"""

# Arms a guard before the DSL is imported and says at the end what it saw.
GUARD = """
import atexit
from planfreeze.guard import Guard
guard = Guard()
guard.arm()
atexit.register(lambda: print("attempts", sum(guard.attempts.values())))
"""


@pytest.fixture(scope="session", autouse=True)
def _dsl() -> None:
    pytest.importorskip("cutlass")


@dataclass(frozen=True)
class Workshop:
    """A folder with somebody's program, and the commands around it."""

    folder: Path

    def write(self, name: str, *parts: str) -> Path:
        path = self.folder / name
        path.write_text("".join(textwrap.dedent(part) for part in parts))
        return path

    def environment(self, **variables: str) -> dict[str, str]:
        search = os.pathsep.join((str(ROOT), str(EXAMPLES)))
        return os.environ | {"CUTE_DSL_ARCH": ARCH, "PYTHONPATH": search, "HOME": str(self.folder)} | variables

    def run(self, *command: object, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=dict(environment or self.environment()),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr if status else done.stdout

    def record(self, script: Path, *, status: int = 0, **variables: str) -> dict[str, Any]:
        """Record a script; return the recording."""
        command = ("-m", "planfreeze", "record", "-o", f"{script.stem}.json", "--", sys.executable, script)
        self.run(*command, status=status, environment=self.environment(**variables))
        recording: dict[str, Any] = json.loads((self.folder / f"{script.stem}.json").read_text())
        return recording

    def build(self, name: str, *options: str, store: str = "store", status: int = 0) -> dict[str, Any]:
        """Build a recording; return what the build says."""
        said = self.run(
            *("-m", "planfreeze", "build", "--plan", f"{name}.json", "--store", store, "--json", *options),
            status=status,
            environment=self.environment(CUTE_DSL_ARCH="sm_100a"),  # a build goes by its own arch alone
        )
        return json.loads(said) if not status else {"said": said}

    def served_environment(self, name: str, store: str = "store", **variables: str) -> dict[str, str]:
        return serving_environment(
            self.environment(**variables),
            store=self.folder / store,
            plan=f"{name}-{ARCH}",
            is_trusted=True,
            log=self.folder / "served.jsonl",
        )

    def serve(self, script: Path, *, status: int = 0, store: str = "store", **variables: str) -> str:
        """Run a script served from the plan of its recording."""
        return self.run(script, status=status, environment=self.served_environment(script.stem, store, **variables))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """A workshop of one test."""
    return Workshop(tmp_path)


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the runtime library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in for the runtime library is built with a C compiler")
    made = tmp_path_factory.mktemp("runtime") / "libcute_dsl_runtime.so"
    source = Path(__file__).with_name("runtime.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made
