"""Multiply matrices with the CuTe DSL: one output per thread, tiles of the operands in shared memory.

The tile is chosen by the shape, so that a run compiles a variant per class of shapes. Record, build and run it as
``cute_elementwise.py`` says.
"""

import sys

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack


class Gemm:
    """Compute C = A B for row-major A (m, k), B (k, n), C (m, n) by square tiles; k is a multiple of the tile."""

    def __init__(self, tile: int):
        self.tile = tile

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        """Launch a block of ``tile`` by ``tile`` threads for every tile of C."""
        rows, columns = cute.size(c, mode=[0]), cute.size(c, mode=[1])
        grid = (cute.ceil_div(columns, self.tile), cute.ceil_div(rows, self.tile), 1)
        self.kernel(a, b, c).launch(grid=grid, block=(self.tile, self.tile, 1))

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        """Accumulate in float32 over the tiles along k."""
        tile = self.tile
        column_in_tile, row_in_tile, _ = cute.arch.thread_idx()
        tile_column, tile_row, _ = cute.arch.block_idx()
        row, column = tile_row * tile + row_in_tile, tile_column * tile + column_in_tile
        memory = cutlass.utils.SmemAllocator()
        layout = cute.make_layout((tile, tile), stride=(tile, 1))
        left = memory.allocate_tensor(cutlass.Float32, layout, 16)
        right = memory.allocate_tensor(cutlass.Float32, layout, 16)
        total = cutlass.Float32(0)
        for step in cutlass.range(cute.size(a, mode=[1]) // tile):
            left[row_in_tile, column_in_tile] = cutlass.Float32(0)
            right[row_in_tile, column_in_tile] = cutlass.Float32(0)
            if row < cute.size(c, mode=[0]):
                left[row_in_tile, column_in_tile] = a[row, step * tile + column_in_tile].to(cutlass.Float32)
            if column < cute.size(c, mode=[1]):
                right[row_in_tile, column_in_tile] = b[step * tile + row_in_tile, column].to(cutlass.Float32)
            cute.arch.sync_threads()
            for inner in cutlass.range_constexpr(tile):
                total += left[row_in_tile, inner] * right[inner, column_in_tile]
            cute.arch.sync_threads()
        if row < cute.size(c, mode=[0]) and column < cute.size(c, mode=[1]):
            c[row, column] = total.to(c.element_type)


def run(a, b, c):
    """Compute ``c = a b`` over matrices that speak DLPack; small ones take small tiles."""
    Gemm(16 if min(a.shape) >= 64 else 8)(*(from_dlpack(matrix).mark_layout_dynamic() for matrix in (a, b, c)))


def main():
    """Run on the device and check the results."""
    import torch

    for rows, columns, depth in ((200, 130, 64), (33, 40, 16)):
        a, b = torch.randn(rows, depth, device="cuda"), torch.randn(depth, columns, device="cuda")
        c = torch.empty(rows, columns, device="cuda")
        run(a, b, c)
        torch.testing.assert_close(c, a @ b, rtol=1e-3, atol=1e-3)
    sys.stdout.write("gemm: as expected\n")


if __name__ == "__main__":
    main()
