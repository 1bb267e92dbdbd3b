"""Global memory of the machine that runs PTX."""

from dataclasses import dataclass, field

import numpy as np

POISON = 0xA5


@dataclass
class Memory:
    """Global memory: buffers at aligned addresses with gaps between them."""

    data: np.ndarray = field(default_factory=lambda: np.full(1 << 24, POISON, np.uint8))
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def put(self, values: np.ndarray) -> int:
        """Copy an array in and return its address."""
        start = (self.ends[-1] if self.ends else 0) + 512 & ~255
        self.starts.append(start)
        self.ends.append(start + values.nbytes)
        self.data[start : start + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return start

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        """Copy an array of the shape and type of ``like`` out."""
        return self.data[address : address + like.nbytes].copy().view(like.dtype).reshape(like.shape)

    def check(self, addresses: np.ndarray, size: int) -> None:
        index = np.searchsorted(np.array(self.starts), addresses, side="right") - 1
        assert (index >= 0).all() and (addresses + size <= np.array(self.ends)[index]).all(), "out of bounds"
