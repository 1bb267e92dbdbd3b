"""What is proven, found and refused before a command starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.runs.guarded import execute, find_program, python_of

from .conftest import AWAKE


def test_the_guard_is_proven_by_every_road_before_and_outside_the_counts(run, interpreter) -> None:
    path = os.pathsep.join(map(str, interpreter.folders))
    done, report = run(sys.executable, "-c", "", PYTHONPATH=path)
    assert (done.returncode, report["attempts"]) == (0, [])
    assert AWAKE.items() <= report["guard"].items()
    assert set(report["guard"].values()) <= {"awake", "not installed"}
    assert done.stderr.index("triton awake") < done.stderr.index("no compiler was reached")


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_leaves_the_guard_out_is_refused_before_it_starts(run, tmp_path: Path, option: str) -> None:
    done, report = run(sys.executable, option, "-c", f"open({str(tmp_path / 'started')!r}, 'w')")
    assert (done.returncode, report) == (5, {})
    assert f"{sys.executable} {option} starts without the guard" in done.stderr
    assert f"Leave out {option}" in done.stderr and "pip install" not in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_road_that_sleeps_ends_with_5_before_the_command_starts(run, triton_interpreter, tmp_path: Path) -> None:
    # The start-up hook runs this after it armed the guard.
    start = triton_interpreter.folders[0] / "sitecustomize.py"
    start.write_text(
        f"{start.read_text()}\nfrom planfreeze.guard.watch import watch\nwatch.report = lambda attempt: None\n"
    )
    done, report = run(sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')")
    assert (done.returncode, report) == (5, {})
    assert "triton" in done.stderr and "did not stop a deliberate attempt" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ((), 2, "Missing argument"),
        (("--mode", "off", "--", "true"), 2, "raise, warn, count"),
        (("--", "no-such-command"), 127, "no-such-command is not found"),
        (("--", "/no/such/command"), 127, "/no/such/command is not found"),
        (("--", "/tmp"), 126, "directory"),
        (("--report", "/no/such/folder/report", "--", "true"), 6, "/no/such/folder/report"),
    ],
)
def test_what_cannot_run_says_so(command: tuple[str, ...], status: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planfreeze", "run", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert message in done.stderr
    assert done.stdout == ""


def test_a_file_without_permission_and_one_of_no_format_are_not_executable(tmp_path: Path, run) -> None:
    script = tmp_path / "script"
    script.write_text("not a program\n")
    done, _ = run(script)
    assert (done.returncode, "permission denied" in done.stderr) == (126, True)
    script.chmod(0o755)
    done, _ = run(script)
    assert (done.returncode, "format" in done.stderr) == (126, True)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["script.py", "-I"], []),
        (["-c", "print()", "-E"], []),
        (["-Im", "module"], ["-I"]),
        (["-uSE", "script.py"], ["-S", "-E"]),
        (["-X", "dev", "-Wignore", "-s", "-"], ["-Xdev", "-Wignore", "-s"]),
    ],
)
def test_the_options_of_a_python_command_are_those_of_the_proof(arguments: list[str], options: list[str]) -> None:
    assert python_of(sys.executable, arguments) == [sys.executable, *options]


def test_a_script_is_proven_with_the_python_of_its_first_line(tmp_path: Path) -> None:
    other = tmp_path / "python3.12"
    other.symlink_to(sys.executable)
    script = tmp_path / "serve"
    for line, expected in (
        (f"#!{other} -E", [str(other), "-E"]),
        (f"#!/usr/bin/env -S {other} -s", [str(other), "-s"]),
        ("#!/bin/sh", [sys.executable]),
        ("#!", [sys.executable]),
    ):
        script.write_text(f"{line}\n")
        script.chmod(0o755)
        assert python_of(str(script), ["-I"])[: len(expected)] == expected


def test_a_program_is_found_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("program") == str(program)
    assert execute(str(program), ["program"], {}) == 4


def test_a_proof_that_breaks_off_is_no_proof(run, triton_interpreter) -> None:
    start = triton_interpreter.folders[0] / "sitecustomize.py"
    start.write_text(f"{start.read_text()}\nimport planfreeze.guard.proofs\nplanfreeze.guard.proofs.ROADS = [None]\n")
    done, report = run(sys.executable, "-c", "")
    assert (done.returncode, report) == (5, {})
    assert "did not stop a deliberate attempt" in done.stderr and "AttributeError" in done.stderr
