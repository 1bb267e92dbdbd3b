"""Builds over disks that fail, what must be true of a store at any time, and places and users of all kinds."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from planfreeze import builds, slots
from planfreeze.builds import BuildReport, build_plans
from planfreeze.cache.store import Store
from planfreeze.compilers import CompiledProgram
from planfreeze.errors import PlanMissing, StoreMissing
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.keyed import KeyedProgram, UnkeyedProgram, key_plan
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.record import ProgramRecord
from planfreeze.resolve import PlanReference, find_plan, resolve_plan

FOLDERS = (Path(__file__).parent, Path(__file__).parents[2] / "tools")


def load(name: str) -> ModuleType:
    """Load a module of this folder or of the tools from its file: neither is a package."""
    (file,) = (folder / f"{name}.py" for folder in FOLDERS if (folder / f"{name}.py").exists())
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def disk() -> ModuleType:
    """The disk that fails on demand."""
    return load("disk")


@pytest.fixture(scope="session")
def power() -> ModuleType:
    """What is left when the power fails."""
    return load("power")


@pytest.fixture(scope="session")
def stub_compiler() -> ModuleType:
    """The compile process that compiles nothing."""
    return load("stub_compiler")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for disks, in memory where that can be: a sweep makes hundreds."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Shop:
    """Builds of one plan of three programs, one of them with companions."""

    plan: Plan
    keys: tuple[str, ...]
    compiled: list[str]
    many: Callable[[int], "Shop"]
    """A shop of so many programs of 30 KB each."""

    def build(self, path: Path) -> BuildReport:
        """Build the plan in a store, with one slot: the operations come in one order."""
        store, toolchains = Store.open(path, writable=True), path.with_name("toolchains")
        return build_plans([self.plan], store, jobs=1, toolchains=toolchains)

    def build_whole(self, path: Path) -> list[str]:
        """Build where nothing is in the way; the plan must come out whole. Returns the programs that were compiled."""
        self.compiled.clear()
        report = self.build(path)
        assert not report.count("failed"), report
        assert len(report.plans) == 1
        assert report.count("compiled") == len(self.compiled)
        assert self.look(path) == "complete"
        store = Store.open(path)
        assert list(store.layout.temporaries.iterdir()) == []
        return list(self.compiled)

    def look(self, path: Path) -> str:
        """Open the store as a session does: "complete" or "not there"; anything else raises."""
        try:
            store = Store.open(path)
            found = find_plan(store, PlanReference.parse(self.plan.name))
        except (StoreMissing, PlanMissing):
            return "not there"
        resolve_plan(found, store).check()
        return "complete"

    def check_entries(self, path: Path, *, is_ordered: bool = True) -> None:
        """Every entry that is there is whole, and so is everything it names."""
        try:
            store = Store.open(path)
        except StoreMissing:
            return
        for blob in store.entries("blob"):
            store.get_blob(blob.name)
        for entry in store.entries("record"):
            record = ProgramRecord.decode(store.get_record(entry.name))
            if is_ordered:
                for digest in (record.blob, *dict(record.companions).values()):
                    store.get_blob(digest)
        for entry in store.entries("plan"):
            for planned in FrozenPlan.decode(store.get_plan(entry.name)).entries:
                store.get_record(planned.key, planned.record)
                store.get_blob(planned.blob)
        for root in store.list_refs().values():
            store.get_plan(root)


@pytest.fixture
def shop(built, toys, toolchains, stub_compiler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Three programs of the package ``toys`` by a stub compiler that hands out the really built ones, stamped."""
    bases = {}
    for outcome in built.report.outcomes:
        companions = (("module", b"companion"),) if outcome.record.family.endswith("copy") else ()
        bases[outcome.record.family] = CompiledProgram(
            cubin=built.store.get_blob(outcome.record.blob), launch=outcome.record.launch, companions=companions
        )
    compiled: list[str] = []
    worker = stub_compiler.stub_worker(bases, lambda task: compiled.append(task.payload.digest))
    monkeypatch.setattr(slots, "Worker", worker)
    keyed: dict[Plan, tuple[KeyedProgram | UnkeyedProgram, ...]] = {}
    monkeypatch.setattr(builds, "key_plan", lambda plan, toolchains: keyed[plan])
    # Another builder that is at work here is in this very process: nobody waits for it.
    monkeypatch.setattr(slots, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(slots, "LOCK_STEP_S", 0.0)

    def make(*payloads: Payload) -> Shop:
        plan = toys.plan(*payloads)
        keyed[plan] = key_plan(plan, toolchains)
        return Shop(plan, tuple(program.key.digest for program in keyed[plan]), compiled, make_many)

    def make_many(count: int) -> Shop:
        add = bases["toys.families:add"]
        bases["toys.families:add"] = replace(add, cubin=add.cubin + bytes(30_000 - len(add.cubin)))
        return make(*(toys.families.AddPayload(block=block) for block in range(1, count + 1)))

    return make(toys.families.AddPayload(block=64), toys.families.AddPayload(block=32), toys.families.CopyPayload())


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder every user can reach (pytest's own is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def mount(open_place: Path) -> Iterator[Callable[..., Path]]:
    """Mount something below the open place until the test ends; skipped only where the kernel refuses."""
    mounted: list[Path] = []

    def call(*arguments: str) -> Path:
        place = open_place / f"mount{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"the kernel refuses to mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield call
    for place in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def run(toys, interpreter) -> Callable[..., list[object]]:
    """Run a script in a fresh interpreter, perhaps as somebody else, and return what it prints as JSON."""

    def call(script: str, path: Path, *prefix: str, package: str = "toys", **extra: str) -> list[object]:
        environment = {name: text for name, text in interpreter.environment(**extra).items() if text}
        done = subprocess.run(
            [*prefix, sys.executable, "-B", "-c", script.replace("{package}", package), str(path)],
            env=environment,
            cwd=interpreter.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]

    return call


@pytest.fixture
def root_of(built) -> str:
    """The root digest that every build of the two programs must come to."""
    return built.report.plans[0].root
