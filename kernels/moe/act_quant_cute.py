"""Kernel of family ``act_quant``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import select, store_global_byte, store_global_x1, store_global_x2
from planfreeze.kernels.mma.mxfp8 import NOT_FINITE, block_amax, block_scale, low_high, round_e4m3, scale_factor
from planfreeze.kernels.mma.ptx import load_global_x4

__all__ = ["ActQuant"]


class ActQuant:
    """Quantise bf16 rows to E4M3 with one power-of-two scale per 32 values.

    Math: that of :mod:`planfreeze.kernels.mma.mxfp8`.

    Layouts: ``x`` bf16 ``(tokens, hidden)``, ``a8`` ``(tokens, hidden)`` bytes, ``a_scale`` ``(tokens, hidden / 32)``
    bytes, or f32 ``byte << 23``; rows contiguous, all 16-byte aligned. In paired order each group of 32 holds, at 4c+i
    and 16+4c+i, its elements 8c+2i and 8c+2i+1; otherwise K order.

    Tiles: a thread has eight values (one 16-byte load), four neighbouring lanes a group. ``hidden`` is a multiple
    of 256, so a warp is live or idle as a whole. No shared memory. sm_90a and sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        Block size; any multiple of 32 threads.
    hidden : int
        Elements of a token.
    is_paired : bool
        Store the payload in paired order.
    is_float_scale : bool
        Store scales as f32.
    """

    def __init__(self, *, launch: LaunchInfo, hidden: int, is_paired: bool, is_float_scale: bool) -> None:
        self.launch = launch
        self.hidden = hidden
        self.is_paired = is_paired
        self.is_float_scale = is_float_scale

    @cute.jit
    def __call__(self, x: Int64, a8: Int64, a_scale: Int64, tokens: Int32, stream):
        launch_once(self.kernel(x, a8, a_scale, tokens), self.launch, stream)

    @cute.kernel
    def kernel(self, x: Int64, a8: Int64, a_scale: Int64, tokens: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        vector = Int64(block) * self.launch.block[0] + Int64(thread)
        follow()
        if vector < Int64(tokens) * (self.hidden // 8):
            words = load_global_x4(x + vector * 16)
            byte, is_finite = block_scale(block_amax(words, lanes=4))
            low, high = low_high(words, scale_factor(byte))
            if cutlass.const_expr(self.is_paired):
                first = round_e4m3(low[0], low[1], low[2], low[3])
                second = round_e4m3(high[0], high[1], high[2], high[3])
            else:
                first = round_e4m3(low[0], high[0], low[1], high[1])
                second = round_e4m3(low[2], high[2], low[3], high[3])
            first = select(is_finite, first, Uint32(NOT_FINITE))
            second = select(is_finite, second, Uint32(NOT_FINITE))
            lane = vector & 3
            if cutlass.const_expr(self.is_paired):
                target = a8 + (vector - lane) * 8 + lane * 4
                store_global_x1(target, first)
                store_global_x1(target + 16, second)
            else:
                store_global_x2(a8 + vector * 8, (first, second))
            if lane == 0:
                if cutlass.const_expr(self.is_float_scale):
                    # Four bytes per group of four vectors: the vector number is the byte offset.
                    store_global_x1(a_scale + vector, byte << 23)
                else:
                    store_global_byte(a_scale + (vector >> 2), byte)
