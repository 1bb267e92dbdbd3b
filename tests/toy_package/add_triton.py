import triton
import triton.language as tl

from .shared import AMOUNT

STEP = tl.constexpr(AMOUNT)


@triton.jit
def add_kernel(source, out, count, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + offsets, tl.load(source + offsets, mask=offsets < count) + STEP, mask=offsets < count)
