"""The command line, in this process or one of its own, and a small model to call it with."""

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from planfreeze.cli import app

ROOT = Path(__file__).parents[1]

RUNNER = CliRunner()
DS41 = ("--model", "ds41", "--tp", "4", "--arch", "sm_90a")
MODEL = (*DS41, "--capacity", "64", "--ids", "int32", "--inline-limit", "64")
# One capacity, one type of ids, nothing above the limit: as few programs as a model of this size can have.
FAMILIES = ("act_quant", "route_plan", "split_fc1", "split_fc2", "topk_sum")


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = RUNNER.invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


def spawn(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "planfreeze", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
