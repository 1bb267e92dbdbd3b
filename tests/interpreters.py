"""Fresh interpreters: what they see, and which compilers and frameworks there are for them."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from .toys import Toys

ROOT = Path(__file__).resolve().parents[1]


class Interpreter(Struct, frozen=True):
    """Fresh interpreters that see ``folders`` first, a private home, and nothing of this process's environment."""

    home: Path
    folders: tuple[Path, ...]

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment of a fresh interpreter."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "PYTHONPATH": os.pathsep.join(map(str, self.folders)),
            **extra,
        }

    def start(self, *arguments: str, executable: str = sys.executable, **extra: str) -> subprocess.Popen[str]:
        """Start an interpreter with arguments."""
        return subprocess.Popen(
            [executable, *arguments],
            env=self.environment(**extra),
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str, executable: str = sys.executable, **extra: str) -> str:
        """Run a script; its standard output is the result, failure fails the test."""
        started = self.start("-c", textwrap.dedent(script), *arguments, executable=executable, **extra)
        output, errors = started.communicate(timeout=300)
        assert started.returncode == 0, output + errors
        return output


@pytest.fixture
def interpreter(toys: Toys, link_toolchains: Callable[[Path], None], tmp_path: Path) -> Interpreter:
    """Fresh interpreters that see this checkout and the package ``toys``."""
    home = tmp_path / "home"
    link_toolchains(home / "cache")
    return Interpreter(home, (toys.folder, ROOT))


# A start-up module that hides packages: a proof of every road imports them, which takes seconds each time.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
FRAMEWORKS = ("torch", "cupy")


@pytest.fixture(scope="session")
def without_frameworks() -> str:
    """Text of a ``sitecustomize`` under which there is no torch and no CuPy; Triton and CuTe stay."""
    return HIDE.replace("NAMES", repr(FRAMEWORKS))


@pytest.fixture(scope="session")
def with_triton_alone() -> str:
    """Text of a ``sitecustomize`` under which Triton is the only compiler."""
    return HIDE.replace("NAMES", repr((*FRAMEWORKS, "cutlass")))


@pytest.fixture(scope="session")
def hidden_frameworks(without_frameworks: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that hides frameworks from processes that have it in front of their search path."""
    folder = tmp_path_factory.mktemp("hidden_frameworks")
    (folder / "sitecustomize.py").write_text(without_frameworks)
    return folder


@pytest.fixture
def hide_frameworks(hidden_frameworks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide frameworks from every process that a test starts with the environment of this one."""
    monkeypatch.setenv("PYTHONPATH", str(hidden_frameworks), prepend=os.pathsep)


@pytest.fixture
def small_interpreter(interpreter: Interpreter, without_frameworks: str) -> Interpreter:
    """Fresh interpreters as ``interpreter``, without frameworks."""
    return start_with(without_frameworks, interpreter)


@pytest.fixture
def triton_interpreter(interpreter: Interpreter, with_triton_alone: str) -> Interpreter:
    """Fresh interpreters as ``interpreter``, where Triton is the only compiler."""
    return start_with(with_triton_alone, interpreter)


def start_with(text: str, interpreter: Interpreter) -> Interpreter:
    """Return interpreters that run a text when they start."""
    folder = interpreter.home / "start"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return Interpreter(interpreter.home, (folder, *interpreter.folders))


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Path], str]:
    """Wait until a file is there and has content; return it."""

    def wait(path: Path) -> str:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size):
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.01)
        return path.read_text()

    return wait
