"""Staging of weight scales on sm_90a, native or inline.

Halves are those of the first projection, 64 up rows and the same 64 gate rows a stage; Rows those of the second, 128
rows of one group. Both storages have the same methods, so that a kernel is written once: ``locate`` finds a task's
scales, ``copy`` starts the copies of one step, ``rebuild`` turns what has landed into the fp32 plane. ``addresses`` are
the kernel's scale parameters.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.sm_90a import rebuild_inline, rebuild_inline_rows, rebuild_native, rebuild_native_tail
from planfreeze.kernels.mma.stage_sm_90a import NATIVE_SCALE_BYTES, ROWS, Pipeline
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, TILE_BLOCK_BYTES

__all__ = ["InlineHalves", "InlineRows", "NativeHalves", "NativeRows"]


class NativeHalves:
    """Scales from the native plane: words of 64 rows of each group.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    hidden, intermediate : int
        K and rows of each group.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int) -> None:
        self.pipeline = pipeline
        self.group_bytes = intermediate * hidden // 32
        self.row_tile_bytes = 128 * hidden // 32
        # The 64-row tile that is a tile of its own in the plane, or none.
        self.short_tile = intermediate // 64 - 1 if intermediate % 128 else -1

    @cute.jit
    def locate(self, addresses, expert, half_tile):
        """Return the address of the first up words of a 64-row tile and the distance of its steps, both Int64."""
        first = Int64(half_tile >> 1) * self.row_tile_bytes + Int64(half_tile & 1) * (NATIVE_SCALE_BYTES // 2)
        step = Int64(NATIVE_SCALE_BYTES)
        if half_tile == self.short_tile:
            step = Int64(NATIVE_SCALE_BYTES // 2)
        return addresses[0] + expert * (2 * self.group_bytes) + first, step

    def copy(self, stage, addresses, source, expert, half_tile, step):
        """Start the copies of one step from ``source``; ``landed`` completes when they have arrived."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales
        size_bytes = Int32(NATIVE_SCALE_BYTES // 2)
        ptx.arrive_expecting(landed, Int32(NATIVE_SCALE_BYTES))
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(target + NATIVE_SCALE_BYTES // 2, source + Int64(self.group_bytes), size_bytes, landed)

    def load_bases(self, stage, lane):
        """Native words need no bases."""
        return Uint32(0)

    def rebuild(self, stage, lane, half, bases, addresses):
        """Write the fp32 plane of a stage."""
        rebuild_native(lane, stage + self.pipeline.staged_scales, stage + self.pipeline.scales)


class InlineHalves:
    """Scales from inline storage: the tile blocks of a 128-row tile of each group, of which 64 slots are used.

    Parameters are those of :class:`NativeHalves`. ``addresses`` are tile blocks, row bases and raw tiles.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int) -> None:
        self.pipeline = pipeline
        self.row_tiles = -(-intermediate // 128)
        self.row_tile_bytes = hidden // 128 * TILE_BLOCK_BYTES

    def row_block(self, expert, half_tile):
        """Return the up row block of a 64-row tile; its gate block is ``row_tiles`` further."""
        return expert * (2 * self.row_tiles) + Int64(half_tile >> 1)

    def locate(self, addresses, expert, half_tile):
        """Return the address of the first up tile block of a 64-row tile and the distance of its steps, both Int64."""
        first = self.row_block(expert, half_tile) * self.row_tile_bytes
        return addresses[0] + first, Int64(TILE_BLOCK_BYTES)

    @cute.jit
    def copy(self, stage, addresses, source, expert, half_tile, step):
        """Start the copies of one step from ``source``, and of the row bases in a task's first step."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales
        size_bytes = Int32(TILE_BLOCK_BYTES)
        expected_bytes = Int32(2 * TILE_BLOCK_BYTES)
        if step == 0:
            expected_bytes = Int32(2 * TILE_BLOCK_BYTES + BASE_BLOCK_BYTES)
        ptx.arrive_expecting(landed, expected_bytes)
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(
            target + TILE_BLOCK_BYTES, source + Int64(self.row_tiles * self.row_tile_bytes), size_bytes, landed
        )
        if step == 0:
            base_target = stage + self.pipeline.bases
            base_bytes = Int32(BASE_BLOCK_BYTES // 2)
            base = addresses[1] + self.row_block(expert, half_tile) * BASE_BLOCK_BYTES
            base = base + Int64(half_tile & 1) * (BASE_BLOCK_BYTES // 2)
            ptx.copy_bulk(base_target, base, base_bytes, landed)
            gate_base = base + Int64(self.row_tiles * BASE_BLOCK_BYTES)
            ptx.copy_bulk(base_target + BASE_BLOCK_BYTES // 2, gate_base, base_bytes, landed)

    def load_bases(self, stage, lane):
        """Load the bases of the lane's four slots from the stage of a task's first step."""
        return ptx.load_shared(stage + self.pipeline.bases + lane * 4)

    def rebuild(self, stage, lane, half, bases, addresses):
        """Write the fp32 plane of a stage."""
        staged, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        rebuild_inline(lane, half, bases, staged, addresses[2], scales)


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

    def load_bases(self, stage, lane):
        """Native words need no bases."""
        return Uint32(0)

    @cute.jit
    def rebuild(self, stage, lane, step, bases, addresses):
        """Write the fp32 plane of a stage."""
        staged, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        if cutlass.const_expr(self.has_tail):
            if step == self.last_step:
                rebuild_native_tail(lane, staged, scales)
            else:
                rebuild_native(lane, staged, scales)
        else:
            rebuild_native(lane, staged, scales)


class InlineRows:
    """Scales of 128-row tiles from inline storage: one tile block a step.

    Parameters are those of :class:`NativeRows`. ``addresses`` are tile blocks, row bases and raw tiles.
    """

    def __init__(self, pipeline: Pipeline, *, intermediate: int) -> None:
        self.pipeline = pipeline
        self.row_block_bytes = -(-intermediate // 128) * TILE_BLOCK_BYTES

    def locate(self, addresses, row_block):
        """Return the address of the first tile block of a row block, Int64."""
        return addresses[0] + row_block * self.row_block_bytes

    @cute.jit
    def copy(self, stage, addresses, source, row_block, step):
        """Start the copy of one step of a row block, and of its row bases in the first step."""
        landed = stage + self.pipeline.landed
        size_bytes = Int32(TILE_BLOCK_BYTES)
        expected_bytes = size_bytes
        if step == 0:
            expected_bytes = Int32(TILE_BLOCK_BYTES + BASE_BLOCK_BYTES)
        ptx.arrive_expecting(landed, expected_bytes)
        block = source + Int64(step) * TILE_BLOCK_BYTES
        ptx.copy_bulk(stage + self.pipeline.staged_scales, block, size_bytes, landed)
        if step == 0:
            bases = addresses[1] + row_block * BASE_BLOCK_BYTES
            ptx.copy_bulk(stage + self.pipeline.bases, bases, Int32(BASE_BLOCK_BYTES), landed)

    def load_bases(self, stage, lane):
        """Load the bases of the lane's four slots from the stage of a task's first step."""
        return ptx.load_shared(stage + self.pipeline.bases + lane * 4)

    def rebuild(self, stage, lane, step, bases, addresses):
        """Write the fp32 plane of a stage."""
        staged, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        rebuild_inline_rows(lane, bases, staged, addresses[2], scales)
