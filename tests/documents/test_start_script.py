"""The start script of the deployment examples: its exit statuses, and what it passes on."""

import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCTORED = """#!/bin/sh
[ "$1" = doctor ] && exit 0
exec {planfreeze} "$@"
"""


@dataclass(frozen=True)
class Started:
    """How the start script is called: its variables, and the folder it runs in."""

    folder: Path
    variables: dict[str, str]

    def run(self, *command: str, **changes: str) -> tuple[int, str]:
        """Run the script to its end; return status and output."""
        done = subprocess.run(
            ["sh", "serve.sh", *command],
            cwd=self.folder,
            env=self.variables | changes,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def start(context: Path, serving: dict[str, str], tmp_path: Path) -> Started:
    """The start script over the pack, with nothing to compile with."""
    return Started(
        context,
        serving
        | {
            "PYTHONPATH": ".",
            "PLANFREEZE_STORE": "kernels.pfz",
            "PLANFREEZE_PLAN": (context / "plan.lock").read_text().strip(),
            "SERVE_REPORT": str(tmp_path / "attempts.json"),
        },
    )


@pytest.fixture
def healthy(start: Started, tmp_path: Path) -> Started:
    """The start script where the doctor finds nothing wrong, as on a machine with a device."""
    planfreeze = shutil.which("planfreeze", path=start.variables["PATH"])
    stub = tmp_path / "stubs" / "planfreeze"
    stub.parent.mkdir()
    stub.write_text(DOCTORED.format(planfreeze=planfreeze))
    stub.chmod(0o755)
    return Started(start.folder, start.variables | {"PATH": f"{stub.parent}:{start.variables['PATH']}"})


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ((), {}, "give the command that serves"),
        (("true",), {"PLANFREEZE_STORE": ""}, "PLANFREEZE_STORE is not set"),
        (("true",), {"PLANFREEZE_PLAN": ""}, "PLANFREEZE_PLAN is not set"),
        (("true",), {"PLANFREEZE_PLAN": "add-tp1-sm_90a"}, "add-tp1-sm_90a is not pinned"),
    ],
)
def test_the_start_script_says_what_is_wrong_with_its_use(
    start: Started, command: tuple[str, ...], changes: dict[str, str], message: str
) -> None:
    status, output = start.run(*command, **changes)
    assert (status, message in output) == (2, True)


def test_the_start_script_ends_with_3_where_the_plan_is_not_there(start: Started) -> None:
    status, output = start.run("true", PLANFREEZE_PLAN=f"add-tp1-sm_90a@sha256:{'1' * 64}")
    assert (status, "does not resolve from kernels.pfz" in output) == (3, True)


def test_the_start_script_ends_with_4_where_the_pack_is_damaged(start: Started, tmp_path: Path) -> None:
    damaged = bytearray((start.folder / "kernels.pfz").read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "damaged.pfz").write_bytes(damaged)
    status, _ = start.run("true", PLANFREEZE_STORE=str(tmp_path / "damaged.pfz"))
    assert status == 4


def test_the_start_script_ends_with_1_where_the_doctor_finds_another_problem(start: Started) -> None:
    status, output = start.run("true", CUDA_FORCE_PTX_JIT="1")
    assert (status, "CUDA_FORCE_PTX_JIT" in output) == (1, True)


COMPILING = """
import subprocess
try:
    subprocess.run(["gcc", "-c", "late.c"])
except Exception:
    pass
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("python", "-c", COMPILING), 5),
        (("no-such-server",), 127),
    ],
)
def test_the_start_script_passes_the_status_of_the_server_on(
    healthy: Started, command: tuple[str, ...], expected: int
) -> None:
    status, output = healthy.run(*command)
    assert status == expected, output


def test_a_signal_to_the_start_script_ends_the_server_and_says_so(
    healthy: Started, tmp_path: Path, wait_for: Callable[[Path], str]
) -> None:
    ready = tmp_path / "ready"
    started = subprocess.Popen(
        ["sh", "serve.sh", "sh", "-c", f"echo > {shlex.quote(str(ready))}; exec sleep 60"],
        cwd=healthy.folder,
        env=healthy.variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(ready)
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 128 + signal.SIGTERM
