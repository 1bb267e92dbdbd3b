"""What the validation of a checkpoint found: values, and how they are shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from planfreeze import errors
from planfreeze.models import Model
from planfreeze.reports import print_table

__all__ = ["LayerReport", "ProjectionReport", "report_json", "report_table"]

MIB = 2**20


class ProjectionReport(Struct, frozen=True, kw_only=True):
    """Scales of one projection of a layer, as one rank holds them.

    Parameters
    ----------
    scales : int
        Scale bytes.
    exceptions : int
        Scales that are neither the base of their row nor the next byte.
    clamped : int
        Scales above 247, which native planes hold as 247.
    raw_tiles : int
        Tiles that inline storage keeps verbatim.
    native_bytes, inline_bytes, batch_bytes : int
        Size of the native planes, of inline storage and of the CSF batch.
    """

    scales: int
    exceptions: int
    clamped: int
    raw_tiles: int
    native_bytes: int
    inline_bytes: int
    batch_bytes: int


class LayerReport(Struct, frozen=True, kw_only=True):
    """One layer on one rank: its projections and the tokens of equal calls of both arms, or what stopped it."""

    layer: int
    rank: int
    w13: ProjectionReport | None = None
    w2: ProjectionReport | None = None
    equal_tokens: tuple[int, ...] = ()
    error: errors.PlanfreezeError | None = None


def report_json(path: Path, model: Model, tp: int, reports: Sequence[LayerReport]) -> dict[str, Any]:
    """Return reports as JSON values."""
    return {
        "checkpoint": str(path),
        "model": model.name,
        "tp": tp,
        "layers": [
            {
                "layer": report.layer,
                "rank": report.rank,
                "exact": report.error is None,
                "error": None if report.error is None else f"{type(report.error).__name__}: {report.error}",
                "w13": None if report.w13 is None else asdict(report.w13),
                "w2": None if report.w2 is None else asdict(report.w2),
                "equal_tokens": list(report.equal_tokens),
            }
            for report in reports
        ],
    }


def report_table(title: str, reports: Sequence[LayerReport]) -> None:
    """Print reports."""
    sizes = ("native MiB", "inline MiB", "batch MiB")
    heads = ("layer", "rank", "exceptions w13", "w2", "%", "raw tiles w13", "w2", *sizes, "equal tokens", "result")
    print_table(title, heads, [table_row(report) for report in reports])


def table_row(report: LayerReport) -> tuple[str, ...]:
    place = (str(report.layer), str(report.rank))
    if report.w13 is None or report.w2 is None:
        return (*place, *[""] * 9, type(report.error).__name__)
    both = (report.w13, report.w2)
    share = sum(part.exceptions for part in both) / sum(part.scales for part in both)
    return (
        *place,
        *(str(part.exceptions) for part in both),
        f"{100 * share:.3f}",
        *(str(part.raw_tiles) for part in both),
        f"{sum(part.native_bytes for part in both) / MIB:.4f}",
        f"{sum(part.inline_bytes for part in both) / MIB:.4f}",
        f"{sum(part.batch_bytes for part in both) / MIB:.4f}",
        ",".join(map(str, report.equal_tokens)),
        "exact",
    )
