"""Kernel of family ``route_plan``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import launch_once, start_next, wait_for_previous
from planfreeze.kernels.mma.memory import barrier, select, store_global_x1, store_global_x4
from planfreeze.kernels.mma.mxfp8 import exchange
from planfreeze.kernels.mma.ptx import load_global_i32, load_global_i64, load_shared, load_shared_x4
from planfreeze.kernels.mma.words import (
    add_bytes,
    ballot,
    count_bits,
    count_shared,
    match_lanes,
    store_shared,
    store_shared_byte,
    store_shared_x4,
)
from planfreeze.kernels.moe.geometry import ceil_div
from planfreeze.kernels.moe.progress_cute import DONE, TAKEN, counter_of
from planfreeze.kernels.moe.routing import COUNTER_START

__all__ = ["RoutePlan"]

THREADS = 1024
WARPS = THREADS // 32
IDS_IN_FLIGHT = 8
"""Ids a thread loads before it counts the first: enough to cover the latency of the L2 cache."""
NO_PAIR = 0xFFFFFFFF
"""-1 in ``token_map``."""


class RoutePlan:
    """Group routes by expert, in pair order, into tiles of ``tile_m`` rows.

    Math: with ``count[e]`` the pairs whose id is e and ``first_tile[e]`` the sum of ``ceil(count / tile_m)`` over the
    experts before e, the i-th pair of e gets row ``tile_m * first_tile[e] + i``.

    Arguments: ``topk_ids`` and ``topk_weights`` f32 ``(pairs,)``, aligned to their own size; out: ``token_map`` i32
    and ``row_weight`` f32 ``(rows,)``: pair and weight of a row, -1 and 0 in the rows of a live tile that have no
    pair; ``tile_expert`` and ``tile_valid`` i32 ``(m_tiles,)``; ``tile_count`` i32 ``(3 + m_tiles,)``: live tiles,
    and the counters of :mod:`planfreeze.kernels.moe.progress_cute` at their start;
    ``route_output`` bf16 ``(pairs, hidden)``, 16-byte aligned, ``hidden`` a multiple of 8: zeros in the rows of pairs
    with an id outside 0..experts-1, others are left alone. Then ``pairs``, ``hidden``, and ``rows`` and ``m_tiles``,
    which size the buffers and are not read. What lies beyond the live tiles is not written.

    Tiles: 1024 threads. Blocks share the pairs out in adjacent chunks and exchange nothing: each counts the ids of
    the whole call, those before its chunk apart, so that it knows where its own pairs belong. Inside a chunk, lanes
    with one id are told apart by a warp match, warps by a byte for every warp and expert. Shared memory: three words
    and 32 bytes per expert, 45,360 bytes for 1024. sm_90a and sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        1024 threads.
    experts : int
        Number of experts, 1 to 1024.
    tile_m : int
        Rows of a tile, a power of two.
    id_bits : int
        32 or 64: width of the expert ids.
    """

    def __init__(self, *, launch: LaunchInfo, experts: int, tile_m: int, id_bits: int) -> None:
        assert launch.block == (THREADS, 1, 1) and 1 <= experts <= THREADS and id_bits in (32, 64)
        self.launch = launch
        self.experts = experts
        self.tile_m = tile_m
        self.id_bits = id_bits
        # One bin for every expert, and one for invalid ids. Offsets in shared memory:
        self.bins = 4 * ceil_div(experts + 1, 4)
        self.totals = 4 * self.bins
        self.first_tiles = 2 * self.totals
        self.warp_sums = 3 * self.totals
        self.warp_counts = self.warp_sums + 4 * WARPS
        assert launch.shared_bytes >= self.warp_counts + WARPS * self.bins

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "RoutePlan"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(*parameters), self.launch, stream)

    @cute.kernel
    def kernel(
        self,
        topk_ids: Int64,
        topk_weights: Int64,
        token_map: Int64,
        row_weight: Int64,
        tile_expert: Int64,
        tile_valid: Int64,
        tile_count: Int64,
        route_output: Int64,
        pairs: Int32,
        hidden: Int32,
        rows: Int32,
        m_tiles: Int32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        chunk = Int32((Uint32(pairs) + Uint32(blocks) - 1) // Uint32(blocks))
        start = block * chunk
        end = smaller(start + chunk, pairs)

        start_next()
        self.clear(shared, thread)
        barrier()
        self.count(shared, topk_ids, pairs, start, thread)
        barrier()
        tiles = self.sum_tiles(shared, thread)
        barrier()
        if block + thread == 0:
            store_global_x1(tile_count, tiles)
            store_global_x1(tile_count + DONE, Uint32(COUNTER_START))
            store_global_x1(tile_count + TAKEN, Uint32(0))
        for first in cutlass.range(start, end, THREADS, unroll=1):
            self.place(shared, topk_ids, topk_weights, token_map, row_weight, route_output, first, end, hidden, thread)
            if first + THREADS < end:
                barrier()
                self.advance(shared, thread)
                barrier()
        warp = thread >> 5
        for expert in cutlass.range(block * WARPS + warp, self.experts, blocks * WARPS, unroll=1):
            tables = (token_map, row_weight, tile_expert, tile_valid, tile_count)
            self.describe_tiles(shared, tables, expert, thread & 31)
        # Routes do not come from the launch before this one, but who waits for this one relies on that one, too.
        wait_for_previous()

    @cute.jit
    def clear(self, shared, thread):
        """Set all counters to zero: those of ids, and those of warps."""
        zero = Uint32(0)
        for i in cutlass.range(thread, 2 * self.bins // 4, THREADS, unroll=1):
            store_shared_x4(shared + i * 16, (zero, zero, zero, zero))
        for i in cutlass.range(thread, WARPS * self.bins // 16, THREADS, unroll=1):
            store_shared_x4(shared + self.warp_counts + i * 16, (zero, zero, zero, zero))

    @cute.jit
    def count(self, shared, topk_ids, pairs, start, thread):
        """Count the ids of the call: those of pairs before ``start`` in the first counters, others in the second."""
        for first in cutlass.range(thread, pairs, THREADS * IDS_IN_FLIGHT, unroll=1):
            indices = [first + i * THREADS for i in range(IDS_IN_FLIGHT)]
            bins = [self.load_bin(topk_ids, smaller(index, pairs - 1)) for index in indices]
            for i in cutlass.range_constexpr(IDS_IN_FLIGHT):
                counter = shared + bins[i] * 4 + Int32(select(indices[i] < start, Uint32(0), Uint32(self.totals)))
                count_shared(counter, indices[i] < pairs)

    def load_bin(self, topk_ids, pair):
        """Load an id; return its bin, Int32: the expert, or ``experts`` where there is none."""
        if self.id_bits == 32:
            expert = load_global_i32(topk_ids + Int64(pair) * 4)
        else:
            expert = load_global_i64(topk_ids + Int64(pair) * 8)
        is_valid = (expert >= 0) & (expert < self.experts)
        return Int32(select(is_valid, Uint32(expert), Uint32(self.experts)))

    @cute.jit
    def sum_tiles(self, shared, thread):
        """Add up the tiles of all experts; leave totals and first tiles in shared memory, return the number of tiles.

        Thread e has expert e. What is beyond the last expert is never asked for.
        """
        lane = thread & 31
        warp = thread >> 5
        tiles = Uint32(0)
        if thread < self.experts:
            total = load_shared(shared + thread * 4) + load_shared(shared + self.totals + thread * 4)
            store_shared(shared + self.totals + thread * 4, total)
            tiles = tiles_of(total, self.tile_m)
        before = Uint32(0)
        warp_sum = tiles
        for i in cutlass.range_constexpr(5):
            other = exchange(warp_sum, 1 << i)
            before = before + select((lane >> i) & 1, other, Uint32(0))
            warp_sum = warp_sum + other
        if lane == 0:
            store_shared(shared + self.warp_sums + warp * 4, warp_sum)
        barrier()
        of_warp = load_shared(shared + self.warp_sums + lane * 4)
        before = before + sum_lanes(select(lane < warp, of_warp, Uint32(0)))
        if thread < self.experts:
            store_shared(shared + self.first_tiles + thread * 4, before)
        return sum_lanes(of_warp)

    @cute.jit
    def place(self, shared, topk_ids, topk_weights, token_map, row_weight, route_output, first, end, hidden, thread):
        """Give a row to each of up to 1024 pairs from ``first`` on, or zeros where it has no expert."""
        lane = thread & 31
        warp = thread >> 5
        pair = first + thread
        is_live = pair < end
        read_pair = smaller(pair, end - 1)
        weight = load_global_i32(topk_weights + Int64(read_pair) * 4)
        expert = self.load_bin(topk_ids, read_pair)
        # Lanes past the end take the bin of invalid ids, whose counts nobody reads.
        expert = Int32(select(is_live, Uint32(expert), Uint32(self.experts)))
        peers = match_lanes(expert)
        rank = count_bits(peers & ((Uint32(1) << Uint32(lane)) - 1))
        counts = shared + self.warp_counts + expert * WARPS
        if rank == 0:
            store_shared_byte(counts + warp, Uint32(count_bits(peers)))
        barrier()
        if expert < self.experts:
            place = load_shared(shared + expert * 4) + sum_bytes(counts, warp) + Uint32(rank)
            row = load_shared(shared + self.first_tiles + expert * 4) * self.tile_m + place
            store_global_x1(token_map + Int64(row) * 4, Uint32(pair))
            store_global_x1(row_weight + Int64(row) * 4, Uint32(weight))
        nowhere = ballot(is_live & (expert == self.experts))
        if nowhere != 0:
            clear_rows(route_output, hidden, nowhere, first + warp * 32, lane)

    @cute.jit
    def advance(self, shared, thread):
        """Count the pairs just placed as placed, for the next ones."""
        if thread < self.experts:
            counts = shared + self.warp_counts + thread * WARPS
            placed = load_shared(shared + thread * 4) + sum_bytes(counts, Int32(WARPS))
            store_shared(shared + thread * 4, placed)
            zero = Uint32(0)
            store_shared_x4(counts, (zero, zero, zero, zero))
            store_shared_x4(counts + 16, (zero, zero, zero, zero))

    @cute.jit
    def describe_tiles(self, shared, tables, expert, lane):
        """Write expert, pairs and progress of every tile of an expert, and mark the rows of the last without a pair."""
        token_map, row_weight, tile_expert, tile_valid, tile_count = tables
        total = Int32(load_shared(shared + self.totals + expert * 4))
        tiles = Int32(tiles_of(Uint32(total), self.tile_m))
        first_tile = Int32(load_shared(shared + self.first_tiles + expert * 4))
        for tile in cutlass.range(lane, tiles, 32, unroll=1):
            place = Int64(first_tile + tile) * 4
            store_global_x1(tile_expert + place, Uint32(expert))
            store_global_x1(counter_of(tile_count, first_tile + tile), Uint32(COUNTER_START))
            store_global_x1(tile_valid + place, Uint32(smaller(total - tile * self.tile_m, Int32(self.tile_m))))
        # A last tile lacks fewer rows than a warp has lanes.
        if total + lane < tiles * self.tile_m:
            row = Int64(first_tile * self.tile_m + total + lane)
            store_global_x1(token_map + row * 4, Uint32(NO_PAIR))
            store_global_x1(row_weight + row * 4, Uint32(0))


def smaller(a, b):
    """Return the smaller of two Int32."""
    return Int32(select(a < b, Uint32(a), Uint32(b)))


def tiles_of(count, tile_m):
    """Return the tiles that ``count`` rows take."""
    return (count + Uint32(tile_m - 1)) // Uint32(tile_m)


def sum_lanes(word):
    """Return the sum over the warp, in every lane."""
    for i in range(5):
        word = word + exchange(word, 1 << i)
    return word


def sum_bytes(address, count):
    """Return the sum of the first ``count`` (0..32) of 32 bytes in shared memory."""
    ones = Uint32(0x01010101)
    whole = count >> 2
    rest = ones & ((Uint32(1) << Uint32((count & 3) * 8)) - 1)
    total = Uint32(0)
    for i, word in enumerate((*load_shared_x4(address), *load_shared_x4(address + 16))):
        weights = select(whole > i, ones, select(whole == i, rest, Uint32(0)))
        total = add_bytes(word, weights, total)
    return total


@cute.jit
def clear_rows(route_output, hidden, lanes, first_pair, lane):
    """Write zeros to the rows of the pairs whose bit is set."""
    zero = Uint32(0)
    for i in cutlass.range(32, unroll=1):
        if ((lanes >> Uint32(i)) & 1) != 0:
            row = route_output + Int64(first_pair + i) * Int64(hidden) * 2
            for vector in cutlass.range(lane, hidden >> 3, 32, unroll=1):
                store_global_x4(row + Int64(vector) * 16, (zero, zero, zero, zero))
