"""A kernel package of somebody else, plans over it, and a store of it that was built for real."""

import importlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from planfreeze.builds import BuildReport, build_plans
from planfreeze.cache.store import Store
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.target import target

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


@pytest.fixture
def frozen(built: Built) -> FrozenPlan:
    """The plan of the store that was built."""
    return built.report.plans[0]


@pytest.fixture
def store(built: Built, tmp_path: Path) -> Store:
    """A copy of the store that was built, to be changed."""
    return built.copy(tmp_path / "store")
