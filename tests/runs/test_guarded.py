"""Commands under the guard: what is proven before, what is counted, and the status at the end."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planfreeze.guard import Attempt, LoggedAttempt
from planfreeze.runs.guarded import count_attempts, execute, find_program, python_of

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


def test_the_guard_is_proven_by_every_road_before_and_outside_the_counts(run, interpreter) -> None:
    path = os.pathsep.join(map(str, interpreter.folders))
    done, report = run(sys.executable, "-c", "", PYTHONPATH=path)
    assert (done.returncode, report["attempts"]) == (0, [])
    assert AWAKE.items() <= report["guard"].items()
    assert set(report["guard"].values()) <= {"awake", "not installed"}
    assert done.stderr.index("triton awake") < done.stderr.index("no compiler was reached")


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


def test_a_death_by_signal_is_the_status_a_shell_would_give(run) -> None:
    done, report = run("sh", "-c", "kill -9 $$")
    assert (done.returncode, report["status"]) == (137, 137)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command_which_decides_how_it_ends(triton_interpreter, number: signal.Signals) -> None:
    script = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(33))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    started = triton_interpreter.start("-m", "planfreeze", "run", "--", sys.executable, "-c", script)
    assert started.stdout.readline() == "ready\n"
    started.send_signal(number)
    started.communicate(timeout=60)
    assert started.returncode == 33


def test_a_command_that_dies_of_the_signal_gives_128_and_its_number(triton_interpreter) -> None:
    started = triton_interpreter.start("-m", "planfreeze", "run", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGTERM


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


def test_equal_attempts_are_one_row_with_all_processes() -> None:
    one = Attempt(road="triton", kernel="m.f", signature="x", location="a.py:1")
    two = Attempt(road="triton", kernel="m.f", signature="y", location="a.py:1")
    logged = [LoggedAttempt(pid=pid, thread="main", attempt=attempt) for pid, attempt in ((7, one), (8, two), (9, one))]
    first, second = count_attempts(logged)
    assert (first.attempt, first.count, first.pids) == (one, 2, (7, 9))
    assert (second.attempt, second.count, second.pids) == (two, 1, (8,))


def test_the_command_starts_without_the_signals_that_python_and_the_run_took(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(find_program("grep"), ["grep", "^Sig[BI]", "/proc/self/status"], {}) == 0
    blocked, ignored = (int(line.split()[1], 16) for line in capfd.readouterr().out.splitlines())
    assert blocked == 0
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1, number


def test_a_command_ends_also_for_a_process_that_was_started_to_ignore_its_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert execute(find_program("sh"), ["sh", "-c", "exit 7"], {}) == 7
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_proof_that_breaks_off_is_no_proof(run, triton_interpreter) -> None:
    start = triton_interpreter.folders[0] / "sitecustomize.py"
    start.write_text(f"{start.read_text()}\nimport planfreeze.guard.proofs\nplanfreeze.guard.proofs.ROADS = [None]\n")
    done, report = run(sys.executable, "-c", "")
    assert (done.returncode, report) == (5, {})
    assert "did not stop a deliberate attempt" in done.stderr and "AttributeError" in done.stderr


# Takes a terminal as its own, with standard streams, and becomes another program.
TAKE_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in range(3):
    os.dup2(terminal, stream)
os.execv(sys.argv[2], sys.argv[2:])
"""
# Leaves the terminal's process group, so that an interrupt there reaches it only if somebody passes it on.
COUNT_INTERRUPTS = """
import os, signal, sys, time
os.setpgid(0, 0)
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(len(count)))
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_an_interrupt_at_the_terminal_is_left_to_the_terminal(triton_interpreter) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "planfreeze", "run", "--", sys.executable, "-c", COUNT_INTERRUPTS]
    started = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, os.ttyname(theirs), *command],
        env=triton_interpreter.environment(),
        cwd=triton_interpreter.home,
        start_new_session=True,
    )
    seen = ""

    def read_until(words: str) -> None:
        nonlocal seen
        while words not in seen:
            seen += os.read(ours, 4096).decode()

    read_until("ready")
    os.close(theirs)  # from here on, the end of the command ends the reading
    os.write(ours, b"\x03")
    read_until("^C")  # the terminal shows it when it has sent the signal
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=60) == 0
    os.close(ours)
