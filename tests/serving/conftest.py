"""Projects of a user: scripts that launch Triton kernels and know nothing of planfreeze, recorded, built and served."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planfreeze.cache.store import Store
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.resolve import PlanReference, find_plan
from planfreeze.serving import serving_environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
ALL_LAUNCHED = "launched 9 benchmarked 0 started 0"


@dataclass(frozen=True)
class Project:
    """A folder with a script, and what was made of it so far.

    Parameters
    ----------
    python : str
        The interpreter, with ``folders`` in front of its search path.
    """

    folder: Path
    python: str = sys.executable
    folders: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """The store that plans are built into."""
        return self.folder / "store"

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a process: a home of its own, and none of Triton's settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "PLANFREEZE"))}
        return {
            **kept,
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "home"),
            "PYTHONPATH": os.pathsep.join((*self.folders, str(ROOT))),
            **self.variables,
            **variables,
        }

    def planfreeze(self, *arguments: str, status: int = 0, **variables: str) -> str:
        """Run the command line; its standard output is the result."""
        command = [self.python, "-m", "planfreeze", *arguments]
        return run(command, self.folder, self.environment(**variables), status)

    def record(self, script: str = "train.py", *, status: int = 0, name: str = "run.json", **variables: str) -> Any:
        """Record a script and return the recording."""
        self.planfreeze("record", "-o", name, "--", self.python, *script.split(), status=status, **variables)
        return json.loads((self.folder / name).read_text())

    def build(self, *arguments: str, recording: str = "run.json", **variables: str) -> None:
        """Build the plan of a recording."""
        self.planfreeze("build", "--plan", recording, "--store", str(self.store), *arguments, **variables)

    def plan(self, name: str = "run-sm_90a") -> FrozenPlan:
        """A frozen plan of the store."""
        return find_plan(Store.open(self.store), PlanReference.parse(name))

    def serve(self, script: str = "train.py", *, plan: str = "run-sm_90a", status: int = 0, **variables: str) -> str:
        """Run a script served from a plan; its output, standard error included, is the result."""
        environment = serving_environment(
            self.environment(**variables), store=self.store, plan=plan, log=self.folder / "served"
        )
        return run([self.python, *script.split()], self.folder, environment, status)


def run(command: list[str], folder: Path, environment: dict[str, str], status: int) -> str:
    """Run a command to its end and return its output."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def make_project(folder: Path, python: tuple[str, tuple[str, ...]] = (sys.executable, ()), **variables: str) -> Project:
    """Put the scripts into a folder."""
    shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
    (folder / "home").mkdir()
    return Project(folder, *python, variables)


@pytest.fixture(scope="session")
def build_project(
    hidden_frameworks: Path, link_toolchains: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, tuple[str, ...]], Project]:
    """Record and build a project, once for each Python. Read only."""

    @cache
    def build(program: str, folders: tuple[str, ...]) -> Project:
        project = make_project(tmp_path_factory.mktemp("project"), (program, (str(hidden_frameworks), *folders)))
        link_toolchains(project.folder / "home")
        project.record()
        project.build()
        return project

    return build


@pytest.fixture(params=["installed", "3.6"])
def served_everywhere(request: pytest.FixtureRequest, build_project: Callable[..., Project]) -> Project:
    """A project that was recorded and built, with the installed Triton, and with the oldest that is supported."""
    if request.param == "installed":
        return build_project(sys.executable, ())
    return build_project(*request.getfixturevalue("oldest_triton"))


@pytest.fixture
def built_project(build_project: Callable[..., Project]) -> Project:
    """A project that was recorded and built with the installed Triton. Read only."""
    return build_project(sys.executable, ())


@pytest.fixture
def project(hidden_frameworks: Path, link_toolchains: Callable[[Path], None], tmp_path: Path) -> Project:
    """A project that nothing was done with."""
    project = make_project(tmp_path / "project", (sys.executable, (str(hidden_frameworks),)))
    link_toolchains(project.folder / "home")
    return project


@pytest.fixture
def copy_of(tmp_path: Path) -> Any:
    """Copy a project to be changed."""

    def copy(project: Project) -> Project:
        shutil.copytree(project.folder, tmp_path / "copy", symlinks=True)
        return Project(tmp_path / "copy", project.python, project.folders, project.variables)

    return copy
