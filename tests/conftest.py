"""A kernel package of somebody else, plans over it, and a store of it that was built for real."""

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from planfreeze.builds import BuildReport, build_plans
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.family import LaunchInfo
from planfreeze.frozen_plans import FrozenPlan, PlanEntry
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.record import ProgramRecord
from planfreeze.target import target

ROOT = Path(__file__).resolve().parents[1]

# A Triton family whose kernel takes a constant from another module, and a CuTe family whose kernel class can
# misbehave while it is compiled. NAME stands for the name of the package.
TOYS = Path(__file__).with_name("toy_package")


def write_package(folder: Path, name: str, **changes: str) -> Path:
    """Write the package ``name`` into ``folder``; a change adds or replaces a module by its name."""
    texts = {path.name: path.read_text() for path in TOYS.glob("*.py")}
    texts |= {f"{module}.py": text for module, text in changes.items()}
    for file, text in texts.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).replace("NAME", name).lstrip())
    return folder / name


@dataclass(frozen=True)
class Toys:
    """The package as this process has it, in a folder of its own on the search path."""

    folder: Path
    families: ModuleType

    def plan(self, *payloads: Payload, arch: str = "sm_90a", model: str = "toys") -> Plan:
        """A plan over payloads."""
        return Plan(model=model, tp=1, target=target(arch), payloads=payloads)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """Package ``toys``: families ``add`` (Triton) and ``copy`` (CuTe)."""
    folder = tmp_path_factory.mktemp("toys")
    write_package(folder, "toys")
    sys.path.insert(0, str(folder))
    yield Toys(folder, importlib.import_module("toys.families"))
    sys.path.remove(str(folder))


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a package of another name, on the search path for one test; returns its folder."""

    def make(name: str, **changes: str) -> Path:
        package = write_package(tmp_path / "packages", name, **changes)
        monkeypatch.syspath_prepend(str(package.parent))
        return package

    return make


@pytest.fixture(scope="session")
def toolchains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fingerprints of the compilers are remembered in this run, by all its workers."""
    folder = shared_folder(tmp_path_factory) / "toolchains"
    folder.mkdir(exist_ok=True)
    return folder


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def link_toolchains(toolchains: Path) -> Callable[[Path], None]:
    """Let a user's cache directory remember the fingerprints of this run: to read every file takes a second."""

    def link(cache: Path) -> None:
        (cache / "planfreeze").mkdir(parents=True, exist_ok=True)
        (cache / "planfreeze" / "toolchains").symlink_to(toolchains)

    return link


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that all workers of a run build whole models into: what one has built, the others find."""
    return Store.open(shared_folder(tmp_path_factory) / "models", writable=True)


@dataclass(frozen=True)
class Built:
    """A store with one complete plan of two programs, their keys, and the report of the build. Read only."""

    store: Store
    plan: Plan
    keyed: tuple[KeyedProgram, ...]
    report: BuildReport

    def copy(self, place: Path) -> Store:
        """The same store elsewhere, to be changed by a test."""
        shutil.copytree(self.store.path, place)
        return Store.open(place, writable=True)


@pytest.fixture(scope="session")
def built(toys: Toys, toolchains: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A store that holds ``add(block=64)`` and ``copy()`` for sm_90a."""
    store = Store.open(tmp_path_factory.mktemp("built") / "store", writable=True)
    plan = toys.plan(toys.families.AddPayload(block=64), toys.families.CopyPayload())
    report = build_plans([plan], store, jobs=1, toolchains=toolchains)
    assert [outcome.status for outcome in report.outcomes] == ["compiled", "compiled"], report.outcomes
    return Built(store, plan, key_plan(plan, toolchains), report)


@dataclass(frozen=True)
class Interpreter:
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


OLDEST_TRITON = "3.6.0"


