"""Progress on standard error: a bar on a terminal, nothing elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["show_progress"]


@contextlib.contextmanager
def show_progress(task: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that moves the bar; the bar goes away at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)
