"""Progress of both projections, by which the second starts with an m tile before all others are done.

It stands behind the number of live m tiles, in ``tile_count`` i32 ``(3 + m_tiles,)``. Tasks of the first projection
that are done in all, and of every m tile: routing sets these counters to ``COUNTER_START``, and a task of the first
projection adds one to both of its own once its rows are written. A counter that nobody set, such as zero, keeps nobody
waiting. Between them stands how many tasks of the second projection blocks have taken beyond their first, zero before
and after a launch: a block that starts sooner, because the first projection was done sooner with its SM, takes more.

Source: PTX ISA, memory consistency model; "red", "ld.acquire", "fence".
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Int32, Int64, Uint32, cute
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.moe.routing import COUNTER_START, COUNTS

__all__ = ["DONE", "await_rows", "count_done", "counter_of"]

DONE, TAKEN, FIRST_TILE = 4, 8, 4 * COUNTS
"""Places of the counters, in bytes."""


@dsl_user_op
def add_both(first, second, *, loc=None, ip=None):
    """Add one to two counters, after what this thread wrote and what others wrote before a barrier with it."""
    text = "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [$0], 1;\nred.relaxed.gpu.global.add.u32 [$1], 1;"
    ptx.emit([], [first, second], text, "l,l,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def load_acquire(address, *, loc=None, ip=None):
    """Load a counter; what was written before it was counted up is visible to this thread afterwards."""
    (word,) = ptx.emit([T.i32()], [address], "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def count_round(address, last, *, loc=None, ip=None):
    """Add one to a counter that goes on with zero after ``last``; return what it was."""
    text = "atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;"
    (word,) = ptx.emit([T.i32()], [address, last], text, "=r,l,r,~{memory}", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def wait_for_count(address, count, *, loc=None, ip=None):
    """Wait until a counter has counted so far."""
    text = (
        "{\n.reg .pred open;\n.reg .b32 counted;\n"
        "again_${:uid}:\n"
        "ld.acquire.gpu.global.u32 counted, [$0];\n"
        f"sub.u32 counted, counted, {COUNTER_START};\n"
        "setp.lt.u32 open, counted, $1;\n"
        "@open bra again_${:uid};\n}"
    )
    ptx.emit([], [address, count], text, "l,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def fence_async_global(*, loc=None, ip=None):
    """Let bulk copies of this thread read what it may read."""
    ptx.emit([], [], "fence.proxy.async.global;", "~{memory}", loc=loc, ip=ip)


def counter_of(tile_count, m_tile):
    """Return the address of the counter of an m tile, Int64."""
    return tile_count + FIRST_TILE + Int64(m_tile) * 4


def count_done(tile_count, m_tile):
    """Count a task of an m tile as done; one thread, after a barrier with all that wrote its rows."""
    add_both(counter_of(tile_count, m_tile), tile_count + DONE)


@cute.jit
def await_rows(tile_count: Int64, m_tile: Int32, tiles: Constexpr, m_tiles: Int32):
    """Wait for the ``tiles`` tasks of an m tile; return whether others of the ``m_tiles`` may be left, Int32.

    Whoever was told that none is need not ask again.
    """
    is_open = Int32(load_acquire(tile_count + DONE) - Uint32(COUNTER_START) < Uint32(m_tiles * tiles))
    if is_open != 0:
        wait_for_count(counter_of(tile_count, m_tile), Uint32(tiles))
    fence_async_global()
    return is_open


@cute.jit
def take_task(tile_count: Int64, tasks: Int32, lane: Int32):
    """Take one of the tasks that follow every block's first; return its number among them, Int32, in lane 0.

    Of the blocks that have a first task each takes until it gets one that is not there. These are as many times as
    there are tasks, after which the counter is where it began.
    """
    taken = Int32(0)
    if lane == 0:
        taken = Int32(count_round(tile_count + TAKEN, Uint32(tasks - 1)))
    return taken
