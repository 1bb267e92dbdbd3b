"""Kernel of family ``act_quant``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, Uint32, cute
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.memory import (
    bits_of_float,
    select,
    store_global_byte,
    store_global_x1,
    store_global_x2,
)
from planfreeze.kernels.mma.ptx import emit, float_of_bits, load_global_x4, mul_rn

__all__ = ["ActQuant"]


class ActQuant:
    """Quantise bf16 rows to E4M3 with one power-of-two scale per 32 values.

    Math: ``byte`` = exponent field of ``amax * (1/448)`` in fp32, rounded up to a power of two; value = E4M3, nearest
    even, of ``x * 2^(127-byte)``. A block of zeros has byte 127; a block with an infinity or a NaN has byte 255 and
    payload 0x7F.

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
        self.kernel(x, a8, a_scale, tokens).launch(
            grid=[1, 1, 1],
            block=list(self.launch.block),
            smem=self.launch.shared_bytes,
            stream=stream,
            min_blocks_per_mp=self.launch.min_blocks,
            preferred_smem_carveout=self.launch.carveout_percent,
        )

    @cute.kernel
    def kernel(self, x: Int64, a8: Int64, a_scale: Int64, tokens: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        vector = Int64(block) * self.launch.block[0] + Int64(thread)
        if vector < Int64(tokens) * (self.hidden // 8):
            words = load_global_x4(x + vector * 16)
            amax = Uint32(0)
            for i in cutlass.range_constexpr(4):
                # The bits of |bf16| order like its value, NaN above infinity above every finite value.
                amax = larger(amax, words[i] & 0x7FFF)
                amax = larger(amax, (words[i] >> 16) & 0x7FFF)
            amax = larger(amax, exchange(amax, 1))
            amax = larger(amax, exchange(amax, 2))
            scaled = bits_of_float(mul_rn(float_of_bits(amax << 16), Float32(1.0 / 448.0)))
            is_finite = amax < 0x7F80
            byte = select(is_finite, (scaled + 0x7FFFFF) >> 23, Uint32(255))
            byte = select(amax != 0, byte, Uint32(127))
            factor = float_of_bits((254 - byte) << 23)
            low = [mul_rn(float_of_bits(word << 16), factor) for word in words]
            high = [mul_rn(float_of_bits(word & Uint32(0xFFFF0000)), factor) for word in words]
            if cutlass.const_expr(self.is_paired):
                first = round_e4m3(low[0], low[1], low[2], low[3])
                second = round_e4m3(high[0], high[1], high[2], high[3])
            else:
                first = round_e4m3(low[0], high[0], low[1], high[1])
                second = round_e4m3(low[2], high[2], low[3], high[3])
            first = select(is_finite, first, Uint32(0x7F7F7F7F))
            second = select(is_finite, second, Uint32(0x7F7F7F7F))
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


@dsl_user_op
def larger(a, b, *, loc=None, ip=None):
    """Return the larger of two words."""
    text = "max.u32 $0, $1, $2;"
    (word,) = emit([T.i32()], [a, b], text, "=r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def exchange(word, mask: Constexpr, *, loc=None, ip=None):
    """Return the word of the lane whose number differs in the bits of ``mask``."""
    text = f"shfl.sync.bfly.b32 $0, $1, {mask}, 31, 0xffffffff;"
    (other,) = emit([T.i32()], [word], text, "=r,r", loc=loc, ip=ip)
    return Uint32(other)


@dsl_user_op
def round_e4m3(a, b, c, d, *, loc=None, ip=None):
    """Round four f32 to nearest even E4M3, saturating, and pack them, ``a`` in the lowest byte."""
    text = (
        "{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, $2, $1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;\nmov.b32 $0, {low, high};\n}"
    )
    (word,) = emit([T.i32()], [a, b, c, d], text, "=r,f,f,f,f", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)
