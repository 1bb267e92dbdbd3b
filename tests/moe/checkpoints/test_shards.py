"""Shards of a checkpoint that are missing, cut off, or something else: refused by name."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.errors import DamagedShard, ShardIsText, ShardMissing, TruncatedShard
from planfreeze.kernels.moe.checkpoints import open_checkpoint

from .conftest import DOWN_SCALE, read, write


def test_a_missing_shard_is_named(spoiled: Callable[[str, str], Path]) -> None:
    with pytest.raises(ShardMissing, match=r"model-0000.-of-00003\.safetensors cannot be read: No such file") as caught:
        read(spoiled("missing-shard", DOWN_SCALE.format(expert=2)))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kept", ["half", "all but one", "half a header", "four bytes", "nothing"])
def test_a_shard_that_is_cut_off_is_refused_with_both_lengths(checkpoint: Path, kept: str) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    whole = shard.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    length = {
        "half": len(whole) // 2,
        "all but one": len(whole) - 1,
        "half a header": header // 2,
        "four bytes": 4,
        "nothing": 0,
    }[kept]
    needed = {"half": len(whole), "all but one": len(whole), "half a header": header}.get(kept)
    shard.write_bytes(whole[:length])
    with pytest.raises(TruncatedShard, match=f"has {length} bytes") as caught:
        read(checkpoint)
    assert needed is None or caught.value.expected_bytes == needed
    assert caught.value.shard == str(shard)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda whole: whole + b"\0\0", "2 bytes follow the last tensor"),
        (lambda whole: whole.replace(b'"dtype"', b'"dtipe"', 1), "KeyError"),
        (lambda whole: whole[:8] + b"[" + whole[9:], "header cannot be read"),
    ],
)
def test_a_shard_with_another_header_is_refused(
    checkpoint: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    shard.write_bytes(change(shard.read_bytes()))
    with pytest.raises(DamagedShard, match=reason):
        read(checkpoint)


POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


@pytest.mark.parametrize(
    ("content", "shown", "is_pointer", "command"),
    [
        (POINTER, "version https://git-lfs.github.com/spec/v1", True, "git lfs pull"),
        (b"<!DOCTYPE html>\n<title>Sign in</title>", "<!DOCTYPE html>", False, "head "),
        (b"404", "404", False, "head "),
        (b"x" * 59 + "\N{GREEK SMALL LETTER ALPHA}".encode(), "x" * 59, False, "head "),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_text_in_place_of_a_shard_is_named(
    tmp_path: Path, shards: int, content: bytes, shown: str, is_pointer: bool, command: str
) -> None:
    folder = write(tmp_path / "checkpoint", shards=shards)
    shard = open_checkpoint(folder).shards[DOWN_SCALE.format(expert=2)]
    shard.write_bytes(content)
    with pytest.raises(ShardIsText) as caught:
        read(folder)
    assert (caught.value.shard, caught.value.is_pointer, caught.value.exit_code) == (str(shard), is_pointer, 4)
    assert shown in str(caught.value) and command in str(caught.value)


def test_a_header_longer_than_safetensors_reads_is_no_header(checkpoint: Path) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    length = 100_000_001
    with shard.open("r+b") as file:  # a hole: it takes no room
        file.write(length.to_bytes(8, "little"))
        file.truncate(8 + length)
    tracemalloc.start()
    with pytest.raises(DamagedShard, match="header would have 100000001 bytes, and has 100000000 at most"):
        read(checkpoint)
    assert tracemalloc.get_traced_memory()[1] < length // 10
    tracemalloc.stop()


def test_a_header_that_contradicts_itself_is_refused(checkpoint: Path) -> None:
    shard = open_checkpoint(checkpoint).shards[DOWN_SCALE.format(expert=2)]
    # A tensor nobody asked for: only safetensors itself looks at it.
    shard.write_bytes(shard.read_bytes().replace(b'"dtype":"BF16","shape":[512]', b'"dtype":"BF16","shape":[511]'))
    with pytest.raises(DamagedShard, match=r"safetensors \d.* says: "):
        read(checkpoint)
