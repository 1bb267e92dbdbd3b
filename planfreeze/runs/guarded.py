"""Guarded runs: any command under the guard, which is proven awake first, and the attempts to compile it made."""

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

from msgspec import Struct, field

from planfreeze import errors
from planfreeze.guard import Attempt, LoggedAttempt, Mode, child_environment, read_log
from planfreeze.guard.children import strictest
from planfreeze.guard.logs import pass_on
from planfreeze.runs.commands import execute, find_program
from planfreeze.runs.questions import prove_start
from planfreeze.serving import Service, read_served, serving_environment
from planfreeze.settings import read_guard_settings

__all__ = ["RUN_MODES", "CountedAttempt", "Run", "count_attempts", "make_environment", "run_guarded"]

RUN_MODES: dict[str, Mode] = {"raise": "raise", "warn": "warn", "count": "count"}  # "off" would prove nothing
COMPILER_REACHED = 5
# Options of Python that decide what it imports at its start. Those with a value take the rest of the word or the next.
START_OPTIONS, VALUE_OPTIONS, PROGRAM_OPTIONS = "BEIOPSsb", "WX", "cm"


class CountedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt to compile, with how often it was made and in which processes."""

    attempt: Attempt
    count: int
    pids: tuple[int, ...]


class Run(Struct, frozen=True, kw_only=True):
    """What became of a command under the guard.

    Parameters
    ----------
    command : tuple of str
        The command with its arguments.
    guard : mapping
        Road to "awake" or "not installed", proven before the command started.
    attempts : tuple of CountedAttempt
        What tried to compile, in the order of the first time.
    command_status : int
        The command's own status; 128 + N when signal N ended it.
    programs : mapping
        For each program of the plan it was served from, by name, whether it was used.
    """

    command: tuple[str, ...]
    guard: Mapping[str, str]
    attempts: tuple[CountedAttempt, ...]
    command_status: int
    programs: Mapping[str, bool] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """5 when a compiler was reached, whatever the command made of it; else the command's own status."""
        return COMPILER_REACHED if self.attempts else self.command_status


def make_environment(mode: Mode, log: Path | None) -> dict[str, str]:
    """Return this process's environment with what arms a guard in every Python process started with it.

    Where this process is itself guarded by the one that started it, the stricter of the two modes counts.
    """
    asked = read_guard_settings().mode
    return child_environment(os.environ, strictest([mode, asked or "off"]) or mode, log)


def make_served(environ: dict[str, str], service: Service | None, log: Path) -> dict[str, str]:
    """Return an environment in which processes are served as well, where a plan is given."""
    if service is None:
        return environ
    return serving_environment(
        environ, store=service.store, plan=service.reference, is_trusted=service.is_trusted, log=log
    )


def run_guarded(
    command: Sequence[str],
    *,
    mode: Mode,
    on_proof: Callable[[Mapping[str, str]], None] = lambda proven: None,
    service: Service | None = None,
) -> Run:
    """Prove the guard awake in the command's environment, run the command in it, and gather its attempts.

    Parameters
    ----------
    command : sequence of str
        Program and arguments. It has this process's standard streams, and gets the signals sent to it.
    mode : str
        What an attempt does: "raise", "warn" or "count".
    on_proof : callable
        Called with the proven roads before the command starts.
    service : Service, optional
        Plan that compilers' own runtimes are served from in the command's processes.

    Raises
    ------
    CommandMissing, CommandNotExecutable
        There is no such program, or it cannot be started.
    StartNotWatched
        The guard does not reach the Python processes that the command starts.
    GuardAsleep
        A deliberate attempt to compile was not stopped. The command does not start then.
    """
    program = find_program(command[0])
    with tempfile.TemporaryDirectory(prefix="planfreeze-run-") as folder:
        log, served = Path(folder, "attempts"), Path(folder, "served")
        environment = make_served(make_environment(mode, log), service, served)
        proven = prove_start(environment, python_of(program, command[1:]))
        on_proof(proven)
        status = execute(program, command, environment)
        attempts = count_attempts(read_attempts(log))
        used = read_served(served)
        hand_on(log)
    programs = {} if service is None else {name: digest in used for digest, name in service.programs.items()}
    return Run(command=tuple(command), guard=proven, attempts=attempts, command_status=status, programs=programs)


def hand_on(log: Path) -> None:
    """Add the attempts of a run to the log of the run around it; they end this one with 5 in any case."""
    try:
        pass_on(log, read_guard_settings().log)
    except errors.GuardLogFailed as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def read_attempts(log: Path) -> tuple[LoggedAttempt, ...]:
    """Return the attempts of a run. A log that was made and is empty is that of one that could not be written."""
    logged = read_log(log)
    if logged or not log.exists():
        return logged
    lost = Attempt(road="unknown", kernel="an attempt that could not be logged", location="unknown:0")
    return (LoggedAttempt(pid=0, thread="", attempt=lost),)


def count_attempts(logged: Iterable[LoggedAttempt]) -> tuple[CountedAttempt, ...]:
    """Put equal attempts together, in the order of the first of each."""
    processes: dict[Attempt, Counter[int]] = {}
    for entry in logged:
        processes.setdefault(entry.attempt, Counter())[entry.pid] += 1
    return tuple(
        CountedAttempt(attempt=attempt, count=pids.total(), pids=tuple(pids)) for attempt, pids in processes.items()
    )


def python_of(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the Python that a command starts, with the options that decide whether a guard reaches it.

    A script's first line says who runs it. A command that starts none, or one that cannot be told, is taken to
    start this one.
    """
    words = [program, *arguments]
    try:
        with Path(program).open("rb") as file:
            first = file.readline(256)
    except OSError:  # it may be executed and not read
        first = b""
    if first.startswith(b"#!"):
        words = first[2:].decode(errors="replace").split()
        if words and Path(words[0]).name == "env":
            words = list(dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:]))
    python = shutil.which(words[0]) if words else None
    if python is None or not re.fullmatch(r"python[0-9.]*t?", Path(words[0]).name):
        return [sys.executable]
    return [python, *start_options(words[1:])]


def start_options(words: Sequence[str]) -> list[str]:
    """Return Python's options in front of its program that decide what it imports at its start."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if not re.match(r"-[A-Za-z]", word):
            break
        for place, letter in enumerate(word[1:], start=1):
            if letter in PROGRAM_OPTIONS:
                return options
            if letter in VALUE_OPTIONS:
                options.append(f"-{letter}{word[place + 1 :] or next(rest, '')}")
                break
            if letter in START_OPTIONS:
                options.append(f"-{letter}")
    return options
