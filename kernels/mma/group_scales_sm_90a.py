"""Staging of weight scales on sm_90a for one of several warpgroups, by a warp that does nothing else.

Both classes have the same methods, so that a kernel is written once. A task's steps are cut into runs by what single
steps need: ``prepare`` is called before the first step of every run and ``end_of_run`` tells where it ends. Every step
has ``copy_raw``, ``copy`` in one lane, and some steps later ``rebuild``; ``skip`` stands for it while there is nothing
to rebuild. What a warp keeps between calls is in the registers that ``remember`` gives. ``group`` is the warpgroup, of
64 up rows and the same 64 gate rows, whose tile of rows is ``half_tile``; ``addresses`` are the kernel's scale
parameters.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import select
from planfreeze.kernels.mma.scales_sm_90a import InlineHalves, NativeHalves, RowMemory, copy_words, make_words
from planfreeze.kernels.mma.sm_90a import rebuild_inline, rebuild_native
from planfreeze.kernels.mma.stage_sm_90a import (
    GROUP_SCALE_BYTES,
    NATIVE_SCALE_BYTES,
    SCALE_PLANE_BYTES,
    STAGED_BLOCK_BYTES,
)
from planfreeze.kernels.mma.tokens_sm_90a import fence_async
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, SELECTOR_BYTES, TILE_BLOCK_BYTES

__all__ = ["InlineGroup", "NativeGroup"]

HEADER_COPY_BYTES = 16
"""A header and what follows it: the least that a bulk copy takes."""
HALF_LANES = 16
"""Lanes that rebuild the up rows; as many rebuild the gate rows."""


class NativeGroup:
    """Scales from the native plane.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    hidden, intermediate : int
        K and rows of each group.
    lag : int
        Steps from a copy to the rebuild.
    """

    def __init__(self, pipeline, *, hidden, intermediate, lag):
        self.pipeline = pipeline
        self.steps = hidden // 128
        self.halves = NativeHalves(pipeline, hidden=hidden, intermediate=intermediate)

    def remember(self):
        """Nothing is kept."""
        return ()

    def look_ahead(self, memory, addresses, expert, half_tile, lane):
        """Nothing is known ahead."""

    def locate(self, addresses, expert, half_tile):
        """Return the address of a task's first up words and the distance of its steps, both Int64."""
        return self.halves.locate(addresses, expert, half_tile)

    def prepare(self, memory, stage, behind, addresses, expert, half_tile, group, lane, step):
        """No step needs more than another."""

    def end_of_run(self, step):
        """A task is one run."""
        return Int32(self.steps)

    def distance(self, step, source, next_source):
        """Nothing is copied ahead."""
        return Int64(0)

    def copy_raw(self, memory, stage, addresses, half_tile, group):
        """There are no raw tiles."""

    def copy(self, stage, source, distance, group):
        """Start the copies of one step from ``source``; ``landed`` completes when all warpgroups' have arrived."""
        target = stage + self.pipeline.staged_scales + group * NATIVE_SCALE_BYTES
        self.halves.copy_to(target, stage + self.pipeline.landed, source)

    def skip(self, memory, copied, lane):
        """Nothing is known ahead."""

    def rebuild(self, memory, stage, lane, group):
        """Write the fp32 plane of a stage."""
        staged = stage + self.pipeline.staged_scales + group * NATIVE_SCALE_BYTES
        rebuild_native(lane, staged, stage + self.pipeline.scales + group * SCALE_PLANE_BYTES)


