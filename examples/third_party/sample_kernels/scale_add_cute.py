"""Elementwise ``out = x * factor + y`` in CuTe."""

import cutlass
from cutlass import Float32, Int32, Int64, cute

THREADS = 128


@cute.kernel
def scale_add_kernel(out: Int64, x: Int64, y: Int64, count: Int32, factor: Float32, per_thread: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    first = (block * THREADS + thread) * per_thread
    layout = cute.make_layout(count)
    xs = cute.make_tensor(cute.make_ptr(Float32, x, cute.AddressSpace.gmem, assumed_align=4), layout)
    ys = cute.make_tensor(cute.make_ptr(Float32, y, cute.AddressSpace.gmem, assumed_align=4), layout)
    outs = cute.make_tensor(cute.make_ptr(Float32, out, cute.AddressSpace.gmem, assumed_align=4), layout)
    for step in cutlass.range_constexpr(per_thread):
        at = first + step
        if at < count:
            outs[at] = xs[at] * factor + ys[at]


@cute.jit
def scale_add(out: Int64, x: Int64, y: Int64, count: Int32, factor: Float32, per_thread: cutlass.Constexpr, stream):
    blocks = cute.ceil_div(count, THREADS * per_thread)
    kernel = scale_add_kernel(out, x, y, count, factor, per_thread)
    kernel.launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)
