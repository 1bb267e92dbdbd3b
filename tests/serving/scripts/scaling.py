"""Functions that kernels of another module call."""

import triton
import triton.language as tl

FACTOR = tl.constexpr(2)


@triton.jit
def double(x):
    return x * FACTOR
