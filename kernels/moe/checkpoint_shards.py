"""Shards of a checkpoint: safetensors files, looked at by their headers before any tensor is read.

A file is eight little-endian bytes with the length of the header, the header (JSON: type, shape and byte range of every
tensor), and the bytes of the tensors, without gaps. So the header alone says how long the file has to be.
"""

import codecs
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct

from planfreeze import errors

__all__ = ["INDEX", "WHOLE", "StoredTensor", "locate_tensors", "open_shard", "read_header"]

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Longest header that safetensors itself reads; a longer one is no header."""
POINTER = "version https://git-lfs.github.com/"
SHOWN_BYTES = 60


class StoredTensor(Struct, frozen=True, kw_only=True):
    """What a header says of one tensor.

    Parameters
    ----------
    dtype : str
        Element type as safetensors names it, such as ``U8``.
    shape : tuple of int
        Shape.
    first_byte, end_byte : int
        Where the tensor lies in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    first_byte: int
    end_byte: int

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def locate_tensors(path: Path) -> Mapping[str, Path]:
    """Return the file that holds each tensor of a checkpoint, by the tensor's name.

    Parameters
    ----------
    path : Path
        A folder with an index or a single file, or a single file.

    Raises
    ------
    CheckpointMissing
        There is neither an index nor a single file.
    MalformedIndex
        The index is not JSON, or has no ``weight_map`` from names to file names of its own folder.
    ShardMissing, ShardIsText, TruncatedShard, DamagedShard
        The single file cannot be read.
    """
    index = path / INDEX
    if index.exists():
        return read_index(index)
    whole = single_file(path)
    return dict.fromkeys(read_header(whole, wanted="every tensor"), whole)


def read_index(path: Path) -> Mapping[str, Path]:
    """Return the shard of every tensor an index lists."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise errors.MalformedIndex(str(path), str(error)) from error
    listed = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise errors.MalformedIndex(str(path), "it has no weight_map from tensors to files")
    for tensor, name in listed.items():
        # A name with a folder in it would read a file that does not belong to the checkpoint.
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or "\0" in name:
            raise errors.MalformedIndex(str(path), f"it puts {tensor} into {name!r}, which is no file name")
    return {tensor: path.parent / name for tensor, name in listed.items()}


def single_file(path: Path) -> Path:
    """Return the file of a checkpoint without index."""
    if path.is_dir():
        if (path / WHOLE).is_file():
            return path / WHOLE
        others = len(list(path.glob("*.safetensors")))
        raise errors.CheckpointMissing(
            str(path), f"it has neither {INDEX} nor {WHOLE}, and {others} other .safetensors files"
        )
    if not path.is_file():
        raise errors.CheckpointMissing(str(path), "it is neither a folder nor a file")
    if path.suffix != ".safetensors":
        raise errors.CheckpointMissing(str(path), "the name of the file does not end in .safetensors")
    return path


def read_header(path: Path, *, wanted: str) -> Mapping[str, StoredTensor]:
    """Read the header of a shard and compare the length of the file with it.

    Parameters
    ----------
    path : Path
        The file.
    wanted : str
        Tensor it is opened for; errors name it.

    Raises
    ------
    ShardMissing
        The file is not there or cannot be opened.
    ShardIsText
        The file is text, such as a pointer of git-lfs.
    TruncatedShard
        The file ends before the header or the last tensor does.
    DamagedShard
        The header is not one of a safetensors file or longer than 100 MB, or bytes follow the last tensor.
    """
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            refuse_text(path, file.read(SHOWN_BYTES))
            file.seek(0)
            header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
            start = LENGTH_BYTES + header_bytes
            if header_bytes > MAX_HEADER_BYTES:
                reason = f"its header would have {header_bytes} bytes, and has {MAX_HEADER_BYTES} at most"
                raise errors.DamagedShard(str(path), reason)
            if size_bytes < start:
                raise errors.TruncatedShard(str(path), size_bytes, start)
            text = file.read(header_bytes)
    except OSError as error:
        raise errors.ShardMissing(str(path), wanted, error.strerror or str(error)) from error
    tensors = parse_header(path, text, start)
    end = max((tensor.end_byte for tensor in tensors.values()), default=start)
    if size_bytes < end:
        raise errors.TruncatedShard(str(path), size_bytes, end)
    if size_bytes > end:
        raise errors.DamagedShard(str(path), f"{size_bytes - end} bytes follow the last tensor")
    return tensors


def refuse_text(path: Path, beginning: bytes) -> None:
    """Refuse a file that begins like text: the length of a header has zero bytes, which text has not."""
    try:
        # The last character may be cut in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return
    if text.strip() and all(character.isprintable() or character.isspace() for character in text):
        raise errors.ShardIsText(str(path), text, text.startswith(POINTER))


def parse_header(path: Path, text: bytes, start: int) -> Mapping[str, StoredTensor]:
    """Return the tensors of a header; the tensors' bytes begin at ``start``."""
    try:
        entries = json.loads(text)
        return {
            name: StoredTensor(
                dtype=str(entry["dtype"]),
                shape=tuple(int(size) for size in entry["shape"]),
                first_byte=start + int(entry["data_offsets"][0]),
                end_byte=start + int(entry["data_offsets"][1]),
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise errors.DamagedShard(str(path), f"its header cannot be read ({type(error).__name__}: {error})") from error


def open_shard(path: Path) -> AbstractContextManager[Any]:
    """Map a shard; the handle's ``get_slice`` reads parts of its tensors.

    Raises
    ------
    ExtraMissing
        safetensors is not installed.
    DamagedShard
        safetensors refuses the file.
    """
    try:
        from safetensors import SafetensorError, __version__, safe_open
    except ImportError as error:
        raise errors.ExtraMissing("serve", "safetensors") from error
    return map_shard(path, safe_open, SafetensorError, __version__)


def map_shard(path: Path, opener: Any, refusal: type[Exception], version: str) -> AbstractContextManager[Any]:
    try:
        opened: AbstractContextManager[Any] = opener(path, framework="pt", device="cpu")
    except refusal as error:
        # An older version refuses types it does not know: E8M0 before 0.6.
        raise errors.DamagedShard(str(path), f"safetensors {version} says: {error}") from error
    return opened
