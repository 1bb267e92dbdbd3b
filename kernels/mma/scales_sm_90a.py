"""Staging of weight scales on sm_90a, native or inline.

Halves are those of the first projection, 64 up rows and the same 64 gate rows a stage; Rows those of the second, 128
rows of one group. Both storages have the same methods, so that a kernel is written once. A warp calls ``locate`` for
every task and for every step ``copy``, in one lane; some steps later ``rebuild``, which turns what has landed into the
fp32 plane. Of Halves it calls ``keep_rows`` before that, once a task's first step has landed. What it keeps between
calls is in the registers that ``remember`` gives. ``addresses`` are the kernel's scale parameters: the plane, or tile
blocks, row bases and raw tiles. Words of a raw tile are loaded by the lanes that rebuild it, for which a warp must have
time; :mod:`planfreeze.kernels.mma.scales_ahead_sm_90a` copies them before.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.sm_90a import (
    base_choices,
    half_raw_place,
    load_raw,
    rebuild_inline,
    rebuild_inline_rows,
    rebuild_native,
    rebuild_native_tail,
    selector_offset,
)
from planfreeze.kernels.mma.stage_sm_90a import (
    GROUP_SCALE_BYTES,
    NATIVE_SCALE_BYTES,
    ROWS,
    SCALE_PLANE_BYTES,
    STAGED_BLOCK_BYTES,
    Pipeline,
)
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, TILE_BLOCK_BYTES

__all__ = ["InlineHalves", "InlineRows", "NativeHalves", "NativeRows", "RowMemory", "make_words"]


class NativeHalves:
    """Scales from the native plane: words of 64 rows of each group.

    Where several warpgroups multiply, a stage has the scales of each, and ``warpgroup`` says whose are meant.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    hidden, intermediate : int
        K and rows of each group.
    parts : int
        Parts of K, of which a task has one.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int, parts: int = 1) -> None:
        self.pipeline = pipeline
        self.steps = hidden // 128 // parts
        self.group_bytes = intermediate * hidden // 32
        self.row_tile_bytes = 128 * hidden // 32
        # The 64-row tile that is a tile of its own in the plane, or none.
        self.short_tile = intermediate // 64 - 1 if intermediate % 128 else -1

    def remember(self):
        """Nothing is kept."""
        return ()

    def keep_rows(self, memory, stage, lane, half_tile, warpgroup=0):
        """Nothing is kept."""

    @cute.jit
    def locate(self, addresses, expert, half_tile, part=0):
        """Return the address of a task's first up words and the distance of its steps, both Int64."""
        first = Int64(half_tile >> 1) * self.row_tile_bytes + Int64(half_tile & 1) * GROUP_SCALE_BYTES
        step = Int64(NATIVE_SCALE_BYTES)
        if half_tile == self.short_tile:
            step = Int64(GROUP_SCALE_BYTES)
        first = first + Int64(part * self.steps) * step
        return addresses[0] + expert * (2 * self.group_bytes) + first, step

    def copy(self, stage, addresses, source, expert, half_tile, step, warpgroup=0, arrives=True):
        """Start the copies of one step from ``source``; ``landed`` completes when those of all warpgroups are there.

        Unless it ``arrives``, that is left to the caller.
        """
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales + warpgroup * NATIVE_SCALE_BYTES
        size_bytes = Int32(GROUP_SCALE_BYTES)
        announce(landed, Int32(NATIVE_SCALE_BYTES), arrives)
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(target + GROUP_SCALE_BYTES, source + Int64(self.group_bytes), size_bytes, landed)

    def rebuild(self, memory, addresses, stage, lane, warpgroup=0):
        """Write the fp32 plane of a stage."""
        staged = stage + self.pipeline.staged_scales + warpgroup * NATIVE_SCALE_BYTES
        rebuild_native(lane, staged, stage + self.pipeline.scales + warpgroup * SCALE_PLANE_BYTES)


