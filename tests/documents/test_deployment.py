"""The deployment examples: a Dockerfile and a workflow, run as far as a machine without a GPU goes."""

import json
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"


def tool(name: str) -> Path:
    """Return a program that was installed with the tests."""
    return Path(sysconfig.get_path("scripts")) / name


def test_the_dockerfile_is_one_that_hadolint_has_nothing_to_warn_of() -> None:
    done = subprocess.run(
        [tool("hadolint"), "--failure-threshold", "warning", DEPLOY / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_start_script_is_one_that_shellcheck_has_nothing_to_say_of() -> None:
    done = subprocess.run([tool("shellcheck"), DEPLOY / "serve.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile."""

    name: str
    value: str


def read_stages(path: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of every stage by the stage's name; those before the first are in none."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    stages: dict[str, list[Instruction]] = {}
    for line in filter(str.strip, "\n".join(lines).replace("\\\n", " ").splitlines()):
        name, value = line.split(maxsplit=1)
        if name == "FROM":
            stages[value.split(" AS ")[1]] = []
        elif stages:
            list(stages.values())[-1].append(Instruction(name, value))
    return stages


@dataclass
class Image:
    """Stages as folders: ``/app`` is one, and what is installed is what a stage is said to have."""

    folder: Path
    context: Path
    arguments: dict[str, str]
    notes: Path
    stages: dict[str, dict[str, str]] = field(default_factory=dict)

    def build(self, stage: str, variables: dict[str, str]) -> None:
        """Follow the instructions of a stage in an environment."""
        app = self.folder / stage
        app.mkdir(parents=True)
        variables = self.stages[stage] = variables | {"NOTES": str(self.notes)}
        for instruction in read_stages(DEPLOY / "Dockerfile")[stage]:
            value = instruction.value.replace("/app", str(app))
            match instruction.name:
                case "ARG":
                    name, _, default = value.partition("=")
                    variables[name] = self.arguments.get(name, default)
                case "ENV":
                    for name, text in (pair.split("=", 1) for pair in value.split()):
                        variables[name] = re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], text)
                case "COPY":
                    self.copy(app, instruction.value.split())
                case "RUN":
                    done = self.run(stage, ["sh", "-ec", value])
                    assert done.returncode == 0, f"RUN {value}\n{done.stdout}"
                case "WORKDIR" | "USER" | "ENTRYPOINT" | "CMD":
                    pass
                case name:
                    pytest.fail(f"{name} is not followed")

    def copy(self, app: Path, words: list[str]) -> None:
        """Follow COPY, from the context or another stage."""
        *sources, target = [word for word in words if not word.startswith("--from=")]
        stage = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
        for source in sources:
            if stage is not None:
                shutil.copy(self.folder / stage / source.removeprefix("/app/"), app / target)
            elif (self.context / source).is_dir():
                shutil.copytree(self.context / source, app / target)
            else:
                shutil.copy(self.context / source, app / target)

    def run(self, stage: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a stage."""
        return subprocess.run(
            command,
            cwd=self.folder / stage,
            env=self.stages[stage],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def make_image(context: Path, tmp_path: Path) -> Callable[[str], Image]:
    """An image before its first stage, for a pinned plan."""

    def make(plan: str) -> Image:
        return Image(tmp_path / "image", context, {"PLAN": plan}, tmp_path / "notes")

    return make


def test_the_build_stage_builds_what_its_files_say(
    make_image: Callable[[str], Image], context: Path, building: dict[str, str], serving: dict[str, str]
) -> None:
    image = make_image((context / "plan.lock").read_text().strip())
    image.build("build", building)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (installed,) = image.notes.read_text().splitlines()
    assert installed.endswith(f"planfreeze[build]=={project['version']}")
    assert "build" in project["optional-dependencies"]
    assert (image.folder / "build" / "kernels.pfz").read_bytes() == (context / "kernels.pfz").read_bytes()

    image.build("serve", serving)
    installed, removed = image.notes.read_text().splitlines()[1:]
    assert installed.endswith(f"planfreeze[serve]=={project['version']}")
    assert removed == "uninstall --yes triton"
    assert not (image.folder / "serve" / "store").exists()

    started = {found.name: json.loads(found.value) for found in read_stages(DEPLOY / "Dockerfile")["serve"][-2:]}
    done = image.run("serve", [*started["ENTRYPOINT"], *started["CMD"]])
    assert done.returncode == 6, done.stdout  # all is there but a device and torch
    assert "serve.sh: frozen serving would not work here" in done.stdout


def test_another_plan_than_the_pinned_one_ends_the_build_stage(
    make_image: Callable[[str], Image], building: dict[str, str]
) -> None:
    image = make_image(f"add-tp1-sm_90a@sha256:{'0' * 64}")
    with pytest.raises(AssertionError, match="RUN planfreeze replay"):
        image.build("build", building)


def test_every_step_of_the_workflow_runs(
    context: Path, tmp_path: Path, building: dict[str, str], serving: dict[str, str]
) -> None:
    work = tmp_path / "work"
    shutil.copytree(context, work)
    (work / "last").mkdir()
    shutil.copy(work / "kernels.pfz", work / "last")
    jobs = yaml.safe_load((DEPLOY / "kernels.yml").read_text())["jobs"]
    added = {"PYTHONPATH": ".", "NOTES": str(tmp_path / "notes"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    ended = {}
    for name, job in jobs.items():
        for step in job["steps"]:
            if "run" in step:
                command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
                variables = (serving if name == "serve" else building) | added
                done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, check=False)
                ended[name, step["name"]] = done.returncode
                expected = 6 if "serve.sh" in step["run"] else 0  # all is there but a device and torch
                assert done.returncode == expected, f"{step['name']}\n{done.stdout}{done.stderr}"
    named = {(name, step["name"]) for name, job in jobs.items() for step in job["steps"] if "run" in step}
    assert set(ended) == named
    for job in jobs.values():
        for step in job["steps"]:
            assert ("run" in step) != bool(re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", ""))), step


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 0), (4, 1)])
def test_a_difference_is_shown_and_only_a_failure_of_the_comparison_fails(
    tmp_path: Path, status: int, expected: int
) -> None:
    steps = yaml.safe_load((DEPLOY / "kernels.yml").read_text())["jobs"]["kernels"]["steps"]
    (text,) = [step["run"] for step in steps if "planfreeze diff" in step.get("run", "")]
    write_script(tmp_path / "stubs" / "planfreeze", f'#!/bin/sh\necho "$*"\nexit {status}\n')
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "kernels.pfz").touch()
    summary = tmp_path / "summary"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path / 'stubs'}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(summary)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == expected
    assert summary.read_text() == "diff last/kernels.pfz kernels.pfz\n"
