"""Runs: a command with all its processes, under the guard, served from a plan, or recorded."""

from planfreeze.runs.guarded import Run, run_guarded
from planfreeze.runs.recorded import record_command

__all__ = ["Run", "record_command", "run_guarded"]
