"""A script that tries to compile, and commands that run under the guard."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Tries to compile the kernel of the toys as often as it is told, swallows the errors and ends well.
TRY = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, compile
from toys.add_triton import add_kernel
source = ASTSource(
    fn=add_kernel,
    signature={"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"},
    constexprs={"block": 64},
)
for attempt in range(int(sys.argv[1])):
    try:
        compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception as error:
        print(type(error).__name__)
"""
AWAKE = {"triton": "awake", "cute": "awake"}


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    """A script that tries to compile."""
    script = tmp_path / "tried.py"
    script.write_text(TRY)
    return script


@pytest.fixture
def run(triton_interpreter, tmp_path: Path) -> Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any]]]:
    """Run ``planfreeze run`` with a command; return the finished process and its report."""

    def start(*command: object, options: tuple[str, ...] = (), given: str = "", **environment: str):
        report = tmp_path / "report.json"
        arguments = ["-m", "planfreeze", "run", *options, "--report", str(report), "--", *map(str, command)]
        environment.setdefault("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        started = triton_interpreter.start(*arguments, **environment)
        output, errors = started.communicate(given, timeout=120)
        done = subprocess.CompletedProcess(arguments, started.returncode, output, errors)
        text = report.read_text() if report.exists() else ""
        return done, json.loads(text) if text else {}

    return start


def compiled_files(folder: Path) -> list[Path]:
    return list((folder / "triton").rglob("*.cubin"))
