"""The tally of a process: every program it launched and how often, as lines that a recording is made of."""

import contextlib
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.choices import Choice
from planfreeze.constants import module_name
from planfreeze.family import family_of
from planfreeze.payload import Payload
from planfreeze.recordings import choice_json

__all__ = ["Recorder", "Tally"]

Write = Callable[[str], None]
Release = Callable[[], None]


class Tally:
    """What this process used.

    Parameters
    ----------
    write : callable
        Takes each line as it comes: a program at its first launch, so that a process that is killed has said what
        it launched, and how often the others at the end.
    """

    def __init__(self, write: Write) -> None:
        self.write = write
        self.lock = threading.RLock()
        self.thread = threading.local()
        self.counters: dict[Hashable, Iterator[int]] = {}
        self.programs: dict[Hashable, dict[str, Any]] = {}
        self.compiled: set[Hashable] = set()
        self.written: set[str] = set()
        self.is_finished = False

    def count(self, identity: Hashable, describe: Callable[[Any, "Tally"], Payload], launched: object) -> None:
        """Count one launch.

        Parameters
        ----------
        identity : Hashable
            What tells the program from others in this process.
        describe : callable
            ``describe(launched, tally)`` gives its payload; called at its first launch. An error is a refusal.
        """
        if self.is_finished or getattr(self.thread, "is_trying", False):
            return
        counter = self.counters.get(identity)
        if counter is None:
            with self.lock:
                counter = self.counters.get(identity) or self._meet(identity, describe, launched)
        next(counter)  # one step of the interpreter: threads lose no count

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Count nothing that this thread launches: an autotuner tries what it may never use."""
        before = getattr(self.thread, "is_trying", False)
        self.thread.is_trying = True
        try:
            yield
        finally:
            self.thread.is_trying = before

    def compile(self, identity: Hashable) -> None:
        """Note that a program was compiled."""
        self.compiled.add(identity)

    def choose(self, choice: Choice) -> None:
        """Note what an autotuner chose."""
        self.note("choice", choice_json(choice))

    def refuse(self, kernel: str, reason: str) -> None:
        """Note something used that cannot be recorded; addresses would tell one run from the next."""
        self.note("refused", {"kernel": kernel, "reason": re.sub(r" at 0x[0-9a-f]+", "", reason)})

    def note(self, kind: str, value: object, count: int = 0) -> None:
        """Write a line, once."""
        line = json.dumps([kind, value, count])
        with self.lock:
            if line not in self.written:
                self.written.add(line)
                self.write(line)

    def note_module(self, name: str) -> None:
        """Note the folder that a kernel's module was imported from; a name that is not loaded is the script's own."""
        module = sys.modules.get(name, sys.modules["__main__"])
        path = getattr(module, "__file__", None)
        if path is not None:
            depth = module_name(module).count(".") + Path(path).name.startswith("__init__.")
            self.note("root", str(Path(path).absolute().parents[depth]))

    def finish(self) -> None:
        """Write how often each program was launched beyond the first time, and what was compiled in vain."""
        with self.lock:
            for identity, program in self.programs.items():
                again = next(self.counters[identity]) - 1
                if again > 0:
                    self.write(json.dumps(["program", program, again]))
            for number, _ in enumerate(self.compiled - self.counters.keys()):
                self.write(json.dumps(["compiled", [os.getpid(), number], 0]))
            # Hooks that others hooked after these stay in place.
            self.is_finished = True

    def forget(self) -> None:
        """Start anew: what a forked child inherits is its parent's to write."""
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self.counters, self.programs, self.compiled, self.written = {}, {}, set(), set()

    def _meet(self, identity: Hashable, describe: Callable[[Any, "Tally"], Payload], launched: object) -> Iterator[int]:
        try:
            payload = describe(launched, self)
        except Exception as error:  # noqa: BLE001 - a stranger's object; the run goes on, the recording says so
            kernel = getattr(error, "kernel", None) or getattr(launched, "name", None) or type(launched).__name__
            reason = getattr(error, "reason", None) if isinstance(error, errors.PlanfreezeError) else None
            self.refuse(str(kernel), str(reason or f"{type(error).__name__}: {error}"))
        else:
            self.programs[identity] = {"family": family_of(payload).reference, "payload": payload.to_fields()}
            self.write(json.dumps(["program", self.programs[identity], 1]))
        self.counters[identity] = itertools.count()
        return self.counters[identity]


class Recorder(Struct, frozen=True, kw_only=True):
    """How launches of one compiler's programs are seen.

    Parameters
    ----------
    modules : tuple of str
        Modules it waits for.
    install : callable
        ``install(module, tally)`` puts hooks into one of them and returns what takes them off.
    """

    modules: tuple[str, ...]
    install: Callable[[ModuleType, Tally], Release]