class InlineGroup:
    """Scales from inline storage.

    Whether a tile is raw has to be known before its step is copied. A step therefore copies the headers of the step
    ``ahead`` steps on, too, of which the rebuild tells just before that one is copied. They are not loaded by the
    lanes: loads of a whole task at once, each to a line of its own, held up the block for about a microsecond a task.

    Parameters are those of :class:`NativeGroup`. ``addresses`` are tile blocks, row bases and raw tiles.
    """

    def __init__(self, pipeline, *, hidden, intermediate, lag):
        self.pipeline = pipeline
        self.steps = hidden // 128
        self.lag = lag
        self.ahead = lag + 1
        self.halves = InlineHalves(pipeline, hidden=hidden, intermediate=intermediate)

    def remember(self):
        """Return the registers of a warp.

        Of the rows a lane rebuilds the bases, and where their selectors are; of its half of the rows the header of the
        next step to copy, and of one of the block's first steps.
        """
        return GroupMemory()

    def look_ahead(self, memory, addresses, expert, half_tile, lane):
        """Load the headers of a block's first steps, which no step has copied."""
        step = cutlass.min(lane & (HALF_LANES - 1), Int32(self.ahead - 1))
        first, _ = self.locate(addresses, expert, half_tile)
        place = Int64((lane // HALF_LANES) * self.halves.group_bytes + step * TILE_BLOCK_BYTES + SELECTOR_BYTES)
        memory.first[0] = Uint32(ptx.load_global_i32(first + place))
        memory.header[0] = self.header_of(memory, lane, 0)

    def header_of(self, memory, lane, step):
        """Return the header of one of the block's first steps."""
        return Uint32(cute.arch.shuffle_sync(memory.first[0], (lane & HALF_LANES) | step))

    def locate(self, addresses, expert, half_tile):
        """Return the address of a task's first up tile block and the distance of its steps, both Int64."""
        return self.halves.locate(addresses, expert, half_tile)

    @cute.jit
    def prepare(self, memory, stage, behind, addresses, expert, half_tile, group, lane, step):
        """Copy the row bases before a task's first step, and keep them before its rebuild.

        ``stage`` is free, and what is in ``behind`` has landed.
        """
        bases = self.pipeline.bases + group * BASE_BLOCK_BYTES
        if step == 0:
            with cute.arch.elect_one():
                self.halves.copy_bases(stage, stage + bases, addresses, expert, half_tile)
        if step == self.lag:
            memory.keep_rows(behind + bases, lane, half_tile & 1)

    def end_of_run(self, step):
        """Return where the run that begins with a step ends."""
        end = Int32(self.steps)
        for place in (self.lag, self.steps - self.ahead):
            nearer = Uint32(cutlass.min(end, Int32(place)))
            end = Int32(select(step < place, nearer, Uint32(end)))
        return end

    @cute.jit
    def distance(self, step, source, next_source):
        """Return how far the headers that the steps of a run copy, too, are from the blocks of those steps.

        ``source`` is that of the run's first step. The last steps of a task copy headers of the next one.
        """
        distance = Int64(self.ahead * TILE_BLOCK_BYTES)
        if step >= self.steps - self.ahead:
            distance = next_source - source
        return distance

    @cute.jit
    def copy_raw(self, memory, stage, addresses, half_tile, group):
        """Start copying the words of the step's raw tiles, if there are any; ``landed`` waits for them."""
        header = memory.header[0]
        if cute.arch.vote_any_sync(Int32(header) < 0):
            # Orders this warp's rebuilt scales, which stood there, before the words.
            fence_async()
            headers = [Uint32(cute.arch.shuffle_sync(header, HALF_LANES * half)) for half in range(2)]
            target = stage + self.pipeline.scales + group * SCALE_PLANE_BYTES
            raw = addresses[2] + Int64(half_tile & 1) * GROUP_SCALE_BYTES
            with cute.arch.elect_one():
                for half in cutlass.range_constexpr(2):
                    words = target + half * GROUP_SCALE_BYTES
                    copy_words(words, raw, headers[half], GROUP_SCALE_BYTES, stage + self.pipeline.landed)

    def copy(self, stage, source, distance, group):
        """Start the copies of one step from ``source``, and of the headers of blocks at this distance."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales + group * (2 * STAGED_BLOCK_BYTES)
        ptx.arrive_expecting(landed, Int32(2 * (TILE_BLOCK_BYTES + HEADER_COPY_BYTES)))
        for half in range(2):
            block = target + half * STAGED_BLOCK_BYTES
            further = half * self.halves.group_bytes
            ptx.copy_bulk(block, source + further, Int32(TILE_BLOCK_BYTES), landed)
            headers = source + distance + (further + SELECTOR_BYTES)
            ptx.copy_bulk(block + TILE_BLOCK_BYTES, headers, Int32(HEADER_COPY_BYTES), landed)

    def skip(self, memory, copied, lane):
        """Tell the header of the step after one of the block's first."""
        memory.header[0] = self.header_of(memory, lane, copied + 1)

    def rebuild(self, memory, stage, lane, group):
        """Write the fp32 plane of a stage, and tell the header of the next step to copy."""
        blocks = stage + self.pipeline.staged_scales + group * (2 * STAGED_BLOCK_BYTES)
        memory.header[0] = ptx.load_shared(blocks + (lane // HALF_LANES) * STAGED_BLOCK_BYTES + TILE_BLOCK_BYTES)
        scales = stage + self.pipeline.scales + group * SCALE_PLANE_BYTES
        rebuild_inline(lane, Int32(memory.offset[0]), memory.bases, blocks, scales)


class GroupMemory(RowMemory):
    """What a warp keeps of inline scales, see :meth:`InlineGroup.remember`."""

    def __init__(self):
        super().__init__()
        self.header = make_words(1)
        self.first = make_words(1)
