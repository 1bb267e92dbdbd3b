"""A fresh process on its way to its first launch: python tools/launch_bench/starts.py ROAD ..., called by bench_launch.

Prints, as seconds of the machine's monotonic clock, when torch and cuda.core were imported, a context was there and the
tensors were made, and when everything was done. The caller sees to it that no module is compiled from its text in the
measured time.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def start_planfreeze(tensors: tuple[Any, ...], store: str, plan: str) -> None:
    """Freeze a plan and launch its first program."""
    import planfreeze
    from launch_bench.sums import BLOCK, SUM_SIZES, LaunchSumPayload

    session = planfreeze.session(plan, store=store, is_trusted=True).freeze()
    session.program(LaunchSumPayload(arguments=SUM_SIZES[0])).launch(*tensors, BLOCK)


def freeze_only(tensors: tuple[Any, ...], store: str, plan: str) -> None:
    """Freeze a plan."""
    import planfreeze

    planfreeze.session(plan, store=store, is_trusted=True).freeze()


def start_triton(tensors: tuple[Any, ...], programs: str) -> None:
    """Launch as many different programs through Triton."""
    from launch_bench.sums_triton import sum_5

    for offset in range(int(programs)):
        sum_5[(1,)](*tensors, 128, offset=offset, block=128)


ROADS = {"planfreeze": start_planfreeze, "freeze": freeze_only, "triton": start_triton}


def main() -> None:
    """Take the road that was asked for."""
    import cuda.core
    import torch

    assert cuda.core
    tensors = tuple(torch.ones(128, device="cuda") for _ in range(4))
    torch.cuda.synchronize()
    ready = time.monotonic()
    ROADS[sys.argv[1]](tensors, *sys.argv[2:])
    torch.cuda.synchronize()
    json.dump({"ready_s": ready, "done_s": time.monotonic()}, sys.stdout)


if __name__ == "__main__":
    main()
