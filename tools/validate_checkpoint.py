"""Prove on a checkpoint's own scales that inline storage holds exactly what the native planes do, and what it costs.

python tools/validate_checkpoint.py PATH --model ds41 --tp 4 [--layers 0,39] [--ranks 0,3] [--device cuda] [--json]

For every layer and rank: read the slice, build the native planes, read them back against the checkpoint's scales,
encode them, decode them again, and compare byte for byte. Exit status: 0 when all are exact, else that of the first
failure: 4 where the checkpoint is damaged or storage decodes to something else; 2 for usage or another model; 3 without
a checkpoint; 6 without the device; 130 when interrupted.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from progress_bars import show_progress
from torch import Tensor

from planfreeze.errors import DeviceMissing, PlanfreezeError, ScalesDiffer, UnknownLayer
from planfreeze.kernels.moe.checkpoints import Checkpoint, LayerWeights, open_checkpoint, read_layer
from planfreeze.kernels.moe.rules import ShardedModel, shard
from planfreeze.kernels.scales.geometry import MAX_SCALE, TILE_ROWS, ScaleGeometry, slot_of_row
from planfreeze.kernels.scales.inline import InlineScales, decode, encode
from planfreeze.kernels.scales.native import expert_chunks, logical_scales, native_plane
from planfreeze.models import Model, load_model
from planfreeze.reports import print_table

INTERRUPTED = 130
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionReport:
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
    native_bytes, inline_bytes : int
        Size of the native planes and of inline storage.
    """

    scales: int
    exceptions: int
    clamped: int
    raw_tiles: int
    native_bytes: int
    inline_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """One layer on one rank: its two projections, or the error that stopped it."""

    layer: int
    rank: int
    w13: ProjectionReport | None = None
    w2: ProjectionReport | None = None
    error: PlanfreezeError | None = None


def validate_layer(weights: LayerWeights, sharded: ShardedModel) -> tuple[ProjectionReport, ProjectionReport]:
    """Validate the scales of a layer.

    Returns
    -------
    tuple of ProjectionReport
        First and second projection.

    Raises
    ------
    ScalesDiffer
        A native plane or inline storage does not give the scales back.
    """
    share, hidden = sharded.intermediate, sharded.model.hidden
    w13 = ScaleGeometry(rows=2 * share, columns=hidden // 32, group_rows=share)
    w2 = ScaleGeometry(rows=hidden, columns=share // 32, group_rows=hidden)
    rotation = share if weights.source_order == "gate_up" else 0
    return validate_scales(w13, weights.w13_scales, rotation), validate_scales(w2, weights.w2_scales, 0)


def validate_scales(geometry: ScaleGeometry, scales: Tensor, rotation: int) -> ProjectionReport:
    """Bring scales into both storages and back, and count what they hold."""
    native = native_plane(geometry, scales, rotation=rotation)
    for first, last in expert_chunks(len(scales), 4 * geometry.native_bytes(1)):
        held = scales[first:last].clamp(max=MAX_SCALE)
        compare(first, held, logical_scales(geometry, native[first:last], rotation=rotation))
    inline = encode(geometry, native)
    for first, last in expert_chunks(len(scales), 4 * geometry.native_bytes(1)):
        compare(first, native[first:last], decode(inline, first=first, last=last))
    return ProjectionReport(
        scales=scales.numel(),
        exceptions=count_exceptions(inline, native),
        clamped=int((scales > MAX_SCALE).sum()),
        raw_tiles=inline.raw_tiles,
        native_bytes=native.nbytes,
        inline_bytes=inline.storage.nbytes,
    )


def compare(first_expert: int, expected: Tensor, found: Tensor) -> None:
    """Refuse the first difference."""
    if not torch.equal(expected, found):
        experts = len(expected)
        place = (expected.view(experts, -1) != found.view(experts, -1)).nonzero()[0].tolist()
        values = (int(side.view(experts, -1)[tuple(place)]) for side in (expected, found))
        raise ScalesDiffer(first_expert + place[0], place[1], *values)


def count_exceptions(inline: InlineScales, native: Tensor) -> int:
    """Count scales that are neither base nor base + 1, those of raw tiles included."""
    geometry = inline.geometry
    blocks = inline.parts()[1].view(inline.experts, geometry.groups, geometry.row_tiles, TILE_ROWS)
    slots = torch.tensor([slot_of_row(row) for row in range(TILE_ROWS)], device=native.device)
    bases = blocks[..., slots].flatten(2)[:, :, : geometry.group_rows].flatten(1)
    count = 0
    for first, last in expert_chunks(inline.experts, 4 * geometry.native_bytes(1)):
        # Unsigned: a scale below its base wraps round to a large difference.
        above = logical_scales(geometry, native[first:last]) - bases[first:last, :, None]
        count += int((above > 1).sum())
    return count


def validate_checkpoint(
    checkpoint: Checkpoint,
    model: Model,
    *,
    tp: int,
    layers: Sequence[int],
    ranks: Sequence[int],
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Iterator[LayerReport]:
    """Validate layers and ranks one after the other; an error ends its layer and rank, not the others.

    Raises
    ------
    InvalidRanks, UnevenShards, UntiledShards, UntiledModel
        The model cannot be divided over ``tp`` ranks.
    """
    sharded = shard(model, tp)
    for layer in layers:
        for rank in ranks:
            try:
                weights = read_layer(checkpoint, model, layer, tp=tp, rank=rank, device=device, progress=progress)
                w13, w2 = validate_layer(weights, sharded)
            except PlanfreezeError as error:
                yield LayerReport(layer=layer, rank=rank, error=error)
            else:
                yield LayerReport(layer=layer, rank=rank, w13=w13, w2=w2)


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
            }
            for report in reports
        ],
    }


