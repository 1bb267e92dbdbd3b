"""Compile kernels in a child process and run their PTX on the CPU."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import planfreeze
from planfreeze.family import CuteSource

ROOT = Path(planfreeze.__file__).parents[1]
COMPILE = """
import importlib, json, os, sys
import planfreeze
source = json.loads(sys.stdin.read())
assert os.path.dirname(os.path.dirname(planfreeze.__file__)) == os.environ["PYTHONPATH"]
os.environ["CUTE_DSL_ARCH"] = source["arch"]
from cutlass import Int32, Int64, cute
from cutlass.cute.runtime import make_fake_stream
from planfreeze.family import LaunchInfo
module, _, attribute = source["kernel"].partition(":")
launch = LaunchInfo(**{name: tuple(v) if isinstance(v, list) else v for name, v in source["launch"].items()})
kernel = getattr(importlib.import_module(module), attribute)(launch=launch, **source["constants"])
zeros = [Int64(0)] * source["pointers"] + [Int32(0)] * source["scalars"]
made = cute.compile(kernel, *zeros, make_fake_stream(), options="--keep-cubin --keep-ptx")
ptx = made.artifacts.PTX
open("made.ptx", "w").write(ptx if isinstance(ptx, str) else ptx.decode())
open("made.cubin", "wb").write(made.artifacts.CUBIN)
"""


@dataclass(frozen=True)
class Compiled:
    ptx: str
    cubin: Path


def load_beside(name: str) -> ModuleType:
    """Load a module of this folder from its file: tests are not a package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def ptx_machine() -> ModuleType:
    """The machine that runs compiled PTX."""
    return load_beside("ptx_machine")


@pytest.fixture(scope="session")
def lane_machine() -> ModuleType:
    """The machine that runs the text of the sm_90a kernels."""
    return load_beside("lane_machine")


@pytest.fixture(scope="session")
def compile_cute(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Compiled]:
    """Return a function that compiles once per distinct call: ``fresh`` seeds the hashes, ``root`` has the package."""

    @cache
    def compile_once(
        source: CuteSource, arch: str, pointers: int, scalars: int, fresh: int = 0, root: Path = ROOT
    ) -> Compiled:
        folder = tmp_path_factory.mktemp("compiled")
        launch = source.launch
        request = {
            "kernel": source.kernel,
            "constants": dict(source.constants),
            "launch": {
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "min_blocks": launch.min_blocks,
                "carveout_percent": launch.carveout_percent,
            },
            "arch": arch,
            "pointers": pointers,
            "scalars": scalars,
        }
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONHASHSEED": str(fresh),
            "PYTHONPATH": str(root),
        }
        subprocess.run(
            [sys.executable, "-c", COMPILE],
            input=json.dumps(request),
            text=True,
            cwd=folder,
            env=environment,
            check=True,
        )
        return Compiled((folder / "made.ptx").read_text(), folder / "made.cubin")

    return compile_once


def read_sass(cubin: Path, option: str) -> str:
    """Run the cuobjdump of triton's wheel."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    tool = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def cuobjdump() -> Callable[[Path, str], str]:
    return read_sass
