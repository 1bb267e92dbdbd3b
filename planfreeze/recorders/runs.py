"""Runs: a command whose processes are recorded, from its start to its end."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from planfreeze.errors import CommandUnusable
from planfreeze.recorders.processes import make_recording
from planfreeze.recordings import Recording
from planfreeze.serving.environment import recording_environment

__all__ = ["record_command"]


def record_command(command: Sequence[str]) -> tuple[int, Recording]:
    """Run a command and return its exit status, or 128 plus the signal that ended it, with what its processes used.

    Raises
    ------
    CommandUnusable
        It cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="planfreeze-record-") as folder:
        status = run(command, recording_environment(os.environ, Path(folder)))
        lines = [line for part in sorted(Path(folder).iterdir()) for line in part.read_text().splitlines()]
        return status, make_recording(lines)


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command to its end; a signal to end this process is passed on, and an interrupt reaches both by itself."""
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise CommandUnusable(
            command[0], error.strerror or str(error), is_missing=isinstance(error, FileNotFoundError)
        ) from error

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
