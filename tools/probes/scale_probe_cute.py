"""Kernels of families ``scale_words`` and ``scale_planes``: staging and write-out around the package's rebuilds."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.memory import (
    barrier,
    commit_copies,
    copy_16,
    select,
    store_global_x1,
    store_global_x4,
    wait_copies,
)
from planfreeze.kernels.mma.ptx import (
    float_of_bits,
    load_global_i32,
    load_shared_x4,
    store_shared_f32x4,
)
from planfreeze.kernels.mma.sm_90a import (
    base_choices,
    half_raw_place,
    load_raw,
    rebuild_inline,
    rebuild_native,
    selector_offset,
)
from planfreeze.kernels.mma.sm_120a import rebuild_words
from planfreeze.kernels.mma.stage_sm_90a import SCALE_PLANE_BYTES, STAGED_BLOCK_BYTES
from planfreeze.kernels.scales.geometry import (
    BASE_BLOCK_BYTES,
    TILE_BLOCK_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    ScaleGeometry,
)

__all__ = ["ScalePlanes", "ScaleWords"]

COPIERS = TILE_BLOCK_BYTES // 16


class ScaleWords:
    """Words of every tile of inline storage, rebuilt by each thread from a staged tile block.

    Layouts: ``tiles``, ``bases`` and ``raw`` are the parts of inline storage; ``words`` i32 ``(tiles_total, 128)``, in
    the row order of a staged native tile; rows and columns that a tail tile does not have are zero.

    Tiles: 128 threads, one tile at a time. Six threads copy the 96 bytes by cp.async; warp w, lane 4q+c rebuilds
    slots 32w+4q .. +3, which are rows 32w+q+8nt, and lane c = 0 stores them. 96 bytes of shared memory.

    Parameters
    ----------
    launch : LaunchInfo
        128 threads and 96 bytes of shared memory.
    columns : int
        Scales of one row.
    copy_thread : int
        First of the six copying threads.
    """

    def __init__(self, *, launch: LaunchInfo, columns: int, copy_thread: int) -> None:
        self.launch = launch
        self.copy_thread = copy_thread
        self.k_tiles = -(-columns // TILE_COLUMNS)
        self.has_column_tail = columns % TILE_COLUMNS != 0

    def __repr__(self) -> str:
        return "ScaleWords"

    @cute.jit
    def __call__(self, tiles: Int64, bases: Int64, raw: Int64, words: Int64, tiles_total: Int32, stream):
        self.kernel(tiles, bases, raw, words, tiles_total).launch(
            grid=[1, 1, 1], block=list(self.launch.block), smem=self.launch.shared_bytes, stream=stream
        )

    @cute.kernel
    def kernel(self, tiles: Int64, bases: Int64, raw: Int64, words: Int64, tiles_total: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        warp, quad = thread >> 5, (thread & 31) >> 2
        slot, row = warp * 32 + quad * 4, warp * 32 + quad
        part = thread - self.copy_thread
        is_copier = Int32(part >= 0) & Int32(part < COPIERS)
        for tile in cutlass.range(Int32(block), tiles_total, Int32(blocks), unroll=1):
            copy_16(shared + part * 16, tiles + Int64(tile) * TILE_BLOCK_BYTES + Int64(part * 16), Int32(16), is_copier)
            commit_copies()
            row_block = Int32(Uint32(tile) // Uint32(self.k_tiles))
            tile_bases = load_global_i32(bases + Int64(row_block) * BASE_BLOCK_BYTES + Int64(slot))
            wait_copies(0)
            barrier()
            rebuilt = rebuild_words(shared, Uint32(tile_bases), slot, raw)
            mask = column_mask(self, tile - row_block * self.k_tiles)
            if (thread & 3) == 0:
                target = words + (Int64(tile) * TILE_ROWS + Int64(row)) * 4
                for nt in cutlass.range_constexpr(4):
                    store_global_x1(target + 32 * nt, rebuilt[nt] & mask)
            # The next tile overwrites the block.
            barrier()


def column_mask(kernel, k_tile):
    """Return the bits of the columns a K tile has: the lower two in the last one of a row with a tail."""
    mask = Uint32(0xFFFFFFFF)
    if kernel.has_column_tail:
        mask = select(k_tile == kernel.k_tiles - 1, Uint32(0xFFFF), mask)
    return mask


class ScalePlanes:
    """fp32 plane of every stage, rebuilt by one warp from native words or from two staged tile blocks.

    Layouts: ``scales`` u8, the native planes, or ``tiles``, ``bases`` and ``raw``, the parts of inline storage;
    ``planes`` f32 ``(experts, group_rows / 64, k_tiles, 4, 128)``. A stage has 64 rows of each of two groups: its slots
    0..63 are slots ``64 * half`` .. of a 128-row tile of the first group, 64..127 those of the second. Columns that the
    last K tile does not have are written as zero; the rebuild leaves something there that no consumer may read.

    Tiles: 32 threads, one stage at a time. 2560 bytes of shared memory: the plane, then what is staged.

    Parameters
    ----------
    launch : LaunchInfo
        32 threads and 2560 bytes of shared memory.
    rows, columns, group_rows : int
        Geometry of one expert, of two row groups.
    is_inline : bool
        Which storage is read.
    """

    def __init__(self, *, launch: LaunchInfo, rows: int, columns: int, group_rows: int, is_inline: bool) -> None:
        self.launch = launch
        self.geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
        assert self.geometry.groups == 2
        self.is_inline = is_inline
        self.half_tiles = group_rows // 64
        self.k_tiles = self.geometry.k_tiles
        self.has_column_tail = self.geometry.has_column_tail

    def __repr__(self) -> str:
        return "ScalePlanes"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        self.kernel(tuple(parameters)).launch(
            grid=[1, 1, 1], block=list(self.launch.block), smem=self.launch.shared_bytes, stream=stream
        )

    @cute.kernel
    def kernel(self, parameters):
        *storage, planes, stages_total = parameters
        lane, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        plane = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        staged = plane + SCALE_PLANE_BYTES
        for stage in cutlass.range(Int32(block), stages_total, Int32(blocks), unroll=1):
            first = Int32(Uint32(stage) // Uint32(self.k_tiles))
            k_tile = stage - first * self.k_tiles
            expert = Int32(Uint32(first) // Uint32(self.half_tiles))
            half_tile = first - expert * self.half_tiles
            if cutlass.const_expr(self.is_inline):
                bases = self.stage_inline(storage, staged, lane, expert, half_tile, k_tile)
                offset = selector_offset(lane, half_tile & 1)
                raw = raw_words(storage[2], lane, offset)
                rebuild_inline(lane, offset, base_choices(bases), staged, raw, plane)
            else:
                self.stage_native(storage[0], staged, lane, expert, half_tile, k_tile)
                rebuild_native(lane, staged, plane)
            # Records are patched by other lanes than the one that reads the slot back.
            barrier()
            target = planes + Int64(stage) * SCALE_PLANE_BYTES + Int64(lane * 16)
            mask = column_mask(self, k_tile)
            for column in cutlass.range_constexpr(TILE_COLUMNS):
                offset = column * (TILE_ROWS * 4)
                values = load_shared_x4(plane + offset + lane * 16)
                # The mask has a byte for each column.
                is_there = (mask >> (8 * column)) & 1
                store_global_x4(target + offset, [select(is_there != 0, value, Uint32(0)) for value in values])
            barrier()

    @cute.jit
    def stage_inline(self, storage, staged, lane, expert, half_tile, k_tile):
        """Copy what a stage has of both groups, 16 lanes each; return the bases of a lane's slots."""
        tiles, bases, _ = storage
        half, part = half_tile & 1, lane & 15
        block = Int64(expert) * (2 * self.geometry.row_tiles) + Int64(half_tile >> 1)
        block = block + Int64((lane >> 4) * self.geometry.row_tiles)
        source = tiles + (block * self.k_tiles + Int64(k_tile)) * TILE_BLOCK_BYTES
        target = staged + (lane >> 4) * STAGED_BLOCK_BYTES + part * 16
        copy_16(target, source + Int64(part * 16), Int32(16), Int32(part < COPIERS))
        commit_copies()
        lane_bases = Uint32(load_global_i32(bases + block * BASE_BLOCK_BYTES + Int64(half * 64 + part * 4)))
        wait_copies(0)
        barrier()
        return lane_bases

    @cute.jit
    def stage_native(self, scales, staged, lane, expert, half_tile, k_tile):
        """Copy the words of 64 rows of each group, four rows a lane; half words of a K tail are widened."""
        columns = self.geometry.columns
        height = Int32(TILE_ROWS)
        if cutlass.const_expr(self.geometry.has_row_tail):
            height = height - Int32(half_tile == self.half_tiles - 1) * 64
        group = Int64(expert) * 2 + Int64(lane >> 4)
        row_tile = Int64(half_tile >> 1) * (TILE_ROWS * columns)
        tile = scales + group * (self.geometry.group_rows * columns) + row_tile + Int64(k_tile * height * TILE_COLUMNS)
        row = (half_tile & 1) * 64 + (lane & 15) * 4
        target = staged + lane * 16
        is_whole = Int32(1)
        if cutlass.const_expr(self.has_column_tail):
            is_whole = Int32(k_tile != self.k_tiles - 1)
            widen_half_words(target, tile + Int64(row * 2), is_whole)
        copy_16(target, tile + Int64(row * 4), Int32(16), is_whole)
        commit_copies()
        wait_copies(0)
        barrier()


def raw_words(raw, lane, offset):
    """Return what gives a lane's words of the raw tile that a header names."""
    return lambda header: load_raw(raw, header, half_raw_place(lane, offset))


@cute.jit
def widen_half_words(target, source, is_whole):
    """Store the half words of four rows as words, unless the tile has whole words."""
    if is_whole == 0:
        low, high = Uint32(load_global_i32(source)), Uint32(load_global_i32(source + 4))
        words = [low & 0xFFFF, low >> 16, high & 0xFFFF, high >> 16]
        store_shared_f32x4(target, [float_of_bits(word) for word in words])
