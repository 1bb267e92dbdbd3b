"""Kernel of family ``topk_sum``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import pack_bf16, store_global_x4
from planfreeze.kernels.mma.ptx import float_of_bits, load_global_x4

__all__ = ["TopkSum"]

ROUTES_IN_FLIGHT = 8
"""Loads issued before the first addition: 32 registers, enough to cover memory latency."""


class TopkSum:
    """Sum ``top_k`` bf16 rows per token in fp32, in route order, with one rounding to bf16.

    Math: ``out[t] = bf16(((r0 + r1) + r2) + ...)``, ``rj = route_output[t * top_k + j]``.

    Layouts: ``route_output`` bf16 ``(tokens * top_k, hidden)``, ``out`` bf16 ``(tokens, hidden)``, rows contiguous,
    16-byte aligned. A thread has eight columns of one token. No shared memory. sm_90a and sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        Block size; any number of threads.
    hidden : int
        Columns, a multiple of 8.
    top_k : int
        Rows per token.
    """

    def __init__(self, *, launch: LaunchInfo, hidden: int, top_k: int) -> None:
        self.launch = launch
        self.hidden = hidden
        self.top_k = top_k

    @cute.jit
    def __call__(self, route_output: Int64, out: Int64, tokens: Int32, stream):
        launch_once(self.kernel(route_output, out, tokens), self.launch, stream)

    @cute.kernel
    def kernel(self, route_output: Int64, out: Int64, tokens: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        vector = Int64(block) * self.launch.block[0] + Int64(thread)
        follow()
        vectors = self.hidden // 8
        if vector < Int64(tokens) * vectors:
            # Unsigned 32-bit division by a constant; a launch never has 2^32 vectors of 16 bytes.
            token = Int64(Uint32(vector) // Uint32(vectors))
            source = route_output + (token * ((self.top_k - 1) * vectors) + vector) * 16
            sums: list[Float32] = []
            for first in cutlass.range_constexpr(0, self.top_k, ROUTES_IN_FLIGHT):
                last = min(first + ROUTES_IN_FLIGHT, self.top_k)
                routes = [load_global_x4(source + j * (self.hidden * 2)) for j in range(first, last)]
                sums = add_routes(sums, routes)
            packed = [pack_bf16(sums[2 * i], sums[2 * i + 1]) for i in range(4)]
            store_global_x4(out + vector * 16, packed)


def add_routes(sums, routes):
    """Add rows of eight bf16 to eight f32 sums, in order; the first row of all is taken as it is."""
    for words in routes:
        values = unpack(words)
        sums = values if not sums else [a + b for a, b in zip(sums, values, strict=True)]
    return sums


def unpack(words):
    """Return the eight bf16 of four words as f32, lowest half first."""
    halves = []
    for word in words:
        halves += [float_of_bits(word << 16), float_of_bits(word & Uint32(0xFFFF0000))]
    return halves
