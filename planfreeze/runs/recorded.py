"""Recorded runs: a command whose processes are recorded, from its start to its end."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planfreeze.recorders.processes import make_recording
from planfreeze.recordings import Recording
from planfreeze.runs.commands import execute, find_program
from planfreeze.serving.environment import recording_environment

__all__ = ["record_command"]


def record_command(command: Sequence[str]) -> tuple[int, Recording]:
    """Run a command and return its exit status, or 128 plus the signal that ended it, with what its processes used.

    Raises
    ------
    CommandMissing, CommandNotExecutable
        There is no such program, or it cannot be started.
    """
    program = find_program(command[0])
    with tempfile.TemporaryDirectory(prefix="planfreeze-record-") as folder:
        status = execute(program, command, recording_environment(os.environ, Path(folder)))
        lines = [line for part in sorted(Path(folder).iterdir()) for line in part.read_text().splitlines()]
        return status, make_recording(lines)
