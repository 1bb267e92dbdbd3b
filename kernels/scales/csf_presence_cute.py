"""Kernel of family ``csf_presence``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import launch_once
from planfreeze.kernels.mma.memory import barrier, select, store_global_byte
from planfreeze.kernels.mma.ptx import load_global_i32, load_global_i64, load_shared
from planfreeze.kernels.mma.words import store_shared

__all__ = ["CsfPresence"]

EXPERTS_PER_BLOCK = 128
IDS_IN_FLIGHT = 8
"""Ids a thread loads before it marks the first: enough to cover the latency of the L2 cache."""


class CsfPresence:
    """Mark the experts that routes go to.

    Math: ``presence[e]`` is 1 if one of ``topk_ids`` is e, else 0. Ids outside 0..experts-1 are ignored.

    Arguments: ``topk_ids`` ``(pairs,)``, aligned to their own size; ``presence`` u8 ``(experts,)``, all of it
    written; ``pairs``.

    Tiles: block b has the experts 128b..128b+127 and reads all ids. Shared memory: a word for each, 512 bytes. sm_90a
    and sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        At least 128 threads.
    experts : int
        Number of experts.
    id_bits : int
        32 or 64: width of the expert ids.
    """

    def __init__(self, *, launch: LaunchInfo, experts: int, id_bits: int) -> None:
        assert launch.block[0] >= EXPERTS_PER_BLOCK and id_bits in (32, 64)
        assert launch.shared_bytes >= 4 * EXPERTS_PER_BLOCK
        self.launch = launch
        self.experts = experts
        self.id_bits = id_bits

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "CsfPresence"

    @cute.jit
    def __call__(self, topk_ids: Int64, presence: Int64, pairs: Int32, stream):
        launch_once(self.kernel(topk_ids, presence, pairs), self.launch, stream)

    @cute.kernel
    def kernel(self, topk_ids: Int64, presence: Int64, pairs: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        flags = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        first_expert = block * EXPERTS_PER_BLOCK
        if thread < EXPERTS_PER_BLOCK:
            store_shared(flags + thread * 4, Uint32(0))
        barrier()
        threads = self.launch.block[0]
        for first in cutlass.range(thread, pairs, threads * IDS_IN_FLIGHT, unroll=1):
            # Past the end, the last id is read again: marking it twice is no harm.
            indices = [
                Int32(select(first + i * threads < pairs, Uint32(first + i * threads), Uint32(pairs - 1)))
                for i in range(IDS_IN_FLIGHT)
            ]
            for place in [self.load_id(topk_ids, index) - first_expert for index in indices]:
                if place >= 0 and place < EXPERTS_PER_BLOCK:
                    store_shared(flags + Int32(place) * 4, Uint32(1))
        barrier()
        if thread < EXPERTS_PER_BLOCK and first_expert + thread < self.experts:
            store_global_byte(presence + Int64(first_expert + thread), load_shared(flags + thread * 4))

    def load_id(self, topk_ids, pair):
        """Load one expert id, Int32 or Int64."""
        if self.id_bits == 32:
            return load_global_i32(topk_ids + Int64(pair) * 4)
        return load_global_i64(topk_ids + Int64(pair) * 8)
