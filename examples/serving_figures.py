"""What examples/serving_loop.py found: figures of its arms as values, what is wrong with them, and a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one request showed: a decode step of a batch, or the prefill of a prompt.

    Parameters
    ----------
    phase : str
        ``decode`` or ``prefill``.
    tokens, chunk : int
        Tokens of the request, and of the largest graph that serves it.
    scale_mode : str
        How scales reach the kernels of that graph.
    calls : int
        How often it was measured.
    median_ms, slow_ms : float
        Time of one request: the median, and what 9 of 10 stay below.
    tokens_per_s : float
        Over all calls, from the first start to the last end.
    allocations, segments : int
        Tensors that torch allocated on the device meanwhile, and segments that it took from the driver.
    experts : float
        Experts that a layer reads in the last step, the mean of all layers.
    is_finite : bool
        Whether every activation that the last step leaves is a number.
    digest : str
        SHA-256 of those activations for the same tokens in every arm.
    """

    phase: str
    tokens: int
    chunk: int
    scale_mode: str
    calls: int
    median_ms: float
    slow_ms: float
    tokens_per_s: float
    allocations: int
    segments: int
    experts: float
    is_finite: bool
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the device when an arm is ready to serve; requests add nothing.

    Parameters
    ----------
    weights : int
        Prepared experts of all layers, each set counted once.
    workspace : int
        The scratch that all layers share.
    allocated, reserved : int
        What torch's tensors and graphs hold, and what torch holds of the device for them.
    peak : int
        Most that tensors held while the arm was prepared and its graphs were captured.
    room : int
        What the driver has left: the room for a KV cache.
    """

    weights: int
    workspace: int
    allocated: int
    reserved: int
    peak: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """All of one arm.

    Parameters
    ----------
    arm : str
        ``inline``, ``native`` or ``expand``.
    weight_sets : int
        Layers with weights of their own; with fewer of them than layers, layers take turns.
    prepare_s : float
        Seconds to draw and prepare them.
    served : tuple of Served
        By request, in their order.
    memory : Memory
        The device's memory.
    launches, expected_launches : int
        Launches the session counted, and those that warming up and capturing every graph makes. Replays launch
        nothing that a session sees.
    """

    arm: str
    weight_sets: int
    prepare_s: float
    served: tuple[Served, ...]
    memory: Memory
    launches: int
    expected_launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run.

    Parameters
    ----------
    plan, root : str
        The frozen plan that was served, and its root digest.
    device : str
        The device's name.
    layers : int
        Layers of the model that was served.
    arms : tuple of ArmFigures
        By arm.
    attempts : dict
        Attempts to compile since the session froze, for every road to a compiler.
    """

    plan: str
    root: str
    device: str
    layers: int
    arms: tuple[ArmFigures, ...]
    attempts: dict[str, int]

    @property
    def compiled(self) -> int:
        """Attempts to compile on all roads."""
        return sum(self.attempts.values())

    def problems(self) -> tuple[str, ...]:
        """Say everything that is not as a served model has to be."""
        found = [f"{count} attempts to compile on the road {road}" for road, count in self.attempts.items() if count]
        for arm in self.arms:
            if arm.launches != arm.expected_launches:
                found.append(f"{arm.arm}: {arm.launches} launches, {arm.expected_launches} were planned")
            for row in arm.served:
                name = f"{arm.arm}, {row.phase} of {row.tokens} tokens"
                if row.allocations or row.segments:
                    found.append(f"{name}: {row.allocations} tensors and {row.segments} segments were allocated")
                if not row.is_finite:
                    found.append(f"{name}: an activation is not a number")
        return (*found, *self.differences())

    def differences(self) -> tuple[str, ...]:
        """Name the requests whose result depends on the arm; equal weights give the same bits in all of them."""
        rows = sorted(((row.phase, row.tokens), arm.arm, row.digest) for arm in self.arms for row in arm.served)
        found = []
        for (phase, tokens), same in groupby(rows, key=lambda row: row[0]):
            arms, digests = zip(*((arm, digest) for _, arm, digest in same), strict=True)
            if len(set(digests)) > 1:
                found.append(f"{phase} of {tokens} tokens: {', '.join(arms)} do not have the same bits")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "compiled": self.compiled, "problems": self.problems()}


def describe_weights(layers: int, sets: int) -> str:
    """Say whose weights the layers have."""
    if sets == layers:
        return f"{layers} layers, each with weights of its own"
    return f"{layers} layers that take turns on {sets} sets of weights: memory holds no more"


def write_requests(report: Report) -> str:
    """Return the table of requests: times, tokens per second and allocations, by arm."""
    lines = [
        f"{'arm':<7} {'phase':<7} {'tokens':>6} {'graph':>6} {'scales':<7} {'experts':>7} {'calls':>6} "
        f"{'ms':>9} {'p90 ms':>9} {'tokens/s':>10} {'allocations':>11}"
    ]
    for arm in report.arms:
        lines += (
            f"{arm.arm:<7} {row.phase:<7} {row.tokens:>6} {row.chunk:>6} {row.scale_mode:<7} {row.experts:>7.1f} "
            f"{row.calls:>6} {row.median_ms:>9.3f} {row.slow_ms:>9.3f} {row.tokens_per_s:>10,.0f} "
            f"{row.allocations + row.segments:>11}"
            for row in arm.served
        )
    return "\n".join(lines)


def write_memory(report: Report) -> str:
    """Return the table of memory in GiB, by arm."""
    names = ("weights", "workspace", "allocated", "reserved", "peak", "room")
    lines = [f"{'arm':<7} {'ready s':>8} " + " ".join(f"{name:>9}" for name in names) + f" {'launches':>9}"]
    for arm in report.arms:
        sizes = " ".join(f"{getattr(arm.memory, name) / GIB:>9.2f}" for name in names)
        lines.append(f"{arm.arm:<7} {arm.prepare_s:>8.1f} {sizes} {arm.launches:>9}")
    return "\n".join(lines)


def write_report(report: Report) -> str:
    """Return the whole report as text."""
    sets = dict.fromkeys(arm.weight_sets for arm in report.arms)
    problems: Sequence[str] = report.problems()
    return "\n".join(
        (
            f"{report.plan}@sha256:{report.root} on {report.device}",
            *(describe_weights(report.layers, count) for count in sets),
            "Measured: norm, router and experts of every layer. There is no attention and no head.",
            "",
            write_requests(report),
            "",
            "GiB on the device; room is what is left for a KV cache.",
            write_memory(report),
            "",
            f"compiled {report.compiled}; launches are those of warming up and capturing, replays launch nothing.",
            *(f"WRONG: {problem}" for problem in problems),
            "",
        )
    )
