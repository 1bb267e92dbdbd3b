"""Crews: processes of one kind of work that are killed and stopped at any moment, and replaced."""

import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable

__all__ = ["Crew", "fork"]

fork = multiprocessing.get_context("fork")


class Crew:
    """Processes of one kind of work.

    Parameters
    ----------
    work : callable
        Goes on for ever.
    on_failure : callable
        Told, in one line and in that process, what ended the work otherwise.
    count : int
        How many at a time.
    """

    def __init__(self, work: Callable[[], None], on_failure: Callable[[str], None], count: int) -> None:
        self._work, self._on_failure = work, on_failure
        self.members = [self._start() for _ in range(count)]

    def _start(self) -> "multiprocessing.process.BaseProcess":
        process = fork.Process(target=self._run, args=(random.getrandbits(32),), daemon=True)
        process.start()
        return process

    def _run(self, seed: int) -> None:
        random.seed(seed)
        try:
            self._work()
        except BaseException:  # noqa: BLE001 - whatever it was is told
            self._on_failure(traceback.format_exc().replace("\n", " | "))

    def strike(self) -> str:
        """Kill one of them, or stop it for a while; return "kills" or "stops"."""
        place = random.randrange(len(self.members))
        process = self.members[place]
        if process.is_alive() and random.random() < 0.25:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(random.uniform(0, 0.3))
            os.kill(process.pid, signal.SIGCONT)
            return "stops"
        process.kill()
        process.join()
        self.members[place] = self._start()
        return "kills"

    def end(self) -> None:
        """Kill all of them in the midst of what they do."""
        for process in self.members:
            process.kill()
            process.join()
