"""Prove on a checkpoint's own scales that every storage holds exactly what the native planes do, and what it costs.

python tools/validate_checkpoint.py PATH --model ds41 --tp 4 [--layers 0,39] [--ranks 0,3] [--device cuda] [--json]
                                    [--store STORE [--trust-store]]

For every layer and rank: read the slice, build the native planes, read them back against the checkpoint's scales,
encode them as inline storage and as a CSF batch, decode both again, and compare byte for byte. With --store, on a
device, the layer is also run with inline and with native scales, and the outputs are compared bit for bit. Exit status:
0 when all are exact, else that of the first failure: 4 where the checkpoint is damaged, storage decodes to something
else or outputs differ; 2 for usage or another model; 3 without a checkpoint or plan; 6 without the device; 130 when
interrupted.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from progress_bars import show_progress
from torch import Tensor
from validate_arms import TOKENS, Arms, compare_arms, open_arms
from validation_reports import LayerReport, ProjectionReport, report_json, report_table

from planfreeze import errors
from planfreeze.kernels.moe.checkpoints import Checkpoint, LayerWeights, open_checkpoint, read_layer
from planfreeze.kernels.moe.rules import ShardedModel, shard
from planfreeze.kernels.scales import csf_batch
from planfreeze.kernels.scales.geometry import MAX_SCALE, TILE_ROWS, ScaleGeometry, slot_of_row
from planfreeze.kernels.scales.inline import InlineScales, decode, encode
from planfreeze.kernels.scales.native import expert_chunks, logical_scales, native_plane
from planfreeze.models import Model, load_model

INTERRUPTED = 130


def validate_layer(weights: LayerWeights, sharded: ShardedModel) -> tuple[ProjectionReport, ProjectionReport]:
    """Validate the scales of a layer.

    Returns
    -------
    tuple of ProjectionReport
        First and second projection.

    Raises
    ------
    ScalesDiffer
        A native plane, inline storage or a CSF batch does not give the scales back.
    """
    share, hidden = sharded.intermediate, sharded.model.hidden
    w13 = ScaleGeometry(rows=2 * share, columns=hidden // 32, group_rows=share)
    w2 = ScaleGeometry(rows=hidden, columns=share // 32, group_rows=hidden)
    rotation = share if weights.source_order == "gate_up" else 0
    return validate_scales(w13, weights.w13_scales, rotation), validate_scales(w2, weights.w2_scales, 0)


def validate_scales(geometry: ScaleGeometry, scales: Tensor, rotation: int) -> ProjectionReport:
    """Bring scales into every storage and back, and count what they hold."""
    native = native_plane(geometry, scales, rotation=rotation)
    for first, last in expert_chunks(len(scales), 4 * geometry.native_bytes(1)):
        held = scales[first:last].clamp(max=MAX_SCALE)
        compare(first, held, logical_scales(geometry, native[first:last], rotation=rotation), "the native plane")
    inline, batch = encode(geometry, native), csf_batch.encode(geometry, native)
    for first, last in expert_chunks(len(scales), 4 * geometry.native_bytes(1)):
        compare(first, native[first:last], decode(inline, first=first, last=last), "inline storage")
        compare(first, native[first:last], csf_batch.decode(batch, first=first, last=last), "the CSF batch")
    return ProjectionReport(
        scales=scales.numel(),
        exceptions=count_exceptions(inline, native),
        clamped=int((scales > MAX_SCALE).sum()),
        raw_tiles=inline.raw_tiles,
        native_bytes=native.nbytes,
        inline_bytes=inline.storage.nbytes,
        batch_bytes=batch.size_bytes,
    )


def compare(first_expert: int, expected: Tensor, found: Tensor, form: str) -> None:
    """Refuse the first difference."""
    if not torch.equal(expected, found):
        experts = len(expected)
        place = (expected.view(experts, -1) != found.view(experts, -1)).nonzero()[0].tolist()
        values = (int(side.view(experts, -1)[tuple(place)]) for side in (expected, found))
        raise errors.ScalesDiffer(first_expert + place[0], place[1], *values, form)


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
    arms: Arms | None = None,
) -> Iterator[LayerReport]:
    """Validate layers and ranks one after the other, with programs of both arms where they are given.

    An error ends its layer and rank, not the others.

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
                if arms is not None:
                    compare_arms(weights, arms)
            except errors.PlanfreezeError as error:
                yield LayerReport(layer=layer, rank=rank, error=error)
            else:
                equal_tokens = () if arms is None else TOKENS
                yield LayerReport(layer=layer, rank=rank, w13=w13, w2=w2, equal_tokens=equal_tokens)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare the storages of a checkpoint's scales, byte for byte.")
    parser.add_argument("path", type=Path, metavar="PATH", help="folder of the checkpoint, or its only file")
    parser.add_argument("--model", required=True, help="catalog name, TOML file or config.json")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--layers", type=numbers, help="layers, comma separated; default: all of the checkpoint")
    parser.add_argument("--ranks", type=numbers, help="ranks, comma separated; default: all")
    parser.add_argument("--device", type=torch_device, help="cpu, cuda or cuda:N; default: cuda with --store, else cpu")
    parser.add_argument("--store", type=Path, help="run both arms over the model's plan in this store, on the device")
    parser.add_argument("--trust-store", action="store_true", help="take the plan whoever owns the store")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    given.device = given.device or torch.device("cpu" if given.store is None else "cuda")
    if given.store is not None and given.device.type != "cuda":
        parser.error(f"--store runs programs, and --device {given.device} runs none")
    return given


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def torch_device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text} is no device: cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text} compares nothing here: cpu, cuda or cuda:N")
    return device


def check_device(device: torch.device) -> None:
    """Refuse a device that is not there."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise errors.DeviceMissing("torch sees none")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise errors.DeviceMissing(f"there is no {device}; torch sees {torch.cuda.device_count()}")


def run(given: argparse.Namespace) -> int:
    """Validate what the command line names, print the result, and return the exit status."""
    check_device(given.device)
    model = load_model(given.model)
    shard(model, given.tp)
    checkpoint = open_checkpoint(given.path)
    layers = checkpoint.layers if given.layers is None else given.layers
    for layer in layers:
        if layer not in checkpoint.layers:
            raise errors.UnknownLayer(str(given.path), layer, checkpoint.layers)
    ranks = range(given.tp) if given.ranks is None else given.ranks
    reports: list[LayerReport] = []
    with contextlib.ExitStack() as stack:
        arms = None
        if given.store is not None:
            trust = given.trust_store or None
            opened = open_arms(model, tp=given.tp, store=given.store, is_trusted=trust, device=given.device)
            arms = stack.enter_context(opened)
        progress = stack.enter_context(show_progress("read"))
        for report in validate_checkpoint(
            checkpoint,
            model,
            tp=given.tp,
            layers=layers,
            ranks=ranks,
            device=given.device,
            progress=progress,
            arms=arms,
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
    except errors.PlanfreezeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was changed\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
