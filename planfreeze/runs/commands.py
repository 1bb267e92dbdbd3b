"""Commands: a program found as a shell would, and run to its end with this process's streams and signals."""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from planfreeze import errors

__all__ = ["execute", "find_program"]

SIGNALLED = 128
POLL_S = 0.5
# Signals that end or steer a command; from the terminal it gets them itself, by the kernel's hand.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SENT_BY_KERNEL = 0x80  # SI_KERNEL of the system's headers, which the signal module does not name


def find_program(name: str) -> str:
    """Return the path of a program as a shell would find it.

    Raises
    ------
    CommandMissing, CommandNotExecutable
        There is none, or one that may not be executed.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    folders = [""] if "/" in name else os.get_exec_path()
    for folder in folders:
        path = Path(folder, name)
        if name and path.exists():
            raise errors.CommandNotExecutable(str(path), "it is a directory" if path.is_dir() else "permission denied")
    raise errors.CommandMissing(name)


def execute(program: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program with this process's streams; pass signals on, and return the status a shell would."""
    watched = {signal.SIGCHLD, *PASSED_ON}
    with children_kept(), blocked(watched) as before:
        child = start(program, command, environment, before)
        while True:
            # A thread of a larger program may be told of the child's end instead; hence not without limit.
            received = signal.sigtimedwait(watched, POLL_S)
            if received is not None and received.si_signo in PASSED_ON:
                if received.si_code != SENT_BY_KERNEL:
                    os.kill(child, received.si_signo)
                continue
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else SIGNALLED - code


@contextmanager
def blocked(signals: set[signal.Signals]) -> Iterator[set[int]]:
    """Block signals of this thread for a while; the mask of before is yielded."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def children_kept() -> Iterator[None]:
    """Let this process learn how its children end: the system forgets them where it was started to ignore SIGCHLD."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def start(program: str, command: Sequence[str], environment: Mapping[str, str], mask: set[int]) -> int:
    """Start a program with the signals as they were before Python and this module changed them; return its pid."""
    changed_by_python = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawn(
            program, list(command), dict(environment), setsigmask=tuple(mask), setsigdef=changed_by_python
        )
    except OSError as error:
        raise errors.CommandNotExecutable(program, error.strerror or str(error)) from error
