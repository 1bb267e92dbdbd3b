"""MXFP8 quantisation of bf16 values: E4M3 with one power-of-two scale per 32 values.

``byte`` = exponent field of ``amax * (1/448)`` in fp32, rounded up to a power of two; value = E4M3, nearest even, of
``x * 2^(127-byte)``. A block of zeros has byte 127; a block with an infinity or a NaN has byte 255 and payload 0x7F.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Float32, Uint32
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma.memory import bits_of_float, select
from planfreeze.kernels.mma.ptx import emit, float_of_bits, mul_rn

__all__ = ["NOT_FINITE", "block_amax", "block_scale", "low_high", "round_e4m3", "scale_factor"]

NOT_FINITE = 0x7F7F7F7F
"""Payload of a block that holds an infinity or a NaN."""


def block_amax(words, lanes):
    """Return the bits of the largest magnitude in the packed bf16 of ``lanes`` neighbouring lanes, a power of two."""
    amax = Uint32(0)
    for word in words:
        # The bits of |bf16| order like its value, NaN above infinity above every finite value.
        amax = larger(amax, word & 0x7FFF)
        amax = larger(amax, (word >> 16) & 0x7FFF)
    mask = 1
    while mask < lanes:
        amax = larger(amax, exchange(amax, mask))
        mask *= 2
    return amax


def block_scale(amax):
    """Return the scale byte of a block, and whether all of it is finite."""
    scaled = bits_of_float(mul_rn(float_of_bits(amax << 16), Float32(1.0 / 448.0)))
    is_finite = amax < 0x7F80
    byte = select(is_finite, (scaled + 0x7FFFFF) >> 23, Uint32(255))
    return select(amax != 0, byte, Uint32(127)), is_finite


def scale_factor(byte):
    """Return 2^(127-byte)."""
    return float_of_bits((254 - byte) << 23)


def low_high(words, factor):
    """Scale packed bf16; return the low halves and the high halves as lists of f32."""
    low = [mul_rn(float_of_bits(word << 16), factor) for word in words]
    high = [mul_rn(float_of_bits(word & Uint32(0xFFFF0000)), factor) for word in words]
    return low, high


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
