"""Processes around a session: the child that builds for it, and forks, which CUDA does not survive."""

import os
import shlex
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Protocol

from planfreeze import errors
from planfreeze.guard.children import without_guard
from planfreeze.plan_names import build_arguments
from planfreeze.resolve import PlanReference

__all__ = ["build_in_child", "watch_forks"]


class Forkable(Protocol):
    """Something that refuses to work in a forked child."""

    def refuse_fork(self) -> None:
        """Refuse from now on."""


sessions: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch_forks(made: Forkable) -> None:
    """Tell a session when it finds itself in a forked child, as long as it lives."""
    sessions.add(made)


def refuse_forks() -> None:
    """Tell every session of a forked child."""
    for made in list(sessions):
        made.refuse_fork()


os.register_at_fork(after_in_child=refuse_forks)


def build_in_child(reference: PlanReference, store: Path, *, is_trusted: bool) -> None:
    """Build a catalog model's plan by its reference name in a child process, which shows its progress.

    Raises
    ------
    PlanMissing
        The name is not one of a model's plan, or the build failed.
    """
    arguments = build_arguments(reference.name or "") or ()
    command = [sys.executable, "-m", "planfreeze", "build", *arguments, "--store", str(store)]
    if is_trusted:
        command.append("--trust-store")
    environment = without_guard(os.environ)
    if (
        not arguments
        or subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env=environment).returncode != 0
    ):
        raise errors.PlanMissing(str(reference), str(store), shlex.join(["planfreeze", *command[3:]]))
