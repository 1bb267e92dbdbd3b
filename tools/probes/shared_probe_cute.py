"""Kernel of family ``shared_probe``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import launch_once
from planfreeze.kernels.mma.memory import barrier, store_global_x4
from planfreeze.kernels.mma.ptx import float_of_bits, load_global_x4, load_shared_x4, store_shared_f32x4

__all__ = ["SharedProbe"]


class SharedProbe:
    """Each of 32 threads passes four f32 to the thread opposite through the last 512 bytes of shared memory.

    Parameters
    ----------
    launch : LaunchInfo
        32 threads, and the shared memory.
    """

    def __init__(self, *, launch: LaunchInfo) -> None:
        self.launch = launch

    def __repr__(self) -> str:
        return "SharedProbe"

    @cute.jit
    def __call__(self, source: Int64, out: Int64, stream):
        launch_once(self.kernel(source, out), self.launch, stream)

    @cute.kernel
    def kernel(self, source: Int64, out: Int64):
        thread, _, _ = cute.arch.thread_idx()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        end = shared + self.launch.shared_bytes
        words = load_global_x4(source + Int64(thread) * 16)
        store_shared_f32x4(end - 16 * (thread + 1), [float_of_bits(word) for word in words])
        barrier()
        store_global_x4(out + Int64(thread) * 16, load_shared_x4(end - 512 + 16 * thread))
