"""Errors of shards: the files of a checkpoint."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "DamagedShard",
    "ShardIsText",
    "ShardMissing",
    "TruncatedShard",
]


class ShardMissing(PlanfreezeError):
    """A file that the index names is not there, or cannot be read."""

    exit_code = 4

    def __init__(self, shard: str, tensor: str, reason: str) -> None:
        super().__init__(shard, tensor, reason)
        self.shard, self.tensor, self.reason = shard, tensor, reason

    def __str__(self) -> str:
        return (
            f"{self.shard} cannot be read: {self.reason}. The index says that it holds {self.tensor}. "
            f"Fetch the file, or look at it: ls -l {self.shard}"
        )


class ShardIsText(PlanfreezeError):
    """A file that should be a shard is text: a pointer to the shard, or what was sent in its place."""

    exit_code = 4

    def __init__(self, shard: str, beginning: str, is_pointer: bool) -> None:
        super().__init__(shard, beginning, is_pointer)
        self.shard, self.beginning, self.is_pointer = shard, beginning, is_pointer

    def __str__(self) -> str:
        if self.is_pointer:
            return (
                f"{self.shard} is a pointer of git-lfs, not the shard: it begins {self.beginning!r}. No tensor is in "
                f"it. Fetch what it points to, in its folder: git lfs pull"
            )
        return (
            f"{self.shard} is text, not a safetensors file: it begins {self.beginning!r}. No tensor is in it. "
            f"Read what was sent instead, and fetch the file again: head {self.shard}"
        )


class TruncatedShard(PlanfreezeError):
    """A file ends before the bytes its header describes."""

    exit_code = 4

    def __init__(self, shard: str, found_bytes: int, expected_bytes: int) -> None:
        super().__init__(shard, found_bytes, expected_bytes)
        self.shard, self.found_bytes, self.expected_bytes = shard, found_bytes, expected_bytes

    def __str__(self) -> str:
        return (
            f"{self.shard} is cut off: it has {self.found_bytes} bytes, its header describes {self.expected_bytes}. "
            f"The tensors at its end are lost. Fetch the file again, and compare: sha256sum {self.shard}"
        )


class DamagedShard(PlanfreezeError):
    """A file is no safetensors file."""

    exit_code = 4

    def __init__(self, shard: str, reason: str) -> None:
        super().__init__(shard, reason)
        self.shard, self.reason = shard, reason

    def __str__(self) -> str:
        return (
            f"{self.shard} is not a readable safetensors file: {self.reason}. Its bytes could belong to any tensor. "
            f"Fetch the file again, and compare: sha256sum {self.shard}"
        )
