"""Checkpoints: read one layer's experts, and of them what one tensor-parallel rank holds.

``open_checkpoint`` reads names only. ``read_layer`` compares every tensor of the layer with the model by the headers of
its shards, and only then allocates the result, once, and fills it slice by slice.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.moe.checkpoint_layouts import (
    KNOWN_LAYOUTS,
    CheckpointLayout,
    detect_layout,
    find_experts,
    find_names,
)
from planfreeze.kernels.moe.checkpoint_shards import StoredTensor, locate_tensors, open_shard, read_header
from planfreeze.kernels.moe.checkpoint_slices import MatrixSlice, rank_slices
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.rules import ShardedModel, shard
from planfreeze.kernels.moe.weights import SourceOrder
from planfreeze.models import Model

__all__ = ["Checkpoint", "LayerWeights", "Progress", "open_checkpoint", "read_layer"]

NAN_SCALE = 255

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes of the whole result."""


class Checkpoint(Struct, frozen=True, kw_only=True, eq=False):
    """Where the tensors of a checkpoint are; made by :func:`open_checkpoint`.

    Parameters
    ----------
    path : Path
        Folder of the shards, or the only file.
    layout : CheckpointLayout
        Names of the expert tensors.
    experts : mapping
        Numbers of the experts that have tensors, ascending, by layer; none where a tensor holds all experts.
    shards : mapping
        File that holds each tensor, by the tensor's name.
    """

    path: Path
    layout: CheckpointLayout
    experts: Mapping[int, tuple[int, ...]]
    shards: Mapping[str, Path]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have expert tensors, ascending."""
        return tuple(self.experts)


class LayerWeights(Struct, frozen=True, kw_only=True, eq=False):
    """Experts of one layer as one rank holds them, N columns of the intermediate wide.

    Parameters
    ----------
    w13 : Tensor
        ``(experts, 2 * N, hidden / 2)`` uint8 codes, the even K in the low nibble; halves in ``source_order``.
    w13_scales : Tensor
        ``(experts, 2 * N, hidden / 32)`` uint8, E8M0.
    w2 : Tensor
        ``(experts, hidden, N / 2)`` uint8 codes.
    w2_scales : Tensor
        ``(experts, hidden, N / 32)`` uint8, E8M0.
    source_order : str
        Which half of the rows of ``w13`` comes first.
    """

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor
    source_order: SourceOrder

    @property
    def size_bytes(self) -> int:
        """Bytes of the four tensors."""
        return sum(tensor.nbytes for tensor in (self.w13, self.w13_scales, self.w2, self.w2_scales))


def open_checkpoint(path: Path | str, *, layouts: tuple[CheckpointLayout, ...] = KNOWN_LAYOUTS) -> Checkpoint:
    """Find the tensors of a checkpoint and recognise how they are named. Reads no tensor.

    Parameters
    ----------
    path : Path or str
        A folder with ``model.safetensors.index.json`` or, without index, ``model.safetensors``; or a single
        ``.safetensors`` file.
    layouts : tuple of CheckpointLayout
        Layouts to look for.

    Raises
    ------
    CheckpointMissing
        There is neither a folder nor a file, or the folder has neither index nor single file.
    MalformedIndex
        The index is not JSON, or has no ``weight_map`` from names to file names of its own folder.
    ShardMissing, ShardIsText, TruncatedShard, DamagedShard
        A single file cannot be read.
    UnknownLayout, AmbiguousLayout
        The names fit none of the layouts, or several.
    """
    shards = locate_tensors(Path(path))
    layout = detect_layout(shards, path=str(path), layouts=layouts)
    return Checkpoint(path=Path(path), layout=layout, experts=find_experts(layout, shards), shards=shards)


def read_layer(
    checkpoint: Checkpoint | Path | str,
    model: Model,
    layer: int,
    *,
    tp: int,
    rank: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> LayerWeights:
    """Read the experts of one layer, sliced for one rank.

    Parameters
    ----------
    checkpoint : Checkpoint, Path or str
        An opened checkpoint, or the path of one. Opening once serves any number of layers.
    model : Model
        Geometry the tensors have to have.
    layer : int
        Number of the layer in the checkpoint's names.
    tp, rank : int
        Number of ranks, and the rank in 0..tp-1. With N = intermediate / tp it holds rows rank*N .. (rank+1)*N-1 of
        gate and up, and those columns of down.
    device : torch.device or str
        Device of the result.
    progress : callable, optional
        Called with (bytes read, bytes in all) after every slice.

    Raises
    ------
    InvalidRanks, UnevenShards, UntiledShards, UntiledModel
        The model cannot be divided over ``tp`` ranks.
    RankOutOfRange, UnknownLayer, ExpertsDiffer
        The rank is not one of ``tp``, the layer has no experts here, or not as many as the model: the highest number
        counts, so that one beside a gap is not passed over.
    TensorMissing
        A tensor is not in the index, or not in the shard the index names.
    UnexpectedTensor, UnexpectedDtype
        A tensor has another shape, or another element type at the right shape.
    ShardMissing, ShardIsText, TruncatedShard, DamagedShard
        A shard cannot be read.
    NanScale
        A scale of the slice is 255.
    ExtraMissing
        safetensors is not installed.

    Notes
    -----
    Bytes are returned as uint8 whatever type the checkpoint gives them: codes may be U8 or I8 there, scales U8 or
    F8_E8M0, torch's ``float8_e8m0fnu``. No bit changes: ``scales.view(torch.float8_e8m0fnu)`` gives that type back.

    Memory: the result, on ``device``; and on the host one slice of one expert's matrix. Shards are mapped, not loaded:
    the system keeps their pages as long as it has room. Of every row of down a rank holds a few bytes, so all of down
    comes from the disk whatever the rank.
    """
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
    sharded = shard(model, tp)
    if type(rank) is not int or not 0 <= rank < tp:
        raise errors.RankOutOfRange(rank, tp)
    if layer not in opened.layers:
        raise errors.UnknownLayer(str(opened.path), layer, opened.layers)
    check_experts(opened, layer, model.experts)
    slices = tuple(rank_slices(opened.layout, sharded, rank))
    used = check_tensors(opened, layer, model.experts, slices)
    weights = allocate(sharded, opened.layout.source_order, torch.device(device))
    done = 0
    with ExitStack() as stack:
        handles = {path: stack.enter_context(open_shard(path)) for path in used}
        for expert in range(model.experts):
            for wanted in slices:
                tensor = wanted.pattern.format(layer=layer, expert=expert)
                part = read_slice(handles[opened.shards[tensor]], tensor, wanted, expert)
                target = getattr(weights, wanted.output)[expert]
                target[wanted.output_row : wanted.output_row + len(part)].copy_(part)
                done += part.nbytes
                if progress is not None:
                    progress(done, weights.size_bytes)
    return weights


def check_experts(checkpoint: Checkpoint, layer: int, experts: int) -> None:
    """Refuse another number of experts than the model's. A gap below the highest is a missing tensor, not this."""
    found = checkpoint.experts[layer]
    if found and found[-1] + 1 != experts:
        raise errors.ExpertsDiffer(str(checkpoint.path), layer, found, experts)


