"""A compile process that compiles nothing: real cubins, stamped with what was asked for; for faults and stress."""

import os
from collections.abc import Callable, Mapping

from planfreeze.compilers import CompiledProgram
from planfreeze.target import Target
from planfreeze.workers import Task

__all__ = ["stub_worker"]


def stub_worker(
    bases: Mapping[str, CompiledProgram], meet: Callable[[Task], None] = lambda task: None
) -> Callable[[Target], "StubWorker"]:
    """Return what stands in for :class:`planfreeze.workers.Worker`.

    Parameters
    ----------
    bases : mapping of str to CompiledProgram
        A really compiled program for each family, by the family's reference; its stamped copies pass every check.
    meet : callable
        Called at each compile, in the builder's process; it may wait, count, raise, or end the process.

    Notes
    -----
    Deterministic: equal tasks give equal bytes, different payloads different ones.
    """
    return lambda target: StubWorker(target, bases, meet)


class StubWorker:
    """Stands in for a compile process; lives in the builder's own."""

    def __init__(self, target: Target, bases: Mapping[str, CompiledProgram], meet: Callable[[Task], None]) -> None:
        self.target = target
        self._bases = bases
        self._meet = meet

    def compile(self, task: Task) -> CompiledProgram:
        """Stamp the program of the task's family."""
        self._meet(task)
        base = self._bases[task.family]
        stamp = task.payload.encode()
        # What follows the last section belongs to no section: readers of the cubin pass over it.
        return CompiledProgram(
            cubin=base.cubin + stamp,
            launch=base.launch,
            companions=tuple((name, content + stamp) for name, content in base.companions),
        )

    @property
    def pid(self) -> int:
        """Number of the builder's own process."""
        return os.getpid()

    def kill(self) -> None:
        """Do nothing: there is no process."""

    def close(self) -> None:
        """Do nothing: there is no process."""
