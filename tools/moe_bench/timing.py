"""Timing with CUDA graphs: rounds that keep the clock up, and turns without rests, at the power of each graph."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from moe_bench.meter import Meter
from msgspec import Struct

CALLS = 20
ROUNDS = 60
WARM_UPS = 4
REST = 0.6
"""Pause after a replay, in units of its duration: rounds then stay below the power cap."""
MAX_REST_S = 0.05
LEAD_CYCLES = 100_000
"""The device waits so long before a replay is timed, while the host enqueues it."""

Times = dict[str, float]


class Captured(Struct, frozen=True, kw_only=True, eq=False):
    """A graph, and the calls it was made of: it holds the addresses of their tensors, and they keep the tensors."""

    graph: torch.cuda.CUDAGraph
    calls: tuple[Callable[[], Any], ...]

    def replay(self) -> None:
        """Enqueue the calls."""
        self.graph.replay()


def capture(calls: Sequence[Callable[[], Any]]) -> Captured:
    """Capture 20 calls, taken in turn; each ran once before, which compiles what is compiled at first use."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(CALLS):
            calls[number % len(calls)]()
    return Captured(graph=graph, calls=tuple(calls))


def time_cool(graphs: Mapping[str, Captured], meter: Meter) -> dict[str, Times]:
    """Time graphs in interleaved rounds with pauses; microseconds a call, and clock and power over all rounds."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    began = time.monotonic()
    for number in range(WARM_UPS + ROUNDS):
        # Nobody always follows the same one.
        first = number % len(names)
        order = names[first:] + names[:first]
        for name in order if number // len(names) % 2 else reversed(order):
            replay_ms = time_replay(graphs[name])
            if number >= WARM_UPS:
                times[name].append(replay_ms * 1e3 / CALLS)
            time.sleep(min(MAX_REST_S, REST * replay_ms / 1e3))
    load = meter.read((began, time.monotonic()))
    return {name: {**spread(values), **load} for name, values in times.items()}


def time_replay(graph: Captured) -> float:
    """Return the milliseconds of one replay on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LEAD_CYCLES)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def time_sustained(graphs: Mapping[str, Captured], meter: Meter, seconds: float) -> dict[str, Times]:
    """Replay graphs without a pause, each in two turns; microseconds a call, clock and power of half of each turn.

    The first half is for the device to come to the power of the graph. Who was first of all is last in the end: the
    device is as warm as those before have made it. ``seconds`` are those of a graph.
    """
    batches = {name: max(1, round(seconds / 4 / (time_replay(graph) / 1e3))) for name, graph in graphs.items()}
    marks = [Mark("", is_counted=False)]
    for name in (*graphs, *reversed(graphs)):
        for is_counted in (False, True):
            for _ in range(batches[name]):
                graphs[name].replay()
            marks.append(Mark(name, is_counted=is_counted))
            # One half is always waiting, so the device never does.
            marks[-2].reach()
    marks[-1].reach()
    found = {}
    for name, batch in batches.items():
        halves = [(a, b) for a, b in pairwise(marks) if b.name == name and b.is_counted]
        taken_us = [a.event.elapsed_time(b.event) * 1e3 / (batch * CALLS) for a, b in halves]
        found[name] = {"median": statistics.median(taken_us), **meter.read(*((a.at_s, b.at_s) for a, b in halves))}
    return found


class Mark:
    """The end of half a turn on the device, and when the host knew of it."""

    def __init__(self, name: str, *, is_counted: bool) -> None:
        self.name, self.is_counted, self.at_s = name, is_counted, 0.0
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def reach(self) -> None:
        """Wait until the device is there."""
        self.event.synchronize()
        self.at_s = time.monotonic()


def spread(values: Sequence[float]) -> Times:
    """Return median, and the 10th and 90th percentile."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
    }
