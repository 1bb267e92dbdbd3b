"""Matrix product in f32 by square tiles in shared memory, in CuTe. One thread per element of a tile."""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator


@cute.kernel
def gemm_kernel(a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, tile: cutlass.Constexpr):
    column, row, _ = cute.arch.thread_idx()
    block_column, block_row, _ = cute.arch.block_idx()
    left = matrix(a, m, k)
    right = matrix(b, k, n)
    result = matrix(c, m, n)
    allocator = SmemAllocator()
    layout = cute.make_layout((tile, tile), stride=(tile, 1))
    left_tile = allocator.allocate_tensor(Float32, layout, 16)
    right_tile = allocator.allocate_tensor(Float32, layout, 16)
    at_row = block_row * tile + row
    at_column = block_column * tile + column
    total = Float32(0.0)
    for first in cutlass.range(0, k, tile):
        left_tile[row, column] = Float32(0.0)
        right_tile[row, column] = Float32(0.0)
        if at_row < m and first + column < k:
            left_tile[row, column] = left[at_row, first + column]
        if first + row < k and at_column < n:
            right_tile[row, column] = right[first + row, at_column]
        cute.arch.sync_threads()
        for inner in cutlass.range_constexpr(tile):
            total += left_tile[row, inner] * right_tile[inner, column]
        cute.arch.sync_threads()
    if at_row < m and at_column < n:
        result[at_row, at_column] = total


def matrix(address, rows, columns):
    """View an address as a row-major matrix."""
    pointer = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=4)
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))


@cute.jit
def gemm(a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, tile: cutlass.Constexpr, stream):
    grid = [cute.ceil_div(n, tile), cute.ceil_div(m, tile), 1]
    gemm_kernel(a, b, c, m, n, k, tile).launch(grid=grid, block=[tile, tile, 1], stream=stream)
