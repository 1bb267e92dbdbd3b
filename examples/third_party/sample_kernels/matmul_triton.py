"""Matrix product with an activation, tuned by Triton's autotuner where it is launched by Triton."""

import triton
import triton.language as tl

CONFIGURATIONS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=8, num_stages=3),
]


@triton.autotune(configs=CONFIGURATIONS, key=["m", "n", "k"])
@triton.jit(do_not_specialize=["m"])
def matmul_kernel(
    a,
    b,
    c,
    m,
    n,
    k,
    a_stride,
    b_stride,
    c_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        left = tl.load(
            a + rows[:, None] * a_stride + inner[None, :],
            mask=(rows[:, None] < m) & (inner[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + inner[:, None] * b_stride + columns[None, :],
            mask=(inner[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    result = ACTIVATION(total).to(tl.float16)
    tl.store(
        c + rows[:, None] * c_stride + columns[None, :],
        result,
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )
