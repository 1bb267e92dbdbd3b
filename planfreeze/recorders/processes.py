"""Processes that are recorded: this one for a while, or one from the import of its compiler to its end."""

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from planfreeze import errors
from planfreeze.guard.imports import ImportWatcher, is_importing
from planfreeze.recorders.cute import recorder as cute_recorder
from planfreeze.recorders.tally import Recorder, Release, Tally
from planfreeze.recorders.triton import recorder as triton_recorder
from planfreeze.recordings import Recording, check_writable, merge_lines
from planfreeze.settings import InheritedSettings

__all__ = ["RECORDERS", "arrived", "make_recording", "recording"]

RECORDERS: tuple[Recorder, ...] = (triton_recorder, cute_recorder)


@contextlib.contextmanager
def recording(path: str | Path) -> Iterator[Tally]:
    """Record what this process launches while the block runs, all threads included.

    Parameters
    ----------
    path : path
        File that the recording is written to; ``planfreeze build --plan`` takes it.

    Yields
    ------
    Tally
        What was launched so far.

    Raises
    ------
    RecordingUnwritable
        The file cannot be written, found before the block runs or at its end.

    Notes
    -----
    Nothing is written when the block raises. What cannot be recorded is listed in the file, and refused by a build
    unless it is allowed.
    """
    check_writable(Path(path))
    lines: list[str] = []
    tally = Tally(lines.append)
    release = watch_imports(tally)
    try:
        yield tally
    finally:
        release()
    tally.finish()
    make_recording(lines).write(Path(path))


@functools.cache
def process_tally(folder: Path) -> Tally:
    """Return what this process is recorded by until it ends, as lines of a file of its own in a folder.

    Forked children write files of their own; one that ends without running its exit functions has said what it
    launched, but not how often.
    """

    def write(line: str) -> None:
        path = folder / f"{os.getpid()}.jsonl"
        try:
            with path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise errors.RecordingUnwritable(str(path), str(error)) from error

    tally = Tally(write)
    os.register_at_fork(after_in_child=tally.forget)
    atexit.register(tally.finish)
    return tally


def arrived(module: ModuleType, settings: InheritedSettings) -> None:
    """Hook a module of a compiler that was just imported by a process that is recorded."""
    assert settings.folder is not None
    install_recorders(module, process_tally(settings.folder))


def install_recorders(module: ModuleType, tally: Tally) -> list[Release]:
    """Put the hooks of every recorder that waits for a module into it."""
    return [recorder.install(module, tally) for recorder in RECORDERS if module.__name__ in recorder.modules]


def make_recording(lines: Sequence[str]) -> Recording:
    """Make a recording of the lines of all processes of a run; its folders become relative to this one's."""
    recorded = merge_lines(lines)
    installed = {os.path.realpath(path) for path in (*sys.path, sys.prefix) if "site-packages" in path}
    roots = (root for root in recorded.source_roots if os.path.realpath(root) not in installed)
    return recorded.relocate(tuple(sorted(os.path.relpath(root) for root in roots)))


def watch_imports(tally: Tally) -> Release:
    """Put every recorder's hooks in place, now or when its modules are imported; return what takes them off."""
    releases: list[Release] = []
    seen: set[int] = set()

    def arrived(module: ModuleType) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            releases.extend(install_recorders(module, tally))

    names = frozenset(name for recorder in RECORDERS for name in recorder.modules)
    watcher = ImportWatcher(names, arrived, lambda: None)
    sys.meta_path.insert(0, watcher)
    for name in names:
        loaded = sys.modules.get(name)
        if loaded is not None and not is_importing(loaded):
            arrived(loaded)

    def release() -> None:
        if watcher in sys.meta_path:
            sys.meta_path.remove(watcher)
        for undo in reversed(releases):
            undo()

    return release
