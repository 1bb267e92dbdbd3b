"""Tasks of the projections: how blocks share them; of the direct-route kernels also their pair, tile and expert."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from cutlass import Int32, Int64, Uint32

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import select

__all__ = ["load_id", "pair_of", "share_tasks", "split_task"]


def share_tasks(tasks, block, blocks):
    """Share tasks out evenly: return a block's first one, the distance to its next one, and their number, all Int32.

    No more blocks take part than finish in as many rounds. Were all of them used, the last round would have tasks for
    some alone, and too few to keep the memory busy.
    """
    # Without tasks, one block has none.
    shared = select(tasks == 0, Uint32(1), Uint32(tasks))
    rounds = (shared + Uint32(blocks) - 1) // Uint32(blocks)
    sharers = (shared + rounds - 1) // rounds
    first = select(Uint32(block) < sharers, Uint32(block), Uint32(tasks))
    return Int32(first), Int32(sharers), tasks


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