class RowMemory:
    """What a warp keeps, in registers, of the rows that its lanes rebuild: what selectors choose from, and where."""

    def __init__(self):
        self.patterns = make_words(8)
        self.offset = make_words(1)

    def __extract_mlir_values__(self):
        """The tensors stay where they are: nothing of them is carried through branches and loops."""
        return []

    def __new_from_mlir_values__(self, values):
        return self

    def keep(self, choices, offset):
        """Keep what is chosen from for the lane's four slots, and where their selectors are in a tile block."""
        for nt, pair in enumerate(choices):
            self.patterns[2 * nt], self.patterns[2 * nt + 1] = pair
        self.offset[0] = offset

    def choices(self):
        """Return what is chosen from for the lane's four slots."""
        return [(self.patterns[2 * nt], self.patterns[2 * nt + 1]) for nt in range(4)]


class InlineHalves:
    """Scales from inline storage: of a 128-row tile of each group, of which 64 slots are used, the tile block.

    Parameters are those of :class:`NativeHalves`.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int, parts: int = 1) -> None:
        self.pipeline = pipeline
        self.row_tiles = -(-intermediate // 128)
        self.steps = hidden // 128 // parts
        self.row_tile_bytes = hidden // 128 * TILE_BLOCK_BYTES
        self.group_bytes = self.row_tiles * self.row_tile_bytes

    def remember(self):
        """Return the registers of a warp."""
        return RowMemory()

    def row_block(self, expert, half_tile):
        """Return the up row block of a 64-row tile; its gate block is ``row_tiles`` further."""
        return expert * (2 * self.row_tiles) + Int64(half_tile >> 1)

    def locate(self, addresses, expert, half_tile, part=0):
        """Return the address of a task's first up tile block and the distance of its steps, both Int64."""
        first = self.row_block(expert, half_tile) * self.row_tile_bytes + Int64(part * self.steps * TILE_BLOCK_BYTES)
        return addresses[0] + first, Int64(TILE_BLOCK_BYTES)

    @cute.jit
    def copy(
        self,
        stage,
        addresses,
        source,
        expert,
        half_tile,
        step,
        warpgroup=0,
        arrives: cutlass.Constexpr = True,
    ):
        """Start the copies of one step from ``source``, and of the row bases in a task's first step.

        ``landed`` completes when those of all warpgroups are there. Unless it ``arrives``, that is left to the caller.
        """
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales + warpgroup * (2 * STAGED_BLOCK_BYTES)
        if step == 0:
            self.copy_bases(stage, addresses, expert, half_tile, warpgroup)
        size_bytes = Int32(TILE_BLOCK_BYTES)
        announce(landed, Int32(2 * TILE_BLOCK_BYTES), arrives)
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(target + STAGED_BLOCK_BYTES, source + self.group_bytes, size_bytes, landed)

    def copy_bases(self, stage, addresses, expert, half_tile, warpgroup):
        """Start the copies of the row bases, which ``landed`` waits for, too."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.bases + warpgroup * BASE_BLOCK_BYTES
        size_bytes = Int32(BASE_BLOCK_BYTES // 2)
        up = addresses[1] + self.row_block(expert, half_tile) * BASE_BLOCK_BYTES
        up = up + Int64(half_tile & 1) * (BASE_BLOCK_BYTES // 2)
        ptx.expect(landed, Int32(BASE_BLOCK_BYTES))
        ptx.copy_bulk(target, up, size_bytes, landed)
        ptx.copy_bulk(target + BASE_BLOCK_BYTES // 2, up + self.row_tiles * BASE_BLOCK_BYTES, size_bytes, landed)

    def keep_rows(self, memory, stage, lane, half_tile, warpgroup=0):
        """Keep what a task's first stage has of its rows, once it has landed."""
        bases = stage + self.pipeline.bases + warpgroup * BASE_BLOCK_BYTES
        memory.keep(base_choices(ptx.load_shared(bases + lane * 4)), Uint32(selector_offset(lane, half_tile & 1)))

    def rebuild(self, memory, addresses, stage, lane, warpgroup=0):
        """Write the fp32 plane of a stage."""
        blocks = stage + self.pipeline.staged_scales + warpgroup * (2 * STAGED_BLOCK_BYTES)
        scales = stage + self.pipeline.scales + warpgroup * SCALE_PLANE_BYTES
        offset = Int32(memory.offset[0])
        raw = self.raw_words(addresses, scales, lane, offset)
        rebuild_inline(lane, offset, memory.choices(), blocks, raw, scales)

    def raw_words(self, addresses, scales, lane, offset):
        """Return what gives a lane's words of the raw tile that a header names: by loading them."""
        return lambda header: load_raw(addresses[2], header, half_raw_place(lane, offset))


