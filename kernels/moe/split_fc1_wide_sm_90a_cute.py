"""Kernel of family ``split_fc1`` for sm_90a, for many rows of an m tile."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens
from planfreeze.kernels.mma.memory import commit_copies, wait_copies
from planfreeze.kernels.mma.stage_sm_90a import ROW_BYTES, ROW_SCALE_BYTES, WEIGHT_BYTES
from planfreeze.kernels.moe.split_fc1_sm_90a_cute import HALF_WEIGHT_BYTES, SplitFc1

__all__ = ["WideSplitFc1"]

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 80, 144
"""Registers of the warps that fill the stages, and of the three times as many that multiply: 512 a lane of an SM."""
LANES = 32


class WideSplitFc1(SplitFc1):
    """As :class:`SplitFc1`, with as many 64-row tiles per task as warpgroups multiply, and one block per SM.

    The arithmetic, the arguments and what is written are those of :class:`SplitFc1`.

    Tiles: 512 threads. Three warpgroups multiply, each the 64 up and the 64 gate rows of its own tile by the same
    activations, which are copied once for all. The fourth fills a ring of 5 stages: its first warp copies the
    activations, each of the others the weights and scales of a warpgroup, and rebuilds those. So the schedulers of an
    SM have three warps that multiply and one that fills, each; with three blocks of :class:`SplitFc1` one of them has
    none, and the slowest decides. The warps that multiply take over registers of the others. 214,016 bytes of shared
    memory (inline: 208,896). Persistent blocks stride over the tasks of the live m tiles, m-major. sm_90a.

    Parameters are those of :class:`SplitFc1`; ``tile_m`` is 32 and ``intermediate`` a multiple of 192.
    """

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "WideSplitFc1"

    @cute.kernel
    def kernel(self, parameters):
        # Of every warpgroup its copies and its rebuilt scales, and the activations of all.
        thread, shared, walk = self.begin(parameters, 2 * self.warpgroups + 1)
        warp = cute.arch.make_warp_uniform(thread >> 5)
        first_producer = mma.CONSUMER_WARPS * self.warpgroups
        if warp >= first_producer:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == first_producer:
                self.gather(shared, thread & 31, walk, parameters)
            else:
                self.fill(shared, thread & 31, warp - (first_producer + 1), walk, parameters)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.consume(shared, thread, walk, parameters)

    def load_entries(self, table, walk, task, lane):
        """Load what a table of m tiles has for the 32 tasks of this block from ``task`` on, one per lane.

        Not one task after the other: a warp is made to wait at once for a word that all its lanes load.
        """
        _, blocks, tasks = walk
        m_tile, _ = self.split_task(cutlass.min(task + lane * blocks, tasks - 1))
        return ptx.load_global_i32(table + Int64(m_tile) * 4)

    # --- activations --------------------------------------------------------------------------------------------

    @cute.jit
    def gather(self, shared, lane, walk, parameters):
        """Copy the activations of every step, and hand the stage over ``lag`` steps later."""
        block, blocks, tasks = walk
        a8, a_scale = parameters[:2]
        tile_expert, tile_valid = parameters[-9:-7]
        alpha = parameters[-6]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        behind, behind_left = shared, Int32(self.pipeline.stages)
        record, record_left = shared, Int32(self.pipeline.stages)
        copied, order = Int32(0), Int32(0)
        valids, factors, next_pair = Int32(0), Int32(0), Int32(0)
        if block < tasks:
            next_pair = self.load_pair(parameters, block, lane)
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            if (order & (LANES - 1)) == 0:
                valids = self.load_entries(tile_valid, walk, task, lane)
                experts = self.load_entries(tile_expert, walk, task, lane)
                factors = ptx.load_global_i32(alpha + Int64(experts) * 4)
            valid, factor = (cute.arch.shuffle_sync(words, order & (LANES - 1)) for words in (valids, factors))
            order = order + 1
            pair = next_pair
            if task + blocks < tasks:
                next_pair = self.load_pair(parameters, task + blocks, lane)
            m_tile, tile = self.split_task(task)
            token = Int32(Uint32(pair) // Uint32(self.top_k))
            sources = self.spread_tokens(token, lane)
            row = a8 + Int64((lane & 7) * 16)
            row_scales = a_scale + Int64(token) * (self.hidden // 8)
            for step in cutlass.range(0, self.steps, 1, unroll=1):
                ptx.wait(stage + self.pipeline.empty, parity)
                if step == 0:
                    with cute.arch.elect_one():
                        self.hand_over(record, m_tile, tile, valid, factor)
                tokens.copy_tokens(self.pipeline, stage, lane, row, sources, self.hidden, row_scales, valid)
                commit_copies()
                row = row + ROW_BYTES
                row_scales = row_scales + ROW_SCALE_BYTES
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                if copied >= self.lag:
                    wait_copies(self.lag)
                    self.publish(behind, lane)
                    behind, behind_left, _ = mma.advance(self.pipeline, behind, behind_left, Int32(0))
                copied = copied + 1
            record, record_left, _ = mma.advance(self.pipeline, record, record_left, Int32(0))
        wait_copies(0)
        for i in cutlass.range(0, self.lag, 1, unroll=1):
            if copied + i >= self.lag:
                self.publish(behind, lane)
                behind, behind_left, _ = mma.advance(self.pipeline, behind, behind_left, Int32(0))

    # --- weights and scales -------------------------------------------------------------------------------------

    @cute.jit
    def fill(self, shared, lane, group, walk, parameters):
        """Copy the weights and scales of a warpgroup, and rebuild those scales a step later.

        Not ``lag`` steps: a rebuild may have to wait for words of raw tiles, and what is left of the ring is its slack.
        """
        block, blocks, tasks = walk
        w13 = parameters[2]
        addresses = parameters[3:-10]
        tile_expert = parameters[-9]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        ring = (shared, Int32(self.pipeline.stages), Int32(0))
        copied, order = Int32(0), Int32(0)
        experts = Int32(0)
        memory = self.scales.remember()
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            if (order & (LANES - 1)) == 0:
                experts = self.load_entries(tile_expert, walk, task, lane)
            expert = Int64(cute.arch.shuffle_sync(experts, order & (LANES - 1)))
            order = order + 1
            _, first_tile = self.split_task(task)
            tile = first_tile + group
            weights = w13 + (expert * (2 * self.tiles) + Int64(tile)) * (32 * self.hidden)
            scales, scale_step = self.scales.locate(addresses, expert, tile)
            for step in cutlass.range(0, self.steps, 1, unroll=1):
                ptx.wait(stage + self.pipeline.empty, parity)
                with cute.arch.elect_one():
                    target = stage + self.pipeline.weights + group * WEIGHT_BYTES
                    self.copy_weights(target, stage + self.pipeline.full, weights)
                    self.scales.copy(stage, addresses, scales, expert, tile, step, group)
                weights = weights + HALF_WEIGHT_BYTES
                scales = scales + scale_step
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                if copied > 0:
                    if step == 1:
                        ptx.wait(ring[0] + self.pipeline.landed, ring[2])
                        self.scales.keep_rows(memory, ring[0], lane, tile, group)
                    ring = self.finish_scales(memory, addresses, ring, lane, group)
                copied = copied + 1
        if copied > 0:
            ring = self.finish_scales(memory, addresses, ring, lane, group)

    def finish_scales(self, memory, addresses, ring, lane, group):
        """Rebuild the scales of a stage once they have landed, and hand them over; return what is after it."""
        stage, left, parity = ring
        ptx.wait(stage + self.pipeline.landed, parity)
        self.scales.rebuild(memory, addresses, stage, lane, group)
        mma.arrive_once(stage + self.pipeline.full)
        return mma.advance(self.pipeline, stage, left, parity)
