"""Defects of checkpoints, made on purpose: what a reader has to refuse."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from planfreeze.kernels.moe.checkpoint_shards import INDEX, locate_tensors, read_header

__all__ = ["DEFECTS", "choose_tensor", "spoil_checkpoint"]


def spoil_checkpoint(folder: Path, defect: str, tensor: str) -> None:
    """Give a checkpoint a defect.

    Parameters
    ----------
    folder : Path
        A whole checkpoint.
    defect : str
        One of ``DEFECTS``.
    tensor : str
        Tensor that is changed, or whose shard or index is.

    Raises
    ------
    KeyError
        There is no such defect or tensor.
    """
    DEFECTS[defect](folder, locate_tensors(folder)[tensor], tensor)


def choose_tensor(
    tensors: Mapping[str, bool], defect: str | None, tensor: str | None, *, has_index: bool
) -> str | None:
    """Return the tensor that a defect is to spoil, by default the first it fits; None without a defect.

    Parameters
    ----------
    tensors : mapping
        Whether each tensor of the checkpoint holds scales, by its name.
    defect : str, optional
        One of ``DEFECTS``.
    tensor : str, optional
        Tensor that is asked for.
    has_index : bool
        Whether the checkpoint has an index.

    Raises
    ------
    ValueError
        There is no such tensor, the defect is not one it can have, or there is no defect to give it.
    """
    if defect is None:
        if tensor is not None:
            raise ValueError(f"--tensor {tensor} names what to spoil: say how with --defect")
        return None
    if DEFECTS[defect] is cut_index and not has_index:
        raise ValueError(f"--defect {defect} spoils the index, and --shards 1 writes none")
    fitting = [name for name, is_scale in tensors.items() if is_scale or DEFECTS[defect] is not set_nan]
    if tensor is None:
        return fitting[0]
    if tensor not in tensors:
        raise ValueError(f"--tensor {tensor}: the checkpoint has no such tensor; one of it is {fitting[0]}")
    if tensor not in fitting:
        raise ValueError(f"--tensor {tensor} holds no scales, and --defect {defect} spoils one; try {fitting[0]}")
    return tensor


def set_nan(folder: Path, shard: Path, tensor: str) -> None:
    """Overwrite the tensor's last byte with 255."""
    with shard.open("r+b") as file:
        file.seek(read_header(shard, wanted=tensor)[tensor].end_byte - 1)
        file.write(b"\xff")


def remove_tensor(folder: Path, shard: Path, tensor: str) -> None:
    """Take the tensor out of its shard and of the index."""
    remove_from_shard(folder, shard, tensor)
    index = folder / INDEX
    if index.exists():
        parsed = json.loads(index.read_text())
        del parsed["weight_map"][tensor]
        index.write_text(json.dumps(parsed))


def remove_from_shard(folder: Path, shard: Path, tensor: str) -> None:
    """Take the tensor out of its shard; an index lists it as before."""
    rewrite(shard, lambda tensors: {name: held for name, held in tensors.items() if name != tensor})


def drop_row(folder: Path, shard: Path, tensor: str) -> None:
    """Shorten the tensor's first dimension by one."""
    rewrite(shard, lambda tensors: tensors | {tensor: tensors[tensor][:-1].clone()})


def change_dtype(folder: Path, shard: Path, tensor: str) -> None:
    """Store the tensor's bytes as 16-bit integers."""
    rewrite(shard, lambda tensors: tensors | {tensor: tensors[tensor].view(torch.uint8).to(torch.int16)})


def cut_shard(folder: Path, shard: Path, tensor: str) -> None:
    """Cut the shard off in the middle."""
    size_bytes = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size_bytes // 2)


def remove_shard(folder: Path, shard: Path, tensor: str) -> None:
    """Delete the shard."""
    shard.unlink()


def cut_index(folder: Path, shard: Path, tensor: str) -> None:
    """Cut the index off in the middle."""
    index = folder / INDEX
    text = index.read_text()
    index.write_text(text[: len(text) // 2])


def rewrite(shard: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Write a shard again with other tensors."""
    save_file(change({name: tensor.clone() for name, tensor in load_file(shard).items()}), shard)


DEFECTS: Mapping[str, Callable[[Path, Path, str], None]] = {
    "nan-scale": set_nan,
    "missing-tensor": remove_tensor,
    "missing-from-shard": remove_from_shard,
    "wrong-shape": drop_row,
    "wrong-dtype": change_dtype,
    "cut-shard": cut_shard,
    "missing-shard": remove_shard,
    "cut-index": cut_index,
}
"""Defects by name."""