class NativeRows:
    """Scales of 128-row tiles from the native plane: scale words, or half words where two columns are left.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    intermediate : int
        K of the projection, whose one row group is made of whole tiles.
    """

    def __init__(self, pipeline: Pipeline, *, intermediate: int) -> None:
        self.pipeline = pipeline
        self.row_block_bytes = ROWS * intermediate // 32
        self.last_step = -(-intermediate // 128) - 1
        self.has_tail = intermediate % 128 != 0

    def remember(self):
        """Nothing is kept."""
        return ()

    def locate(self, addresses, row_block):
        """Return the address of the first words of a row block, Int64."""
        return addresses[0] + row_block * self.row_block_bytes

    def copy(self, stage, addresses, source, row_block, step):
        """Start the copy of one step of a row block; ``landed`` completes when it has arrived."""
        landed = stage + self.pipeline.landed
        size_bytes = cutlass.min(Int32(NATIVE_SCALE_BYTES), Int32(self.row_block_bytes) - step * NATIVE_SCALE_BYTES)
        ptx.arrive_expecting(landed, size_bytes)
        words = source + Int64(step) * NATIVE_SCALE_BYTES
        ptx.copy_bulk(stage + self.pipeline.staged_scales, words, size_bytes, landed)

    @cute.jit
    def rebuild(self, memory, addresses, stage, lane, step):
        """Write the fp32 plane of a stage, the step of its task."""
        staged, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        if cutlass.const_expr(self.has_tail):
            if step == self.last_step:
                rebuild_native_tail(lane, staged, scales)
            else:
                rebuild_native(lane, staged, scales)
        else:
            rebuild_native(lane, staged, scales)


class InlineRows:
    """Scales of 128-row tiles from inline storage: the tile block.

    Parameters are those of :class:`NativeRows`.
    """

    def __init__(self, pipeline: Pipeline, *, intermediate: int) -> None:
        self.pipeline = pipeline
        self.steps = -(-intermediate // 128)
        self.row_block_bytes = self.steps * TILE_BLOCK_BYTES

    def remember(self):
        """Return the registers of a warp."""
        return RowMemory()

    def locate(self, addresses, row_block):
        """Return the address of the first tile block of a row block, Int64."""
        return addresses[0] + row_block * self.row_block_bytes

    @cute.jit
    def copy(self, stage, addresses, source, row_block, step):
        """Start the copy of one step of a row block, and of its row bases in the first step."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales
        if step == 0:
            bases = addresses[1] + row_block * BASE_BLOCK_BYTES
            ptx.expect(landed, Int32(BASE_BLOCK_BYTES))
            ptx.copy_bulk(stage + self.pipeline.bases, bases, Int32(BASE_BLOCK_BYTES), landed)
        block = source + Int64(step) * TILE_BLOCK_BYTES
        ptx.arrive_expecting(landed, Int32(TILE_BLOCK_BYTES))
        ptx.copy_bulk(target, block, Int32(TILE_BLOCK_BYTES), landed)

    @cute.jit
    def rebuild(self, memory, addresses, stage, lane, step):
        """Write the fp32 plane of a stage, the step of its task."""
        if step == 0:
            memory.keep(base_choices(ptx.load_shared(stage + self.pipeline.bases + lane * 4)), Uint32(0))
        block, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        rebuild_inline_rows(lane, memory.choices(), block, self.raw_words(addresses, scales, lane), scales)

    def raw_words(self, addresses, scales, lane):
        """Return what gives a lane's words of the raw tile that a header names: by loading them."""
        return lambda header: load_raw(addresses[2], header, lane * 16)


def announce(landed, size_bytes, arrives):
    """Let ``landed`` wait for bytes, and arrive as well or not."""
    if arrives:
        ptx.arrive_expecting(landed, size_bytes)
    else:
        ptx.expect(landed, size_bytes)


def make_words(count):
    """Return so many registers, zero."""
    words = cute.make_rmem_tensor((count,), Uint32)
    for i in range(count):
        words[i] = Uint32(0)
    return words
