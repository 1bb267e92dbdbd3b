"""Three Triton kernels: row softmax, a tuned matrix product, layer normalisation. They need no torch to be compiled."""

import triton
import triton.language as tl

__all__ = ["layer_norm_kernel", "matmul_kernel", "softmax_kernel"]

TILINGS = [
    triton.Config({"ROWS": rows, "COLUMNS": columns, "DEPTH": depth}, num_warps=warps, num_stages=stages)
    for rows, columns, depth, warps, stages in ((64, 64, 32, 4, 3), (128, 64, 32, 4, 4), (128, 128, 64, 8, 3))
]


@triton.jit
def softmax_kernel(out, x, row_stride, columns, BLOCK: tl.constexpr):
    """Give each row of ``x`` its softmax; one program a row, BLOCK >= columns."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    is_inside = places < columns
    values = tl.load(x + row * row_stride + places, mask=is_inside, other=float("-inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    shares = powers / tl.sum(powers, axis=0)
    tl.store(out + row * row_stride + places, shares.to(out.dtype.element_ty), mask=is_inside)


@triton.autotune(TILINGS, key=["m", "n", "k"])
@triton.heuristics({"IS_EVEN": lambda arguments: arguments["k"] % arguments["DEPTH"] == 0})
@triton.jit
def matmul_kernel(
    out,
    left,
    right,
    m,
    n,
    k,
    left_stride,
    right_stride,
    out_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    IS_EVEN: tl.constexpr,
):
    """Multiply row-major matrices, [m, k] by [k, n]; one program a tile of ROWS x COLUMNS, sums in fp32."""
    tiles_down = tl.cdiv(m, ROWS)
    tile = tl.program_id(0)
    rows = (tile % tiles_down) * ROWS + tl.arange(0, ROWS)
    columns = (tile // tiles_down) * COLUMNS + tl.arange(0, COLUMNS)
    depths = tl.arange(0, DEPTH)
    # Rows and columns beyond the edge read what is there at the edge; they are not stored.
    left_at = left + (rows % m)[:, None] * left_stride + depths[None, :]
    right_at = right + depths[:, None] * right_stride + (columns % n)[None, :]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, k, DEPTH):
        if IS_EVEN:
            a, b = tl.load(left_at), tl.load(right_at)
        else:
            a = tl.load(left_at, mask=depths[None, :] < k - start, other=0.0)
            b = tl.load(right_at, mask=depths[:, None] < k - start, other=0.0)
        sums = tl.dot(a, b, sums)
        left_at += DEPTH
        right_at += DEPTH * right_stride
    is_inside = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(out + rows[:, None] * out_stride + columns[None, :], sums.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def layer_norm_kernel(out, x, weight, bias, columns, epsilon, BLOCK: tl.constexpr):
    """Give each row of ``x`` mean 0 and variance 1, scale and shift it; one program a row, in steps of BLOCK."""
    first = tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        places = start + tl.arange(0, BLOCK)
        total += tl.load(x + first + places, mask=places < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        places = start + tl.arange(0, BLOCK)
        values = tl.load(x + first + places, mask=places < columns, other=0.0).to(tl.float32)
        centred = tl.where(places < columns, values - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / columns + epsilon)
    for start in range(0, columns, BLOCK):
        places = start + tl.arange(0, BLOCK)
        is_inside = places < columns
        values = tl.load(x + first + places, mask=is_inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + places, mask=is_inside).to(tl.float32)
        shift = tl.load(bias + places, mask=is_inside).to(tl.float32)
        normal = (values - mean) * scale * factor + shift
        tl.store(out + first + places, normal.to(out.dtype.element_ty), mask=is_inside)
