"""What the memory gives to a kernel that does nothing but read, over random bytes."""

import statistics

import torch
from moe_bench.inputs import DEVICE
from moe_bench.kernels import read_words
from moe_bench.timing import LEAD_CYCLES

SIZES_GIB = (1, 4)
BLOCK = 4096
BLOCKS_PER_SM = (4, 8, 16)
WARPS = 8
REPEATS = 9
MAGIC = 0x12345678


def read_ceiling() -> dict[str, float]:
    """Return TB/s by size: the best of a few grids, each the median of nine reads."""
    multiprocessors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    found = {}
    words = torch.empty(SIZES_GIB[-1] << 28, dtype=torch.int32, device=DEVICE).random_(-(2**31), 2**31 - 1)
    target = torch.empty(multiprocessors * BLOCKS_PER_SM[-1], dtype=torch.int32, device=DEVICE)
    for size in SIZES_GIB:
        rates = []
        for blocks in BLOCKS_PER_SM:
            grid = multiprocessors * blocks
            count = (size << 28) // (grid * BLOCK) * (grid * BLOCK)
            times = [time_read(words, target, count, grid) for _ in range(REPEATS)]
            rates.append(4 * count / statistics.median(times) / 1e9)
        found[f"{size} GiB"] = max(rates)
    return found


def time_read(words: torch.Tensor, target: torch.Tensor, count: int, grid: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LEAD_CYCLES)
    start.record()
    read_words[(grid,)](words, target, count, BLOCK, MAGIC, num_warps=WARPS)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
