"""The figures as text: a table per layer, what was left out, and the targets."""

from collections.abc import Iterator
from typing import Any

from moe_bench.targets import list_targets

Figures = dict[str, Any]
COLUMNS = ("tokens", "experts", "arm", "cool us", "p10..p90", "MHz", "W", "floor us", "x floor", "/ native", "/ inline")
SUSTAINED = ("sust. us", "MHz", "W", "x floor")


def write_report(figures: Figures) -> str:
    """Return everything that is printed."""
    return "\n".join(report_lines(figures)) + "\n"


def report_lines(figures: Figures) -> Iterator[str]:
    """Yield the report line by line."""
    geometry = figures["geometry"]
    ceiling = ", ".join(f"{rate:.2f} TB/s over {size}" for size, rate in figures.get("read_ceiling_tb_s", {}).items())
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    yield f"{figures['device']}, {versions}"
    yield f"{figures['model']} on {figures['tp']} ranks: " + ", ".join(f"{k} {v}" for k, v in geometry.items())
    yield f"random bytes are read at {ceiling}; floors count 4.6 TB/s"
    for arm, note in figures["arms"].items():
        yield f"{arm}: {note}"
    for scales, layer in figures["layers"].items():
        yield ""
        yield f"## {scales} scales"
        yield ""
        yield from layer_lines(layer)
    yield ""
    for name, reason in figures["failed"].items():
        yield f"failed: {name}: {reason}"
    for what in figures["left_out"]:
        yield f"left out: {what}"
    yield from target_lines(figures)


def layer_lines(layer: Figures) -> Iterator[str]:
    """Yield a table of one layer, and how its arms agree."""
    yield line(COLUMNS + SUSTAINED)
    yield line(("---",) * len(COLUMNS + SUSTAINED))
    for tokens, found in layer.items():
        for arm, timed in found["arms"].items():
            yield line((tokens, f"{found['experts_read']:.1f}", arm, *arm_cells(found["arms"], timed)))
    yield ""
    for tokens, found in layer.items():
        bits = "same bits" if found["same_bits"] else "BITS DIFFER"
        errors = ", ".join(f"{arm} {error:.1e}" for arm, error in found["relative_l2"].items())
        finite = "" if found["is_finite"] else ", NOT FINITE"
        yield f"{tokens} tokens: {bits} of all arms{finite}" + (f"; relative L2 error {errors}" if errors else "")


def arm_cells(arms: Figures, timed: Figures) -> Iterator[str]:
    """Yield the cells of one arm at one count."""
    cool, floor = timed["cool"], timed["floor_us"]
    yield f"{cool['median']:.1f}"
    yield f"{cool['p10']:.1f}..{cool['p90']:.1f}"
    yield from load_cells(cool)
    yield f"{floor:.1f}"
    yield f"{cool['median'] / floor:.2f}"
    for other in ("native", "inline"):
        yield f"{cool['median'] / arms[other]['cool']['median']:.3f}" if other in arms else ""
    sustained = timed.get("sustained")
    yield f"{sustained['median']:.1f}" if sustained else ""
    yield from load_cells(sustained or {})
    yield f"{sustained['median'] / floor:.2f}" if sustained else ""


def load_cells(timed: Figures) -> Iterator[str]:
    """Yield clock and power, empty where they were not read."""
    for name in ("sm_mhz", "watts"):
        yield f"{timed[name]:.0f}" if name in timed else ""


def target_lines(figures: Figures) -> Iterator[str]:
    """Yield the table of targets."""
    yield ""
    yield "## Must reach, cool"
    yield ""
    yield line(("target", "limit", "measured", "state"))
    yield line(("---",) * 4)
    for target in list_targets(figures):
        sign = ">=" if target.is_least else "<="
        beyond = "" if target.beyond is None else f" (beyond: {target.beyond:g})"
        value = "" if target.value is None else f"{target.value:.3f}"
        yield line((target.what, f"{sign} {target.limit:g}{beyond}", value, target.state))


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
