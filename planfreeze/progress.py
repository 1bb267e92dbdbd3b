"""Progress on standard error: a bar on a terminal, lines elsewhere, nothing when quiet was asked for."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from planfreeze.outcomes import Outcome

__all__ = ["build_progress", "verify_progress"]

LINE_EVERY_S = 5.0


def find_terminal() -> "Console | None":
    """Return the terminal that standard error is; None for a pipe, a file, or one that cannot move its cursor."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # slow to import, and in a pipe not needed

    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


@contextlib.contextmanager
def build_progress(total: int, *, is_quiet: bool = False) -> Iterator[Callable[["Outcome"], None]]:
    """Show outcomes on standard error as they come: a bar on a terminal, lines elsewhere, nothing when quiet."""
    if is_quiet or sys.stderr is None:
        yield lambda outcome: None
        return
    console = find_terminal()
    if console is None:
        yield print_outcome
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("build", total=total)

        def advance(outcome: "Outcome") -> None:
            is_done = outcome.status != "waiting"
            description = f"{outcome.status} {outcome.program.payload.family_name}"
            bar.update(task, advance=is_done, description=description if is_done else describe_wait(outcome))

        yield advance


def print_outcome(outcome: "Outcome") -> None:
    """Print one outcome as a line; programs that were there already are not worth one."""
    if outcome.status == "waiting":
        sys.stderr.write(f"{describe_wait(outcome)}\n")
    elif outcome.status != "reused":
        sys.stderr.write(
            f"{outcome.status} {outcome.program.name} {outcome.program.target.arch} {outcome.seconds:.2f} s\n"
        )


def describe_wait(outcome: "Outcome") -> str:
    """Say who holds a program and for how long that has been waited for."""
    return f"waiting {outcome.seconds:.0f} s for {outcome.reason}, which holds {outcome.program.name}"


@contextlib.contextmanager
def verify_progress(*, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show how many entries are done on standard error: a bar on a terminal, a line now and then elsewhere."""
    if is_quiet or sys.stderr is None:
        yield lambda done, total: None
        return
    console = find_terminal()
    if console is None:
        yield LinePrinter().show
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class LinePrinter:
    """Prints a line every five seconds, none for what takes less."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + LINE_EVERY_S
        self._lock = threading.Lock()

    def show(self, done: int, total: int) -> None:
        """Print how far it is, if it is time."""
        with self._lock:
            if time.monotonic() >= self._next_s:
                self._next_s = time.monotonic() + LINE_EVERY_S
                sys.stderr.write(f"verified {done} of {total} entries\n")
