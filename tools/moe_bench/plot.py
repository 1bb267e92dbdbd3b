"""A drawing of the figures: latency over tokens, both logarithmic, with the floors."""

from pathlib import Path
from typing import Any

FLOORS = ("native", "inline")
SIZE_INCHES = (8, 5)


def draw(figures: dict[str, Any], path: Path) -> None:
    """Write the drawing of the layer with synthetic scales; the suffix chooses the format.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "planfreeze", "svg.fonttype": "none"}
    from matplotlib import pyplot

    layer = figures["layers"].get("synthetic", {})
    figure, axes = pyplot.subplots(figsize=SIZE_INCHES)
    for arm in figures["arms"]:
        points = [(int(tokens), found["arms"][arm]) for tokens, found in layer.items() if arm in found["arms"]]
        if not points:
            continue
        counts = [tokens for tokens, _ in points]
        (drawn,) = axes.plot(counts, [timed["cool"]["median"] for _, timed in points], marker="o", label=arm)
        if arm in FLOORS:
            floors = [timed["floor_us"] for _, timed in points]
            axes.plot(counts, floors, linestyle="--", color=drawn.get_color(), label=f"floor of {arm}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted(int(tokens) for tokens in layer)
    axes.set_xticks(counts, [str(tokens) for tokens in counts], rotation=60)
    axes.set_xlabel("tokens")
    axes.set_ylabel("microseconds a call, median")
    axes.set_title(f"{figures['model']} on {figures['tp']} ranks, {figures['device']}, rounds with rests")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
