"""Launches kernels: plain, with a helper as a constant, tuned, under heuristics."""

import os

import scaling
import triton
import triton.language as tl
from device import Pointer, report


@triton.jit
def fill(x, n, scale, BLOCK: tl.constexpr, CHANGE: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, CHANGE(offsets).to(tl.float32) * scale, mask=offsets < n)


CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((32, 1), (64, 2), (128, 4))]


@triton.autotune(CONFIGS, key=["n"])
@triton.heuristics({"IS_EVEN": lambda arguments: arguments["n"] % 2 == 0})
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr, IS_EVEN: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, offsets.to(tl.float32), mask=offsets < n)


def main():
    x = Pointer()
    count = int(os.environ.get("COUNT", "37"))
    warps = int(os.environ.get("WARPS", "4"))
    for _ in range(5):
        fill[(1,)](x, count, 0.5, BLOCK=64, CHANGE=scaling.double, num_warps=warps)
    fill[(1,)](x, 16, 0.5, BLOCK=64, CHANGE=scaling.double)
    for n in (100, 100, 101):
        tuned[(1,)](x, n)


if __name__ == "__main__":
    if os.environ.get("FORBID"):
        import device

        device.forbid_lowering()
    main()
    report()
