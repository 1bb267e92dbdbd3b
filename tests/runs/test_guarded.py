"""Commands under the guard: what is counted, what is left to the command, and the status at the end."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from planfreeze.guard import Attempt, LoggedAttempt
from planfreeze.runs.guarded import count_attempts

from .conftest import TRY, compiled_files


def test_a_swallowed_attempt_ends_with_5_and_a_table(run, tried: Path, tmp_path: Path) -> None:
    done, report = run(sys.executable, tried, 3)
    assert (done.returncode, report["status"], report["command_status"]) == (5, 5, 0)
    assert done.stdout.split() == ["CompilationForbidden"] * 3
    (attempt,) = report["attempts"]
    assert (attempt["road"], attempt["kernel"], attempt["count"]) == ("triton", "toys.add_triton.add_kernel", 3)
    assert len(attempt["pids"]) == 1
    line = next(number for number, text in enumerate(TRY.splitlines(), 1) if "compile(source" in text)
    assert attempt["location"] == f"{tried}:{line}"
    row = next(row for row in done.stderr.splitlines() if "add_kernel" in row)
    assert "block: 64" in row and " 3 " in row and str(attempt["pids"][0]) in row
    assert compiled_files(tmp_path) == []


def test_streams_are_the_commands_own_and_its_status_is_passed_on(run) -> None:
    script = "import sys; print(sys.stdin.read().upper()); sys.stderr.write('complaint'); sys.exit(7)"
    done, report = run(sys.executable, "-c", script, given="text")
    assert (done.returncode, report["status"], report["attempts"]) == (7, 7, [])
    assert done.stdout == "TEXT\n"
    assert "complaint" in done.stderr


def test_json_is_the_last_line_behind_what_the_command_printed(run) -> None:
    done, report = run("sh", "-c", "echo first", options=("--json",))
    first, last = done.stdout.splitlines()
    assert first == "first"
    assert json.loads(last) == report


def test_a_shell_script_is_watched_in_the_python_processes_it_starts(run, tried: Path) -> None:
    python = f"{sys.executable} {tried}"
    done, report = run("sh", "-c", f"{python} 1; {python} 2; exit 0")
    assert done.returncode == 5
    (attempt,) = report["attempts"]
    assert attempt["count"] == 3
    assert len(attempt["pids"]) == 2


def test_5_wins_over_a_death_by_signal(run, tried: Path) -> None:
    done, report = run("sh", "-c", f"{sys.executable} {tried} 1; kill -9 $$")
    assert (done.returncode, report["command_status"]) == (5, 128 + signal.SIGKILL)


@pytest.mark.parametrize("mode", ["warn", "count"])
def test_an_attempt_goes_on_in_other_modes_and_ends_with_5_all_the_same(
    run, tried: Path, tmp_path: Path, mode: str
) -> None:
    done, report = run(sys.executable, tried, 1, options=("--mode", mode))
    assert (done.returncode, report["command_status"], len(report["attempts"])) == (5, 0, 1)
    assert done.stdout == ""
    assert len(compiled_files(tmp_path)) == 1
    assert ("RuntimeWarning" in done.stderr) == (mode == "warn")


def test_a_build_compiles_under_a_run(run, toys, interpreter, hidden_frameworks: Path, tmp_path: Path) -> None:
    model = tmp_path / "toys.toml"
    model.write_text(
        'hidden = 64\nintermediate = 64\nexperts = 2\ntop_k = 1\nweight_format = "mxfp4"\n'
        'name = "plain"\nprograms = "toys.models:enumerate_programs"\n'
    )
    build = ("build", "--model", model, "--arch", "sm_90a", "--store", tmp_path / "store")
    path = os.pathsep.join(map(str, (hidden_frameworks, *interpreter.folders)))
    done, report = run(sys.executable, "-m", "planfreeze", *build, PYTHONPATH=path)
    assert (done.returncode, report["attempts"]) == (0, []), done.stderr


def test_a_torn_last_line_counts_as_an_attempt_that_nobody_can_name(run, tried: Path) -> None:
    tear = "import os; open(os.environ['PLANFREEZE_GUARD_LOG'], 'a').write('{\"pid\": 1, \"ro')"
    done, report = run("sh", "-c", f'{sys.executable} {tried} 1; {sys.executable} -c "$TEAR"; kill -9 $$', TEAR=tear)
    assert (done.returncode, report["command_status"]) == (5, 137)
    assert [attempt["road"] for attempt in report["attempts"]] == ["triton", "unknown"]


def test_an_attempt_that_the_log_has_no_room_for_ends_with_5(run) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    attempt = f"import resource, subprocess; {limit}\ntry: subprocess.run(['gcc', '-c'])\nexcept Exception: pass"
    done, report = run(sys.executable, "-c", attempt)
    assert (done.returncode, report["command_status"]) == (5, 0), done.stderr
    assert [attempt["road"] for attempt in report["attempts"]] == ["unknown"]


def test_a_run_inside_a_run_weakens_nothing_and_hides_nothing(run, tried: Path, tmp_path: Path) -> None:
    inner = f"{sys.executable} -m planfreeze run --mode count -- {sys.executable} {tried} 1"
    done, report = run("sh", "-c", f"{inner}; exit 0")
    assert done.stdout == "CompilationForbidden\n" and compiled_files(tmp_path) == []
    assert (done.returncode, report["command_status"]) == (5, 0), done.stderr
    assert [(attempt["road"], attempt["count"]) for attempt in report["attempts"]] == [("triton", 1)]


def test_an_outer_log_that_takes_no_line_hides_no_attempt(run, tried: Path, tmp_path: Path) -> None:
    done, report = run(sys.executable, tried, 1, PLANFREEZE_GUARD_LOG=str(tmp_path / "nowhere" / "log"))
    assert (done.returncode, len(report["attempts"])) == (5, 1)
    assert "does not take a line" in done.stderr


def test_a_standard_error_that_is_closed_hides_no_attempt(triton_interpreter, tried: Path, tmp_path: Path) -> None:
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    close = "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = ("-m", "planfreeze", "run", "--", sys.executable, str(tried), "1")
    closed = triton_interpreter.start("-c", close, *command, **environment)
    assert closed.communicate(timeout=120)[0] == "CompilationForbidden\n" and closed.returncode == 5
    wait = f"read go; exec {sys.executable} {tried} 1 2>/dev/null"
    broken = triton_interpreter.start("-m", "planfreeze", "run", "--", "sh", "-c", wait, **environment)
    assert "guard proven" in broken.stderr.readline()
    broken.stderr.close()
    broken.stdin.write("go\n")
    broken.stdin.close()
    assert broken.wait(120) == 5


def test_a_command_that_clears_its_environment_is_not_seen(run, tried: Path, toys, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    paths = f"PYTHONPATH={toys.folder}:{root}", f"TRITON_CACHE_DIR={tmp_path / 'triton'}", f"HOME={tmp_path}"
    done, report = run("env", "-i", *paths, sys.executable, tried, 1)
    assert (done.returncode, report["attempts"]) == (0, [])
    assert len(compiled_files(tmp_path)) == 1


def test_equal_attempts_are_one_row_with_all_processes() -> None:
    one = Attempt(road="triton", kernel="m.f", signature="x", location="a.py:1")
    two = Attempt(road="triton", kernel="m.f", signature="y", location="a.py:1")
    logged = [LoggedAttempt(pid=pid, thread="main", attempt=attempt) for pid, attempt in ((7, one), (8, two), (9, one))]
    first, second = count_attempts(logged)
    assert (first.attempt, first.count, first.pids) == (one, 2, (7, 9))
    assert (second.attempt, second.count, second.pids) == (two, 1, (8,))
