"""The kernels of ``launch_sum`` in the CuTe DSL, taking tensors, for the launch through TVM-FFI."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Int32, cute

__all__ = ["Sum5", "Sum19"]

BLOCK = 128


class Sum5:
    """Add three tensors. One block of 128 threads, a thread an element."""

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor, count: Int32, stream):
        self.kernel(a, b, c, out, count).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor, count: Int32):
        thread, _, _ = cute.arch.thread_idx()
        if thread < count:
            out[thread] = a[thread] + b[thread] + c[thread]


class Sum19:
    """Add seventeen tensors. One block of 128 threads, a thread an element."""

    @cute.jit
    def __call__(
        self,
        source_0: cute.Tensor,
        source_1: cute.Tensor,
        source_2: cute.Tensor,
        source_3: cute.Tensor,
        source_4: cute.Tensor,
        source_5: cute.Tensor,
        source_6: cute.Tensor,
        source_7: cute.Tensor,
        source_8: cute.Tensor,
        source_9: cute.Tensor,
        source_10: cute.Tensor,
        source_11: cute.Tensor,
        source_12: cute.Tensor,
        source_13: cute.Tensor,
        source_14: cute.Tensor,
        source_15: cute.Tensor,
        source_16: cute.Tensor,
        out: cute.Tensor,
        count: Int32,
        stream,
    ):
        self.kernel(
            source_0,
            source_1,
            source_2,
            source_3,
            source_4,
            source_5,
            source_6,
            source_7,
            source_8,
            source_9,
            source_10,
            source_11,
            source_12,
            source_13,
            source_14,
            source_15,
            source_16,
            out,
            count,
        ).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1], stream=stream)

    @cute.kernel
    def kernel(
        self,
        source_0: cute.Tensor,
        source_1: cute.Tensor,
        source_2: cute.Tensor,
        source_3: cute.Tensor,
        source_4: cute.Tensor,
        source_5: cute.Tensor,
        source_6: cute.Tensor,
        source_7: cute.Tensor,
        source_8: cute.Tensor,
        source_9: cute.Tensor,
        source_10: cute.Tensor,
        source_11: cute.Tensor,
        source_12: cute.Tensor,
        source_13: cute.Tensor,
        source_14: cute.Tensor,
        source_15: cute.Tensor,
        source_16: cute.Tensor,
        out: cute.Tensor,
        count: Int32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        if thread < count:
            total = source_0[thread]
            total += source_1[thread]
            total += source_2[thread]
            total += source_3[thread]
            total += source_4[thread]
            total += source_5[thread]
            total += source_6[thread]
            total += source_7[thread]
            total += source_8[thread]
            total += source_9[thread]
            total += source_10[thread]
            total += source_11[thread]
            total += source_12[thread]
            total += source_13[thread]
            total += source_14[thread]
            total += source_15[thread]
            total += source_16[thread]
            out[thread] = total
