"""What compilers say they can be steered by, what a compile was seen to ask for, and compiles of single programs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planfreeze.family import family_of
from planfreeze.key import source_roots
from planfreeze.payload import Payload
from planfreeze.sources import read_sources
from planfreeze.target import target
from planfreeze.workers import Task, worker_environment

HERE = Path(__file__).parent
ARCH = "sm_90a"

# Compiles the programs named in the arguments as a worker does, and prints digests of their cubins. With READS_LOG,
# what Python asks the environment for is written there, from the moment that compilers can be imported.
COMPILE = """
import json, os, sys
from planfreeze.cache.digest import digest_of
from planfreeze.workers import compile_task
tasks = json.loads(sys.stdin.read())
if "READS_LOG" in os.environ:
    log = open(os.environ["READS_LOG"], "w+")
    class Watched(type(os.environ)):
        def __getitem__(self, name):
            log.write(f"python {name}\\n")
            log.flush()
            return super().__getitem__(name)
        def __contains__(self, name):
            self.get(name)
            return super().__contains__(name)
    os.environ.__class__ = Watched
print(json.dumps([digest_of(compile_task(task).cubin) for task in tasks]))
"""


def make_task(payload: Payload, arch: str = ARCH) -> Task:
    """Return the task that a build gives a worker for a payload."""
    family = family_of(payload)
    roots = source_roots(family, family.define(payload, target(arch)))
    return Task(family.reference, payload, target(arch), read_sources(roots))


@dataclass(frozen=True)
class Compiles:
    """Compiles in processes of their own, with the environment of a worker and what a test changes in it."""

    folder: Path

    def environment(self, arch: str = ARCH, **changes: str) -> dict[str, str]:
        """The environment of a worker, with variables added."""
        scratch = self.folder / "scratch"
        (scratch / "dumps").mkdir(parents=True, exist_ok=True)
        return {**worker_environment(target(arch), str(scratch)), **changes}

    def run(self, *payloads: Payload, arch: str = ARCH, **changes: str) -> list[str]:
        """Compile; return the digests of the cubins."""
        tasks = [make_task(payload, arch) for payload in payloads]
        sent = [[t.family, list(t.payload.to_fields().items()), arch, t.sources.modules] for t in tasks]
        done = subprocess.run(
            [sys.executable, "-P", "-c", COMPILE],
            env=self.environment(arch, **changes),
            cwd=self.folder,
            input=json.dumps(sent),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made: list[str] = json.loads(done.stdout.splitlines()[-1])
        return made


@pytest.fixture
def compiles(tmp_path: Path) -> Compiles:
    return Compiles(tmp_path)


@pytest.fixture(scope="session")
def task() -> Callable[..., Task]:
    return make_task


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Variables and options that the installed compilers list themselves."""
    pytest.importorskip("triton")
    pytest.importorskip("cutlass")
    compiles = Compiles(tmp_path_factory.mktemp("registry"))
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "registry.py")],
        env=compiles.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


@dataclass(frozen=True)
class Reads:
    """Variables that one Triton and one CuTe compile asked for, in Python and in machine code, and what they made."""

    python: frozenset[str]
    machine: frozenset[str]
    blobs: tuple[str, ...]


@pytest.fixture(scope="session")
def reads(toys: Any, tmp_path_factory: pytest.TempPathFactory) -> Reads:
    """What a compile asks the environment for; the assembler, which Triton starts, is seen as well."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("what machine code reads is seen with a library that a C compiler builds")
    folder = tmp_path_factory.mktemp("reads")
    library, log = folder / "reads.so", folder / "reads.txt"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "reads.c")], check=True)
    payloads = (toys.families.AddPayload(block=64), toys.families.CopyPayload())
    made = Compiles(folder).run(*payloads, LD_PRELOAD=str(library), READS_LOG=str(log))
    found = [line.split(" ", 1) for line in log.read_text().splitlines()]
    own = {"LD_PRELOAD", "READS_LOG"}
    by = {kind: frozenset(name for who, name in found if who == kind) - own for kind in ("python", "machine")}
    return Reads(by["python"], by["machine"], tuple(made))


@pytest.fixture(scope="session")
def blobs(built: Any) -> list[str]:
    """Digests of the cubins of ``toys``: the Triton and the CuTe program, as a build made them."""
    return [outcome.record.blob for outcome in built.report.outcomes]
