"""Turns of simulated threads, and what they wait for each other at.

Threads are greenlets: one runs at a time, until it waits or loses its turn at an access to memory. Who is next is drawn
with the seed of the block.
"""

import random
from types import SimpleNamespace

from greenlet import getcurrent, greenlet

# How often a thread loses its turn at an access, and how often a copy lands before the next turn.
LOST_TURNS, EARLY_COPIES = 1 / 16, 1 / 32

# The thread that has its turn.
here = SimpleNamespace(thread=0, is_elected=True)


class Turns:
    """Whose turn it is: threads that can go on, and copies on their way."""

    def __init__(self, seed):
        self.ready, self.copies, self.last, self.random = [], [], [], random.Random(seed)

    def run(self, bodies, land):
        """Run to the end of all threads; ``land`` is called with a copy that lands."""
        main, left = getcurrent(), len(bodies)
        self.main = main
        self.ready = [greenlet(body) for body in bodies]
        while left:
            if self.copies and (not self.ready or self.random.random() < EARLY_COPIES):
                land(*self.take(self.copies))
                continue
            if not self.ready:
                assert self.last, "deadlock"
                self.wake(self.last)
            thread = self.take(self.ready)
            thread.switch()
            left -= thread.dead
        while self.copies:
            land(*self.take(self.copies))

    def take(self, choices):
        """Draw one and take it out."""
        index = self.random.randrange(len(choices))
        choices[index], choices[-1] = choices[-1], choices[index]
        return choices.pop()

    def wait(self, waiting):
        """Let others go on, until somebody makes those who wait in the list ready."""
        mine = here.thread, here.is_elected
        waiting.append(getcurrent())
        self.main.switch()
        here.thread, here.is_elected = mine

    def wake(self, waiting):
        """Let all go on who wait in the list."""
        self.ready += waiting
        waiting.clear()

    def wait_for_others(self):
        """Wait until nobody else can go on: as long as the launch before this one may take."""
        self.wait(self.last)

    def stumble(self):
        """Lose the turn, now and then."""
        if self.random.random() < LOST_TURNS:
            self.wait(self.ready)


class Mbarrier:
    """One mbarrier: pending arrivals and bytes of the current phase."""

    def __init__(self, turns, arrivals):
        self.arrivals, self.pending, self.bytes, self.phase = arrivals, arrivals, 0, 0
        self.turns, self.waiting = turns, []

    def update(self, arrivals=0, size_bytes=0):
        self.bytes += size_bytes
        self.pending -= arrivals
        assert self.pending >= 0, "more arrivals than the barrier was set up for"
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.arrivals
            self.turns.wake(self.waiting)

    def wait(self, parity):
        while self.phase % 2 == parity:
            self.turns.wait(self.waiting)


class Meeting:
    """All-to-all exchange of a warp, a warpgroup or a block."""

    def __init__(self, turns, members):
        self.turns, self.waiting = turns, []
        self.values, self.found = [None] * members, None

    def exchange(self, index, value=None):
        self.values[index] = value
        if len(self.waiting) + 1 < len(self.values):
            self.turns.wait(self.waiting)
        else:
            self.found = list(self.values)
            self.turns.wake(self.waiting)
        return self.found
