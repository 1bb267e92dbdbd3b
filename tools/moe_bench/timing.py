"""Timing with CUDA graphs: rounds that keep the clock up, and replays back to back until the power cap."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
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
BATCH_S = 0.02

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
        for name in names[number % len(names) :] + names[: number % len(names)]:
            replay_ms = time_replay(graphs[name])
            if number >= WARM_UPS:
                times[name].append(replay_ms * 1e3 / CALLS)
            time.sleep(min(MAX_REST_S, REST * replay_ms / 1e3))
    load = meter.read(began, time.monotonic())
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


def time_sustained(graph: Captured, meter: Meter, seconds: float) -> Times:
    """Replay a graph back to back; microseconds a call, clock and power of the second half."""
    batch = max(1, round(BATCH_S / (time_replay(graph) / 1e3)))
    marks: list[tuple[float, Any]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(marks) < 3:
        for _ in range(batch):
            graph.replay()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append((0.0, mark))
        # One batch is always waiting, so the device never does.
        if len(marks) > 1:
            marks[-2][1].synchronize()
            marks[-2] = (time.monotonic(), marks[-2][1])
    marks[-1][1].synchronize()
    marks[-1] = (time.monotonic(), marks[-1][1])
    half = (len(marks) - 1) // 2
    (first_s, first), (last_s, last) = marks[half], marks[-1]
    calls = (len(marks) - 1 - half) * batch * CALLS
    return {"median": first.elapsed_time(last) * 1e3 / calls, **meter.read(first_s, last_s)}


def spread(values: Sequence[float]) -> Times:
    """Return median, and the 10th and 90th percentile."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
    }