def check_stacked_experts(
    checkpoint: Checkpoint, layer: int, experts: int, stored: Iterable[tuple[MatrixSlice, StoredTensor]]
) -> None:
    """Refuse tensors that agree on another number of experts; one that differs alone has a wrong shape."""
    numbers = {found.shape[0] if found.shape[1:] == wanted.shape[1:] else experts for wanted, found in stored}
    if len(numbers) == 1 and experts not in numbers:
        raise errors.ExpertsDiffer(str(checkpoint.path), layer, numbers.pop(), experts)


def check_tensors(
    checkpoint: Checkpoint, layer: int, experts: int, slices: tuple[MatrixSlice, ...]
) -> Mapping[Path, Mapping[str, StoredTensor]]:
    """Compare every tensor of a layer with what is expected; return the headers of the shards that hold them."""
    headers: dict[Path, Mapping[str, StoredTensor]] = {}
    stored: list[tuple[str, MatrixSlice, StoredTensor]] = []
    for expert in range(1 if checkpoint.layout.is_stacked else experts):
        named = None if checkpoint.layout.is_stacked else expert
        for wanted in slices:
            tensor = wanted.pattern.format(layer=layer, expert=expert)
            path = checkpoint.shards.get(tensor)
            if path is None:
                shards = neighbour_shards(checkpoint, layer, expert)
                raise errors.TensorMissing(tensor, layer, named, shards, "the index does not list it")
            if path not in headers:
                headers[path] = read_header(path, wanted=tensor)
            found = headers[path].get(tensor)
            if found is None:
                raise errors.TensorMissing(
                    tensor, layer, named, str(path), "the shard that the index names does not hold it"
                )
            stored.append((tensor, wanted, found))
    if checkpoint.layout.is_stacked:
        check_stacked_experts(checkpoint, layer, experts, ((wanted, found) for _, wanted, found in stored))
    for tensor, wanted, found in stored:
        if found.shape != wanted.shape or found.dtype not in wanted.dtypes:
            error = errors.UnexpectedDtype if found.shape == wanted.shape else errors.UnexpectedTensor
            expected = f"{' or '.join(wanted.dtypes)} {list(wanted.shape)}"
            raise error(tensor, str(checkpoint.shards[tensor]), str(found), expected)
    return headers


def neighbour_shards(checkpoint: Checkpoint, layer: int, expert: int) -> str:
    """Name the shards that hold the other tensors of an expert, or else of its layer."""
    patterns, shards = checkpoint.layout.patterns, checkpoint.shards
    own = {shards.get(pattern.format(layer=layer, expert=expert)) for pattern in patterns}
    if own == {None}:
        own = {shards[name] for name in find_names(checkpoint.layout, layer, shards)}
    return ", ".join(sorted(str(path) for path in own if path is not None))


def allocate(sharded: ShardedModel, source_order: SourceOrder, device: torch.device) -> LayerWeights:
    """Allocate the result; every byte of it is written later."""
    experts, hidden, share = sharded.model.experts, sharded.model.hidden, sharded.intermediate

    def empty(rows: int, columns: int) -> Tensor:
        return torch.empty(experts, rows, columns, dtype=torch.uint8, device=device)

    return LayerWeights(
        w13=empty(2 * share, hidden // 2),
        w13_scales=empty(2 * share, hidden // GROUP),
        w2=empty(hidden, share // 2),
        w2_scales=empty(hidden, share // GROUP),
        source_order=source_order,
    )


def read_slice(handle: Any, tensor: str, wanted: MatrixSlice, expert: int) -> Tensor:
    """Return the rank's part of one matrix as bytes; refuse scales that are NaN."""
    taken: Tensor = handle.get_slice(tensor)[wanted.index(expert)]
    part = taken.view(torch.uint8).flatten(0, -2)
    if wanted.is_scale and int(part.max()) == NAN_SCALE:
        row, column = (part == NAN_SCALE).nonzero()[0].tolist()
        named = expert if wanted.is_stacked else None
        raise errors.NanScale(tensor, wanted.rows.start + row, wanted.columns.start + column, named)
    return part