def report_table(title: str, reports: Sequence[LayerReport]) -> None:
    """Print reports."""
    heads = ("layer", "rank", "exceptions w13", "w2", "%", "raw tiles w13", "w2", "native MiB", "inline MiB", "result")
    print_table(title, heads, [table_row(report) for report in reports])


def table_row(report: LayerReport) -> tuple[str, ...]:
    place = (str(report.layer), str(report.rank))
    if report.w13 is None or report.w2 is None:
        return (*place, *[""] * 7, type(report.error).__name__)
    both = (report.w13, report.w2)
    share = sum(part.exceptions for part in both) / sum(part.scales for part in both)
    return (
        *place,
        *(str(part.exceptions) for part in both),
        f"{100 * share:.3f}",
        *(str(part.raw_tiles) for part in both),
        f"{sum(part.native_bytes for part in both) / MIB:.4f}",
        f"{sum(part.inline_bytes for part in both) / MIB:.4f}",
        "exact",
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare inline and native scales of a checkpoint, byte for byte.")
    parser.add_argument("path", type=Path, metavar="PATH", help="folder of the checkpoint, or its only file")
    parser.add_argument("--model", required=True, help="catalog name, TOML file or config.json")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--layers", type=numbers, help="layers, comma separated; default: all of the checkpoint")
    parser.add_argument("--ranks", type=numbers, help="ranks, comma separated; default: all")
    parser.add_argument("--device", default="cpu", type=torch_device, help="where to build and compare: cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def torch_device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text} is no device: cpu, cuda or cuda:N") from error


def run(given: argparse.Namespace) -> int:
    """Validate what the command line names, print the result, and return the exit status."""
    if given.device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceMissing("torch sees none")
    model = load_model(given.model)
    shard(model, given.tp)
    checkpoint = open_checkpoint(given.path)
    layers = checkpoint.layers if given.layers is None else given.layers
    for layer in layers:
        if layer not in checkpoint.layers:
            raise UnknownLayer(str(given.path), layer, checkpoint.layers)
    ranks = range(given.tp) if given.ranks is None else given.ranks
    reports: list[LayerReport] = []
    with show_progress("read") as progress:
        for report in validate_checkpoint(
            checkpoint, model, tp=given.tp, layers=layers, ranks=ranks, device=given.device, progress=progress
        ):
            reports.append(report)
            if report.error is not None:
                sys.stderr.write(f"error: layer {report.layer}, rank {report.rank}: {report.error}\n")
    if given.json:
        json.dump(report_json(given.path, model, given.tp, reports), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        report_table(f"{given.path}: {model.name} at tp {given.tp}", reports)
    return next((report.error.exit_code for report in reports if report.error is not None), 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        return run(parse_arguments(arguments))
    except PlanfreezeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was changed\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
