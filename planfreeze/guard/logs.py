"""Logs of attempts: one file for all processes of a run, one JSON line for each attempt."""

import os
import threading
from pathlib import Path
from typing import NamedTuple

from planfreeze import errors
from planfreeze.guard.attempts import PARTICIPLES, Attempt
from planfreeze.shared_logs import append_lines, read_lines

__all__ = ["LoggedAttempt", "pass_on", "read_log", "write_log"]


class LoggedAttempt(NamedTuple):
    """An attempt, and the process and thread that made it."""

    pid: int
    thread: str
    attempt: Attempt


def write_log(path: Path, attempt: Attempt) -> None:
    """Add an attempt of this process to a log.

    Raises
    ------
    GuardLogFailed
        It could not be written: a run that reads the log would miss it.
    """
    import json  # here, not at the start of every guarded child

    entry = {
        "pid": os.getpid(),
        "road": attempt.road,
        "kernel": attempt.kernel,
        "signature": attempt.signature,
        "location": attempt.location,
        "thread": threading.current_thread().name,
        "action": attempt.action,
    }
    append(path, json.dumps(entry).encode() + b"\n", str(attempt))


def append(path: Path, lines: bytes, attempt: str) -> None:
    try:
        append_lines(path, lines)
    except OSError as error:
        raise errors.GuardLogFailed(str(path), attempt, str(error)) from error


def pass_on(path: Path, outer: Path | None) -> None:
    """Add the attempts of a log to that of the run around it, if there is one.

    Raises
    ------
    GuardLogFailed
        They could not be written.
    """
    if outer is None or not path.exists():
        return
    lines = path.read_bytes()
    append(outer, lines if lines.endswith(b"\n") else lines + b"\n", "those of a run inside this one")


def read_log(path: Path) -> tuple[LoggedAttempt, ...]:
    """Return the attempts of a log in the order they were made; a log that does not exist has none.

    A line that cannot be read stands for an attempt that could not be written: its road is ``unknown``.
    """
    return tuple(map(parse_line, read_lines(path)))


def parse_line(line: bytes) -> LoggedAttempt:
    import json

    try:
        entry = json.loads(line)
        attempt = Attempt(
            road=str(entry["road"]),
            kernel=str(entry["kernel"]),
            signature=str(entry["signature"]),
            location=str(entry["location"]),
            action=entry["action"] if entry["action"] in PARTICIPLES else "compile",
        )
        return LoggedAttempt(pid=int(entry["pid"]), thread=str(entry["thread"]), attempt=attempt)
    except (ValueError, KeyError, TypeError):
        text = line.decode(errors="replace")
        return LoggedAttempt(pid=0, thread="", attempt=Attempt(road="unknown", kernel=text, location="unknown:0"))
