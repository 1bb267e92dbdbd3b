"""The plug-in for vLLM's workers, found as vLLM finds it, over a worker with the same step and no device."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ENGINES = Path(__file__).resolve().parents[2] / "examples" / "engines"

# What vLLM does in each of its processes: every function of the group is called, here twice, then the worker starts.
START = """
from importlib.metadata import entry_points

found = {entry.name: entry.load() for entry in entry_points(group="vllm.general_plugins")}
print(sorted(found))
for _ in range(2):
    for function in found.values():
        function()

from vllm.v1.worker.gpu_worker import Worker
import planfreeze

print("frozen before the start:", planfreeze.session().is_frozen)
try:
    Worker().compile_or_warm_up_model()
except planfreeze.errors.PlanfreezeError as error:
    print("the worker ends with", type(error).__name__)
"""
WORKER = """
class Worker:
    def STEP(self):
        print("warmed up")
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with the plug-in installed beside a package in the place of vLLM."""
    project = tomllib.loads((ENGINES / "pyproject.toml").read_text())["project"]
    (module,) = tomllib.loads((ENGINES / "pyproject.toml").read_text())["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{module}.py").write_text((ENGINES / f"{module}.py").read_text())
    described = tmp_path / f"{module}-{project['version']}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()) for group, found in groups
    ]
    (described / "entry_points.txt").write_text("\n".join(lines))
    worker = tmp_path / "vllm" / "v1" / "worker"
    worker.mkdir(parents=True)
    (worker / "gpu_worker.py").write_text(WORKER.replace("STEP", "compile_or_warm_up_model"))
    return tmp_path


def start(engine: Path, tutorial) -> subprocess.CompletedProcess[str]:
    """Start a worker over the store of the tutorial."""
    environments = tutorial.environments
    return subprocess.run(
        [environments.whole / "python", "-c", START],
        cwd=tutorial.folder,
        env=environments.variables(environments.whole)
        | {"PYTHONPATH": f"{engine}:.", "PLANFREEZE_STORE": "store", "PLANFREEZE_PLAN": "add-tp1-sm_90a"}
        | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_freezes_once_behind_its_warm_up_and_ends_where_that_fails(engine: Path, tutorial) -> None:
    done = start(engine, tutorial)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['frozen_workers']",
        "frozen before the start: False",
        "warmed up",
        "the worker ends with DeviceMissing",
    ]


def test_a_version_without_that_step_is_refused_at_the_start(engine: Path, tutorial) -> None:
    worker = engine / "vllm" / "v1" / "worker" / "gpu_worker.py"
    worker.write_text(WORKER.replace("STEP", "another_step"))
    done = start(engine, tutorial)
    assert done.returncode == 1
    assert "has no compile_or_warm_up_model: workers would serve without being frozen" in done.stderr
