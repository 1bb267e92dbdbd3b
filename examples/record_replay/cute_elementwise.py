"""Scale and add vectors with the CuTe DSL, compiled ahead by ``cute.compile`` and called at once by a jit function.

Record it where it runs, build anywhere, run it again without a compile:

    planfreeze record -o elementwise.json -- python cute_elementwise.py
    planfreeze build --plan elementwise.json --store ./store
    planfreeze run --store ./store --plan elementwise-sm_90a -- python cute_elementwise.py
"""

import sys

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def scale_kernel(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, threads: cutlass.Constexpr):
    """Multiply one element per thread."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * threads + thread
    if index < cute.size(x):
        out[index] = x[index] * factor


@cute.jit
def scale(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, threads: cutlass.Constexpr, stream: cuda.CUstream):
    """Launch a thread for every element: x and out are vectors of one length."""
    scale_kernel(x, out, factor, threads).launch(
        grid=(cute.ceil_div(cute.size(x), threads), 1, 1), block=(threads, 1, 1), stream=stream
    )


class Add:
    """Add vectors, with as many elements per thread as the instance says."""

    def __init__(self, threads: int, per_thread: int):
        self.threads, self.per_thread = threads, per_thread

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        """Launch on the default stream."""
        tile = self.threads * self.per_thread
        self.kernel(a, b, out).launch(grid=(cute.ceil_div(cute.size(a), tile), 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        """Add ``per_thread`` elements, a block's threads side by side."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        for step in cutlass.range_constexpr(self.per_thread):
            index = (block * self.per_thread + step) * self.threads + thread
            if index < cute.size(a):
                out[index] = a[index] + b[index]


def run(a, b, out, stream=0):
    """Compute ``out = 3 a + b`` over vectors that speak DLPack."""
    vectors = [from_dlpack(vector, assumed_align=16).mark_layout_dynamic() for vector in (a, b, out)]
    queue = cuda.CUstream(stream)
    compiled = cute.compile(scale, vectors[0], vectors[2], cutlass.Float32(1), 128, queue)
    compiled(vectors[0], vectors[2], 3.0, queue)
    Add(128, 4)(vectors[2], vectors[1], vectors[2])


def main():
    """Run on the device and check the result."""
    import torch

    a, b = (torch.randn(100_003, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    run(a, b, out, 0)
    torch.testing.assert_close(out, 3 * a + b)
    sys.stdout.write("elementwise: as expected\n")


if __name__ == "__main__":
    main()
