"""Occupancy: how many blocks of a program an SM has room for, by arithmetic alone."""

from planfreeze.target import Target

__all__ = ["count_blocks", "count_register_warps"]

# Source: CUDA occupancy calculator, which is the same for compute capabilities 9.0 and 12.0.
WARP = 32
REGISTER_UNIT = 8
"""Registers of a thread are given out in eights: 256 of a warp."""
WARP_UNIT = 4
"""An SM has four sub-partitions with a quarter of its registers each."""
SHARED_UNIT_BYTES = 128


def count_blocks(*, registers: int, shared_bytes: int, threads: int, target: Target) -> int:
    """Return how many blocks of a program an SM keeps resident at most.

    Parameters
    ----------
    registers : int
        Registers of one thread.
    shared_bytes : int
        Shared memory of one block, dynamic and static, with what the system reserves of it.
    threads : int
        Threads of one block, at least one.

    Notes
    -----
    What the driver's occupancy query answers where the SM's memory is set up as shared memory as far as it goes.
    Clusters can leave room unused, when an SM group has too few SMs for one more.
    """
    warps = round_up(threads, WARP) // WARP
    shared_bytes = max(target.reserved_shared_bytes, round_up(shared_bytes, SHARED_UNIT_BYTES))
    return min(
        target.max_blocks,
        target.max_warps // warps,
        count_register_warps(registers, target) // warps,
        target.sm_shared_bytes // shared_bytes,
    )


def count_register_warps(registers: int, target: Target) -> int:
    """Return how many warps the registers of an SM are enough for, whatever else limits them."""
    warps = target.max_registers // (WARP * max(REGISTER_UNIT, round_up(registers, REGISTER_UNIT)))
    return warps // WARP_UNIT * WARP_UNIT


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
