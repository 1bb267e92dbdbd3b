"""Private memory for intermediates that are many times larger than what is kept of them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["ScratchPool"]


class ScratchPool:
    """Memory of one operation that goes back to the device when the operation ends.

    Parameters
    ----------
    device : torch.device
        Device of the tensors. On anything but CUDA the pool is the ordinary allocator.

    Notes
    -----
    A kept tensor in a segment that intermediates also used holds the whole segment. What is kept is therefore
    allocated outside ``use()``, everything else inside. The memory goes back when the pool is deleted, provided that
    no tensor of it is alive then; later ones go back with the next ``torch.cuda.empty_cache()``. Contexts of one pool
    follow each other, they do not nest.
    """

    __slots__ = ("index", "pool")

    def __init__(self, device: torch.device) -> None:
        self.index = 0
        self.pool: Any = None
        if device.type == "cuda":
            self.index = torch.cuda.current_device() if device.index is None else device.index
            with torch.cuda.device(self.index):
                self.pool = torch.cuda.MemPool()

    def use(self) -> AbstractContextManager[None]:
        """Take what this thread allocates on the pool's device from the pool."""
        if self.pool is None:
            return nullcontext()
        context: AbstractContextManager[None] = torch.cuda.use_mem_pool(self.pool, device=self.index)
        return context
