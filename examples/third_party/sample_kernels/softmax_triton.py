"""Softmax over rows, each in one block."""

import triton
import triton.language as tl

from sample_kernels import reductions
from sample_kernels.reductions import exponential

PADDING = tl.constexpr(float("-inf"))


@triton.jit
def softmax_kernel(out, x, out_stride, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + at, mask=at < columns, other=PADDING)
    powers = exponential(values - reductions.row_maximum(values))
    tl.store(out + row * out_stride + at, powers / tl.sum(powers, axis=0), mask=at < columns)
