"""Compile kernels in a child process and run their PTX on the CPU."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import planfreeze
from planfreeze.family import CuteSource

ROOT = Path(planfreeze.__file__).parents[1]
SERVER = Path(__file__).with_name("compile_server.py")


@dataclass(frozen=True)
class Compiled:
    ptx: str
    cubin: Path


@pytest.fixture(scope="session")
def ptx_machine() -> ModuleType:
    """The machine that runs compiled PTX."""
    return import_module(".ptx_machine", __package__)


@pytest.fixture(scope="session")
def lane_machine() -> ModuleType:
    """The machine that runs the text of the sm_90a kernels."""
    return import_module(".lane_machine", __package__)


class Server:
    """A process that compiles for one architecture; ``seed`` is that of its hashes, ``root`` has the package."""

    def __init__(self, arch: str, seed: int, root: Path, home: Path) -> None:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": str(root),
        }
        self.process = subprocess.Popen(
            [sys.executable, SERVER, arch],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def compile(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        error = json.loads(self.process.stdout.readline())
        assert not error, error

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def compile_cute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Compiled]]:
    """Return a function that compiles once per distinct call: ``fresh`` seeds the hashes, ``root`` has the package."""
    servers = ExitStack()

    @cache
    def open_server(arch: str, seed: int, root: Path) -> Server:
        made = Server(arch, seed, root, tmp_path_factory.mktemp("server"))
        return servers.enter_context(closing(made))

    @cache
    def compile_once(
        source: CuteSource, arch: str, pointers: int, scalars: int, fresh: int = 0, root: Path = ROOT
    ) -> Compiled:
        folder = tmp_path_factory.mktemp("compiled")
        launch = source.launch
        request = {
            "folder": str(folder),
            "kernel": source.kernel,
            "constants": dict(source.constants),
            "launch": {
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "min_blocks": launch.min_blocks,
                "carveout_percent": launch.carveout_percent,
            },
            "pointers": pointers,
            "scalars": scalars,
        }
        open_server(arch, fresh, root).compile(request)
        return Compiled((folder / "made.ptx").read_text(), folder / "made.cubin")

    with servers:
        yield compile_once


def read_sass(cubin: Path, option: str) -> str:
    """Run the cuobjdump of triton's wheel."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    tool = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def cuobjdump() -> Callable[[Path, str], str]:
    return read_sass
