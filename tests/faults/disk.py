"""A disk that fails on demand: between everything that runs here and the system, for one folder."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CHANGES = ("open", "write", "fsync", "close", "link", "rename", "replace", "mkdir", "rmdir", "unlink", "chmod", "utime")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the system below the disk's folder; paths are relative to it.

    ``call`` says "open to write" or "open to read", and "lock" or "unlock" of a handle.
    """

    number: int
    call: str
    path: str
    target: str = ""
    data: bytes = b""
    flags: int = 0
    handle: int = -1

    @property
    def is_change(self) -> bool:
        """Whether it may change what is on the disk or who holds a lock."""
        return self.call not in ("open to read", "read", "close", "unlock")


class KilledError(BaseException):
    """The process was killed here: nothing it does from now on reaches the disk."""


class TornError(Exception):
    """A write that puts half of its data on the disk and then fails with ``error``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


Meet = Callable[[Operation], None]


@dataclass
class Disk:
    """Records every operation below ``root`` and lets ``meet`` refuse it, delay it or tear it before it happens.

    Parameters
    ----------
    root : Path
        The folder; what happens elsewhere is not seen.
    meet : callable
        Told each operation before it happens: it may raise, or do something else first, which is recorded before it.
    has_locks : bool
        False: a lock succeeds and locks nothing.
    has_flushes : bool
        True: flush for real. Without, tests are faster and see the same operations.
    """

    root: Path
    meet: Meet = lambda operation: None
    has_locks: bool = True
    has_flushes: bool = False
    operations: list[Operation] = field(default_factory=list)
    _handles: dict[int, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def mounted(self) -> Iterator["Disk"]:
        """Take the system's place; what a killed process left open is closed in the end, as the system does."""
        real = {name: getattr(os, name) for name in CHANGES}
        real_flock, real_read = fcntl.flock, os.read
        for name in CHANGES:
            setattr(os, name, getattr(self, f"_{name}")(real[name]))
        os.read = self._read(real_read)
        fcntl.flock = self._flock(real_flock)
        try:
            yield self
        finally:
            for name, call in real.items():
                setattr(os, name, call)
            os.read, fcntl.flock = real_read, real_flock
            for handle in list(self._handles):
                os.close(handle)
            self._handles.clear()

    def _place(self, path: Any) -> str | None:
        """The path relative to the root, or None when it lies elsewhere."""
        if isinstance(path, int):
            return self._handles.get(path)
        found = os.path.relpath(os.path.abspath(os.fsdecode(path)), self.root)  # noqa: PTH100
        return None if found.startswith("..") else found

    def _do(self, act: Callable[[], Any], call: str, path: Any, target: Any = None, **facts: Any) -> Any:
        place = self._place(path)
        if place is None:
            return act()
        aim = "" if target is None else self._place(target) or ""
        handle = path if isinstance(path, int) else -1
        operation = Operation(number=len(self.operations), call=call, path=place, target=aim, handle=handle, **facts)
        self.meet(operation)
        made = act()
        # Recorded when it is done: what the meeting did comes before it.
        handle = made if call.startswith("open") else handle
        self.operations.append(replace(operation, number=len(self.operations), handle=handle))
        return made

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
            name = "open to write" if flags & WRITING else "open to read"
            made = self._do(lambda: real(path, flags, mode, **options), name, path, flags=flags)
            place = self._place(path)
            if place is not None:
                self._handles[made] = place
            return made  # type: ignore[no-any-return]

        return call

    def _close(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(handle: int) -> None:
            try:
                self._do(lambda: None, "close", handle)
            except KilledError:
                raise  # the system closes it, in the end
            except BaseException:
                self._handles.pop(handle, None)
                real(handle)  # closed, whatever it reports
                raise
            self._handles.pop(handle, None)
            real(handle)

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(handle: int, data: Any) -> int:
            try:
                return self._do(lambda: real(handle, data), "write", handle, data=bytes(data))  # type: ignore[no-any-return]
            except TornError as torn:
                real(handle, bytes(data)[: len(data) // 2])
                raise torn.error from None

        return call

    def _read(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda handle, size: self._do(lambda: real(handle, size), "read", handle)

    def _fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        return lambda handle: self._do(lambda: self.has_flushes and real(handle), "fsync", handle)

    def _flock(self, real: Callable[[int, int], None]) -> Callable[[Any, int], None]:
        def call(handle: Any, operation: int) -> None:
            name = "unlock" if operation & fcntl.LOCK_UN else "lock"
            self._do(lambda: self.has_locks and real(handle, operation), name, handle, flags=operation)

        return call

    def _two(self, real: Callable[..., None], name: str) -> Callable[..., None]:
        return lambda source, target, **options: self._do(
            lambda: real(source, target, **options), name, source, target=target
        )

    def _one(self, real: Callable[..., None], name: str) -> Callable[..., None]:
        return lambda path, *arguments, **options: self._do(lambda: real(path, *arguments, **options), name, path)

    def _link(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._two(real, "link")

    def _rename(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._two(real, "rename")

    def _replace(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._two(real, "rename")

    def _mkdir(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._one(real, "mkdir")

    def _rmdir(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._one(real, "rmdir")

    def _unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._one(real, "unlink")

    def _chmod(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._one(real, "chmod")

    def _utime(self, real: Callable[..., None]) -> Callable[..., None]:
        return self._one(real, "utime")


def fail(at: int, number: int, *, is_lasting: bool = False) -> Meet:
    """Refuse operation ``at``, and with ``is_lasting`` every change after it, with a system error."""

    def meet(operation: Operation) -> None:
        if operation.number == at or (is_lasting and operation.number > at and operation.is_change):
            raise OSError(number, os.strerror(number))

    return once(meet) if not is_lasting else meet


def once(meet: Meet) -> Meet:
    """Meet until it raises for the first time: an operation that fails is not counted, the next has its number."""
    has_raised = False

    def meet_once(operation: Operation) -> None:
        nonlocal has_raised
        if has_raised:
            return
        try:
            meet(operation)
        except BaseException:
            has_raised = True
            raise

    return meet_once


def tear(at: int, number: int) -> Meet:
    """Let a write put half of its data on the disk and fail; other operations just fail."""

    def meet(operation: Operation) -> None:
        if operation.number == at:
            error = OSError(number, os.strerror(number))
            raise TornError(error) if operation.call == "write" else error

    return once(meet)


def kill(at: int, *, is_torn: bool = False) -> Meet:
    """Kill the process at an operation: nothing after it happens; a write may have put half of its data there."""
    is_dead = False

    def meet(operation: Operation) -> None:
        nonlocal is_dead
        if is_dead:
            raise KilledError
        if operation.number == at:
            is_dead = True
            raise TornError(KilledError()) if is_torn and operation.call == "write" else KilledError

    return meet


def pause(at: int, act: Callable[[], object]) -> Meet:
    """Do something else in the moment before an operation."""
    is_done = False

    def meet(operation: Operation) -> None:
        nonlocal is_done
        if operation.number == at and not is_done:
            is_done = True
            act()

    return meet
