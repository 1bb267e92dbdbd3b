"""Tasks of the direct-route kernels: one pair and one tile each, pair-major; and the expert of a pair."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from cutlass import Int32, Int64, Uint32

from planfreeze.kernels.mma import ptx

__all__ = ["load_id", "pair_of", "split_task"]


def pair_of(task, tiles):
    """Return the pair of a task, Uint32, where a pair has ``tiles`` tasks."""
    return Uint32(task) // Uint32(tiles)


def split_task(task, tiles):
    """Return the pair of a task, Uint32, and its tile, Int32."""
    pair = pair_of(task, tiles)
    return pair, Int32(Uint32(task) - pair * Uint32(tiles))


def load_id(topk_ids, pair, id_bits):
    """Load the expert id of a pair, Int32 or Int64 as ``id_bits`` says."""
    address = topk_ids + Int64(pair) * (id_bits // 8)
    return ptx.load_global_i32(address) if id_bits == 32 else ptx.load_global_i64(address)
