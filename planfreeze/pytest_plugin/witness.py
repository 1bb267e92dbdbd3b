"""Witnesses: guards that keep every attempt they saw, also those whose error was swallowed."""

import os
import threading
from pathlib import Path

from planfreeze.guard import Attempt, LoggedAttempt, read_log
from planfreeze.guard.guards import LOADS, Explain, Guard

__all__ = ["Witness"]


class Witness(Guard):
    """A guard that refuses to compile and keeps what was tried. Loading programs is allowed.

    Parameters
    ----------
    log : Path, optional
        File to which guarded processes started from here add their attempts; what it holds already is left out.
    explain : callable, optional
        As for :class:`~planfreeze.guard.Guard`.
    """

    def __init__(self, *, log: Path | None = None, explain: Explain | None = None) -> None:
        super().__init__(mode="raise", explain=explain, allowed=LOADS)
        self.log = log
        self.lines_read = 0 if log is None else len(read_log(log))
        self.kept: list[LoggedAttempt] = []

    def count(self, attempt: Attempt) -> None:
        """Count an attempt and keep it."""
        super().count(attempt)
        seen = LoggedAttempt(pid=os.getpid(), thread=threading.current_thread().name, attempt=attempt)
        with self.lock:
            self.kept.append(seen)

    def take(self) -> tuple[LoggedAttempt, ...]:
        """Return the attempts of this process and of those started from it, each once."""
        with self.lock:
            own, self.kept = self.kept, []
        logged = () if self.log is None else read_log(self.log)[self.lines_read :]
        self.lines_read += len(logged)
        return (*own, *(entry for entry in logged if entry.pid != os.getpid()))
