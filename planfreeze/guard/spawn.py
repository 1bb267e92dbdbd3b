"""The spawn road: compilers and build drivers that this process starts, by any means that Python announces.

What counts as an attempt: the start of a program that :mod:`planfreeze.guard.commands` knows as a compiler. One that
is only asked for its version or its paths compiles nothing and is allowed.

The interpreter announces a process to its audit hooks before it starts it, and a hook stops it by raising. A hook
cannot be taken off: there is one per process, and with no guard armed it returns at once. What ``os.spawn*``
starts is announced in the forked child, where an error helps nobody, so that function has a gate.

Not seen: processes that native code starts, also by ctypes or ``_posixsubprocess.fork_exec``; what a started script
or program starts itself; a copy of a compiler under another name; a compiler in a child that user code forked is
stopped there, but not counted here.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, NoAttempt, Release, Report, user_location
from planfreeze.guard.commands import Command, find_compiler
from planfreeze.guard.gates import state
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import shorten

__all__ = ["road"]

# Announced by nobody else: shows that the hook hears.
TEST_EVENT = "planfreeze.guard.spawn"
# No such file: a deliberate attempt that nothing stops fails by itself.
PROBE = "/nonexistent/gcc"


def read_words(words: object) -> tuple[str, ...]:
    """Return the words of a command as text; what no process could be started with is left out."""
    if isinstance(words, str | bytes | os.PathLike):
        return (os.fsdecode(words),)
    if not isinstance(words, Iterable):
        return ()
    return tuple(os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike))


def search_path(environ: object) -> str | None:
    """Return the search path a child will have, or None for this process's."""
    if not isinstance(environ, Mapping):
        return None
    return next((os.fsdecode(value) for name, value in environ.items() if name in ("PATH", b"PATH")), None)


def read_popen(executable: object, arguments: object, directory: object, environ: object) -> Command | None:
    """Find the compiler in a ``subprocess.Popen``."""
    name = "".join(read_words(executable))
    if "/" in name:
        # A relative path counts from the directory the child starts in; an absolute one is joined to nothing.
        name = str(Path(*read_words(directory), name))
    return find_compiler(name, read_words(arguments), search_path(environ))


def read_exec(file: object, arguments: object, environ: object) -> Command | None:
    """Find the compiler in an ``os.exec*``; with a search path it is announced for every directory there."""
    # A program that is open already is executed by its descriptor.
    name = f"/proc/self/fd/{file}" if isinstance(file, int) else "".join(read_words(file))
    return find_compiler(name, read_words(arguments), search_path(environ)) if Path(name).exists() else None


def read_spawn(file: object, arguments: object, environ: object) -> Command | None:
    """Find the compiler in an ``os.posix_spawn*``."""
    if sys._getframe(EVENT_DEPTH).f_globals.get("__name__") == "subprocess":
        # Announced as subprocess.Popen a moment ago.
        return None
    return find_compiler("".join(read_words(file)), read_words(arguments), search_path(environ))


def read_system(command: object) -> Command | None:
    """Find the compiler in an ``os.system``."""
    return find_compiler("sh", ("sh", "-c", *read_words(command)))


def read_terminal(arguments: object) -> Command | None:
    """Find the compiler in a ``pty.spawn``."""
    words = read_words(arguments)
    return find_compiler(words[0], words) if words else None


# Frames from a reader to the code that starts the process: announce, hear.
EVENT_DEPTH = 3
READERS: Mapping[str, Callable[..., Command | None]] = {
    "os.exec": read_exec,
    "os.posix_spawn": read_spawn,
    "os.system": read_system,
    "pty.spawn": read_terminal,
    "subprocess.Popen": read_popen,
}


class Listeners:
    """Who hears of compilers that start in this process."""

    def __init__(self) -> None:
        self.reports: tuple[Report, ...] = ()
        self.has_hook = False

    def announce(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Report the start of a process, if it is a compiler's."""
        if not self.reports or state.is_passing:
            return
        attempt = make_attempt(READERS[event](*arguments))
        if attempt is not None:
            for report in self.reports:
                report(attempt)

    def add_hook(self) -> None:
        """Add the audit hook, unless this process has it.

        Raises
        ------
        UnwatchableRoad
            Another hook of the process does not let it be added.
        """
        if self.has_hook:
            return
        heard = []

        # The interpreter calls this for every event there is: the first line is what all others cost.
        def hear(event: str, arguments: tuple[Any, ...], readers: Mapping[str, Any] = READERS) -> None:
            if event in readers:
                self.announce(event, arguments)
            elif event == TEST_EVENT:
                heard.append(event)

        sys.addaudithook(hear)
        sys.audit(TEST_EVENT)
        if not heard:
            raise errors.UnwatchableRoad("spawn", "sys.addaudithook")
        self.has_hook = True


listeners = Listeners()


def make_attempt(command: Command | None) -> Attempt | None:
    if command is None:
        return None
    program, arguments = command
    return Attempt(
        road="spawn",
        kernel=program,
        signature=shorten(shlex.join(arguments)),
        location=user_location("unknown:0"),
    )


def describe_spawn(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe ``os._spawnvef(mode, file, arguments, environment, function)``."""
    _, file, words, environ = arguments[:4]
    command = find_compiler("".join(read_words(file)), read_words(words), search_path(environ))
    return make_attempt(command) or NO_ATTEMPT


# Under every os.spawn* of this system: it forks, and the child announces what it executes.
watch_spawn = watch_doors("spawn", (Door(module="os", path="_spawnvef", describe=describe_spawn),))


def install(module: ModuleType, report: Report) -> Release:
    """Gate ``os.spawn*``, or listen to the audit hook."""
    if module is os:
        return watch_spawn(module, report)
    listeners.add_hook()
    listeners.reports = (*listeners.reports, report)

    def release() -> None:
        listeners.reports = tuple(other for other in listeners.reports if other is not report)

    return release


road = Road(
    name="spawn",
    package="sys",
    modules=("sys", "os"),
    install=install,
    attempts=(
        lambda: subprocess.Popen([PROBE, "-c"]),
        lambda: os.posix_spawn(PROBE, [PROBE, "-c"], {}),
        lambda: os.system(f"{PROBE} -c"),
        lambda: os.spawnv(os.P_WAIT, PROBE, [PROBE, "-c"]),
    ),
)