@pytest.fixture(scope="session")
def oldest_triton(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[str, ...]]:
    """A Python with the oldest Triton that is supported, and the folders in front of its search path.

    The one that PLANFREEZE_TEST_TRITON36 names, else this one with a wheel in front, which the workers of a run share.
    """
    named = os.environ.get("PLANFREEZE_TEST_TRITON36")
    if named:
        return named, ()
    folder = shared_folder(tmp_path_factory) / "triton36"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            install_oldest_triton(folder)
    return sys.executable, (str(folder),)


def install_oldest_triton(folder: Path) -> None:
    """Install it into a folder of its own."""
    # Constraints of the environment pin the other version.
    environ = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{folder}.part"]
    done = subprocess.run(
        [*install, f"triton=={OLDEST_TRITON}"], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(
            f"Triton {OLDEST_TRITON} is part of what is promised and cannot be installed here. Set "
            f"PLANFREEZE_TEST_TRITON36 to a Python that has it.\n{done.stderr}"
        )
    Path(f"{folder}.part").rename(folder)


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


@dataclass(frozen=True)
class Stock:
    """Frozen plans over made-up programs: everything a store and a pack look at, and nothing a device would run."""

    def record(self, text: str, companions: tuple[str, ...] = ()) -> tuple[ProgramRecord, tuple[bytes, ...]]:
        """A record with its blobs, the cubin first, all made from text."""
        blobs = tuple(f"{part} ".encode() * 40 for part in (f"cubin of {text}", *companions))
        record = ProgramRecord(
            family="stock:family",
            arch="sm_90a",
            blob=digest_of(blobs[0]),
            symbol="kernel",
            payload=text.encode(),
            launch=LaunchInfo(block=(32, 1, 1)),
            parameter_bytes=(8,),
            registers=16,
            stack_bytes=0,
            static_shared_bytes=0,
            companions=tuple((name, digest_of(blob)) for name, blob in zip(companions, blobs[1:], strict=True)),
        )
        return record, blobs

    def fill(self, store: Store, texts: Sequence[str], companions: tuple[str, ...] = ()) -> None:
        """Publish the programs of texts."""
        for text in texts:
            record, blobs = self.record(text, companions)
            for blob in blobs:
                store.put_blob(blob)
            store.put_record(digest_of(text.encode()), record.encode())
            store.put_note(digest_of(text.encode()), b"note")

    def plan(self, model: str, texts: Sequence[str], companions: tuple[str, ...] = ()) -> FrozenPlan:
        """The frozen plan over the programs of texts."""
        entries = []
        for text in texts:
            record, _ = self.record(text, companions)
            entries.append(
                PlanEntry(
                    family="stock:family",
                    fields=(("text", text),),
                    key=digest_of(text.encode()),
                    record=digest_of(record.encode()),
                    blob=record.blob,
                )
            )
        return FrozenPlan(model=model, tp=1, arch="sm_90a", families=(), entries=tuple(entries))

    def publish(self, store: Store, model: str, texts: Sequence[str], companions: tuple[str, ...] = ()) -> FrozenPlan:
        """Publish programs and a plan over them under its name."""
        self.fill(store, texts, companions)
        plan = self.plan(model, texts, companions)
        store.set_ref(plan.name, store.put_plan(plan.encode()))
        return plan

    def age(self, store: Store, days: float, names: Iterable[tuple[str, str]] | None = None) -> None:
        """Make entries, or all of them, look as if they had been published days ago."""
        kinds = ("plan", "record", "note", "blob")
        every = [(kind, entry.name) for kind in kinds for entry in store.entries(kind)]  # type: ignore[arg-type]
        for kind, name in every if names is None else names:
            before = time.time() - days * 86400
            os.utime(store.layout.entry(kind, name), (before, before))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def stock() -> Stock:
    return Stock()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a device where there is none; tools/h200 runs them where there is one."""
    on_device = [item for item in items if item.get_closest_marker("gpu")]
    if not on_device:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_device:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
