"""Compile so many small programs through Triton's own API: python tools/cpu_bench/triton_warm.py COUNT.

With a warm cache that is what a fresh process pays before its first launches.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch_bench.sums_triton import sum_5
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

SIGNATURE = {"source_0": "*fp32", "source_1": "*fp32", "source_2": "*fp32", "out": "*fp32", "count": "i32"}


def main() -> None:
    """Compile, or find in the cache."""
    for offset in range(int(sys.argv[1])):
        constants = {"offset": offset, "block": 128}
        signature = SIGNATURE | dict.fromkeys(constants, "constexpr")
        compile(ASTSource(sum_5, signature, constants), target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    main()
