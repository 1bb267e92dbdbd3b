"""Signals and interrupts: they are left to the command, and its end is the end of the run."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from planfreeze.runs.guarded import execute, find_program


def test_a_death_by_signal_is_the_status_a_shell_would_give(run) -> None:
    done, report = run("sh", "-c", "kill -9 $$")
    assert (done.returncode, report["status"]) == (137, 137)


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
    time.sleep(0.1)  # a signal just before a sleep does not end it
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
