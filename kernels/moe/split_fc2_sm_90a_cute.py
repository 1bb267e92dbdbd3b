"""Kernel of family ``split_fc2`` for sm_90a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens
from planfreeze.kernels.mma.launch import launch_once, start_next, wait_for_previous
from planfreeze.kernels.mma.memory import select
from planfreeze.kernels.mma.rows_sm_90a import RowProduct
from planfreeze.kernels.mma.scales_sm_90a import InlineRows, NativeRows
from planfreeze.kernels.mma.stage_sm_90a import CONSUMERS, ROW_BYTES, ROW_SCALE_BYTES, SWIZZLE_BYTES, WEIGHT_BYTES
from planfreeze.kernels.mma.words import store_shared_x4
from planfreeze.kernels.moe.geometry import padded_width, row_tiles
from planfreeze.kernels.moe.progress_cute import await_rows, take_task
from planfreeze.kernels.moe.split_fc2 import RECORDS, THREADS_SM_90A, pipeline_sm_90a

__all__ = ["SplitFc2"]


class SplitFc2:
    """Second projection of routes grouped by expert, one tile of rows and one of 128 output columns per task.

    Math: ``route_output[token_map[row], n] = bf16(alpha[e] * row_weight[row] * sum_k a[row, k] * w[e, n, k])`` with
    e = tile_expert[row // tile_m], for the first tile_valid rows of each of the first tile_count tiles. Every group of
    32 K is a product of its own, rescaled and added in fp32, in K order; then the sum is multiplied by 64 (see
    ``mma``), alpha and weight, every operation rounded on its own.

    Arguments: ``intermediate`` u8, ``rows`` rows in the order of
    :func:`planfreeze.kernels.moe.reference_rows.arrange_rows`; ``w2`` 32-bit words ``[expert][128-row
    tile][K128][K32][32-row chunk][lane][nt]``; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``,
    ``bases`` and ``raw``; ``token_map`` i32 and ``row_weight`` f32 ``(rows,)``; ``tile_expert`` and ``tile_valid`` i32
    ``(m_tiles,)``; ``tile_count`` i32 ``(3 + m_tiles,)``, by whose counters it waits for the rows of an m tile and
    shares out its tasks (see :mod:`planfreeze.kernels.moe.progress_cute`); ``alpha`` f32 ``(experts,)``;
    ``route_output`` bf16 ``(pairs, hidden)``; then ``pairs``, ``experts``, ``rows`` and ``m_tiles``. Tensors are
    16-byte aligned, the tables of m tiles 4. A live m tile has a valid row. Counters at their start say that a
    ``split_fc1`` of this geometry was launched after they were set, without which this kernel never ends; zeros wait
    for nobody.

    Tiles: 160 threads. Warps 0 to 3, one warpgroup, multiply 32 weight rows each with tile_m intermediate rows. Warp 4
    fills a ring of 4 stages of K128 by bulk copies: weights, scales, and the rows, which are stored as the operand they
    become; two steps later it rebuilds the scales to fp32, so that both kinds of scale storage reach the very same
    instructions of the other warps. The ring never drains between tasks, which are as short as one step. When K is an
    odd multiple of 64 the last step of a task has K64. Rows are copied by eights, those that are not valid are not
    stored; what their columns of the product hold reaches no other column. 49,792 bytes of shared memory and at most 96
    registers for tile_m 8, 54,400 and 96 for 16, both with 4 blocks per SM; 67,712 (inline: 63,616) and 128 for 32,
    with 3. A block's first task is that of its number; it takes the others, tile-major: the tasks of one tile share its
    rows in L2. sm_90a.

    Parameters
    ----------
    launch : LaunchInfo
        160 threads and the shared memory of :func:`~planfreeze.kernels.moe.split_fc2.pipeline_sm_90a`.
    hidden, intermediate : int
        Output columns, a multiple of 256, and K, a multiple of 64.
    tile_m : int
        Rows per tile: 8, 16 or 32.
    csf_inline : bool
        Read scales from inline storage.
    """

    def __init__(
        self, *, launch: LaunchInfo, hidden: int, intermediate: int, tile_m: int, csf_inline: bool = False
    ) -> None:
        self.launch = launch
        self.pipeline = pipeline_sm_90a(tile_m=tile_m, csf_inline=csf_inline)
        assert launch.block == (THREADS_SM_90A, 1, 1) and launch.shared_bytes == self.pipeline.block_bytes
        assert self.pipeline.activations % SWIZZLE_BYTES == 0
        # Where all steps are whole, registers would be spilled for more.
        long_slots = 2 if intermediate % 128 == 0 else 4
        self.product = RowProduct(
            self.pipeline, tile_m=tile_m, column_stride=mma.CONSUMER_WARPS * mma.CHUNK_BYTES, long_slots=long_slots
        )
        self.hidden = hidden
        self.tile_m = tile_m
        self.tiles = row_tiles(hidden)
        # Tasks of the first projection in an m tile.
        self.first_tiles = intermediate // 64
        self.row_block_bytes = 128 * intermediate // 2
        self.padded = padded_width(intermediate)
        self.steps = row_tiles(intermediate)
        self.whole_steps = intermediate // 128
        self.lag = self.pipeline.stages - 2
        storage = InlineRows if csf_inline else NativeRows
        self.scales = storage(self.pipeline, intermediate=intermediate)

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "SplitFc2"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        tile_count, m_tiles = parameters[-7], parameters[-1]
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=SWIZZLE_BYTES).toint())
        if thread == 0:
            mma.init_stages(self.pipeline, shared)
        # The first entries are loaded beside the count that says whether they mean anything.
        count = ptx.load_global_i32(tile_count)
        expert, valid = Int32(0), Int32(0)
        if block < m_tiles * self.tiles:
            expert, valid = self.load_entry(parameters, block)
        walk = (block, blocks, count * self.tiles)
        cute.arch.sync_threads()
        if thread >= CONSUMERS:
            self.produce(shared, thread & 31, walk, expert, valid, parameters)
        else:
            if block < count * self.tiles:
                self.consume(shared, thread, parameters)

    def split_task(self, task):
        """Return the m tile and the 128-column tile of a task, Int32."""
        m_tile = Uint32(task) // Uint32(self.tiles)
        return Int32(m_tile), Int32(Uint32(task) - m_tile * Uint32(self.tiles))

    def load_entry(self, parameters, task):
        """Load the expert and the valid rows of a task's m tile, Int32."""
        m_tile, _ = self.split_task(task)
        offset = Int64(m_tile) * 4
        return ptx.load_global_i32(parameters[-9] + offset), ptx.load_global_i32(parameters[-8] + offset)

    @cute.jit
    def produce(self, shared, lane, walk, next_expert, next_valid, parameters):
        """Fill the ring: the copies of one step, then the rebuild of the scales of the step ``lag`` before it."""
        block, blocks, tasks = walk
        intermediate, w2 = parameters[:2]
        addresses = parameters[2:-11]
        row_count = parameters[-2]
        tile_count = parameters[-7]
        m_tiles = Int32(Uint32(tasks) // Uint32(self.tiles))
        first_row_scales = intermediate + Int64(row_count) * self.padded
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        behind, behind_left, behind_parity = shared, Int32(self.pipeline.stages), Int32(0)
        behind_step = Int32(0)
        copied, ahead, order = Int32(0), Int32(0), Int32(0)
        memory = self.scales.remember()
        alpha, next_factor = parameters[-6], Int32(0)
        if block < tasks:
            next_factor = ptx.load_global_i32(alpha + Int64(next_expert) * 4)
            row_block = self.row_block(next_expert, block)
            ahead = self.copy_ahead(shared, w2 + row_block * self.row_block_bytes)
        # Routes and weights are older than the launch before this one, whose rows are waited for tile by tile.
        start_next()
        is_open = Int32(1)
        first_tasks = cutlass.min(blocks, tasks)
        task = block
        while task < tasks:
            expert, valid, factor = next_expert, next_valid, next_factor
            next_task = take_task(tile_count, tasks, lane)
            m_tile, _ = self.split_task(task)
            row_block = self.row_block(expert, task)
            weights = w2 + row_block * self.row_block_bytes
            first_row = Int64(m_tile) * self.tile_m
            source = intermediate + first_row * self.padded
            row_scales = first_row_scales + first_row * ROW_SCALE_BYTES
            scales = self.scales.locate(addresses, row_block)
            if is_open != 0:
                is_open = await_rows(tile_count, m_tile, self.first_tiles, m_tiles)
            for step in cutlass.range(0, self.steps, 1, unroll=1):
                ptx.wait(stage + self.pipeline.empty, parity)
                if (step == 0) & (lane == 0):
                    self.hand_over(self.record(shared, order), task, valid, factor)
                with cute.arch.elect_one():
                    if copied >= ahead:
                        self.copy_weights(stage, weights, step)
                    if step == 0:
                        self.copy_tables(self.record(shared, order), stage, parameters, first_row)
                    self.copy_rows(stage, source, row_scales, valid)
                    self.scales.copy(stage, addresses, scales, row_block, step)
                weights = weights + WEIGHT_BYTES
                source = source + self.tile_m * ROW_BYTES
                row_scales = row_scales + Int64(row_count) * ROW_SCALE_BYTES
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                if copied >= self.lag:
                    self.finish(memory, addresses, behind, behind_parity, lane, behind_step)
                    behind, behind_left, behind_parity = mma.advance(self.pipeline, behind, behind_left, behind_parity)
                    behind_step = self.advance_step(behind_step)
                words = (next_task, next_expert, next_valid, next_factor)
                words = self.look_up(parameters, tasks, first_tasks, lane, step, words)
                next_task, next_expert, next_valid, next_factor = words
                copied = copied + 1
            # The same in all lanes, which the compiler does not know.
            task = cute.arch.make_warp_uniform(next_task)
            order = order + 1
        self.drain(memory, addresses, (behind, behind_left, behind_parity, behind_step), copied, lane)
        if block < tasks:
            ptx.wait(stage + self.pipeline.empty, parity)
            with cute.arch.elect_one():
                self.end(self.record(shared, order), stage)
        # Who waits for this launch relies on the one before it, too.
        wait_for_previous()

    @cute.jit
    def look_up(self, parameters, tasks, first_tasks, lane, step, words):
        """Look up the task after this one, its expert, valid rows and factor: some in one step, some in a later one.

        The number that was asked for when this task began has come by its middle, and what is loaded by it comes during
        the steps that are left: to lane 0 alone, because a warp is made to wait at once for what all its lanes load.
        Past the last task expert and rows are earlier ones, and nobody asks for them.
        """
        task, expert, valid, factor = words
        if step == self.steps // 2:
            task = first_tasks + task
            if (lane == 0) & (task < tasks):
                expert, valid = self.load_entry(parameters, task)
        if step == self.steps - 1:
            task, expert, valid = (cute.arch.shuffle_sync(word, 0) for word in (task, expert, valid))
            if lane == 0:
                factor = ptx.load_global_i32(parameters[-6] + Int64(expert) * 4)
        return task, expert, valid, factor

    @cute.jit
    def drain(self, memory, addresses, behind, copied, lane):
        """Finish the last stages, nothing being copied any more; ``behind`` are the first one, its phase and step."""
        stage, left, parity, step = behind
        for i in cutlass.range(0, self.lag, 1, unroll=1):
            if copied + i >= self.lag:
                self.finish(memory, addresses, stage, parity, lane, step)
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                step = self.advance_step(step)

    def row_block(self, expert, task):
        """Return the row block of a task, Int64."""
        return Int64(expert) * self.tiles + Int64(self.split_task(task)[1])

    def copy_ahead(self, shared, weights):
        """Start copying weights to stages that nobody used before; return how many."""
        stages = min(self.pipeline.stages, self.steps)
        with cute.arch.elect_one():
            for i in range(stages):
                self.copy_weights(shared + i * self.pipeline.stage_bytes, weights + i * WEIGHT_BYTES, Int32(i))
        return Int32(stages)

    def record(self, shared, order):
        """Return the address of the record of a block's task, which are counted from 0."""
        return shared + self.pipeline.records + (order & (RECORDS - 1)) * self.pipeline.record_bytes

    def hand_over(self, record, task, valid, factor):
        """Tell the consumers what a task is, and the bits of its expert's factor.

        It is told in a task's first step, whose stage consumers have left. So they have ended the tasks before the one
        of that stage, and there are more records than tasks that a ring has stages of.
        """
        store_shared_x4(record, [Uint32(word) for word in (task, valid, factor, 0)])

    def end(self, record, stage):
        """Tell the consumers, in place of a first step, that there is no more task."""
        self.hand_over(record, 0, 0, 0)
        for _ in range(2):
            ptx.arrive(stage + self.pipeline.full)

    def copy_tables(self, record, stage, parameters, first_row):
        """Start copying the pairs and weights of a task's rows, which ``full`` of its first step waits for."""
        full = stage + self.pipeline.full
        size_bytes = Int32(4 * self.tile_m)
        ptx.expect(full, 2 * size_bytes)
        for table, offset in zip(parameters[-11:-9], (self.pipeline.pairs, self.pipeline.row_weights), strict=True):
            ptx.copy_bulk(record + offset, table + first_row * 4, size_bytes, full)

    def copy_weights(self, stage, weights, step):
        """Start the copy of the weights, of K64 in a tail, which ``full`` waits for."""
        full = stage + self.pipeline.full
        size_bytes = cutlass.min(Int32(WEIGHT_BYTES), Int32(self.row_block_bytes) - step * WEIGHT_BYTES)
        ptx.arrive_expecting(full, size_bytes)
        ptx.copy_bulk(stage + self.pipeline.weights, weights, size_bytes, full)

    def copy_rows(self, stage, source, row_scales, valid):
        """Start the copies of the rows, by eights up to the last valid one, and of their scales."""
        full = stage + self.pipeline.full
        payload_bytes = ((valid + 7) >> 3) * Int32(8 * ROW_BYTES)
        scale_bytes = Int32(self.tile_m * ROW_SCALE_BYTES)
        ptx.expect(full, payload_bytes + scale_bytes)
        ptx.copy_bulk(stage + self.pipeline.activations, source, payload_bytes, full)
        ptx.copy_bulk(stage + self.pipeline.activation_scales, row_scales, scale_bytes, full)

    def finish(self, memory, addresses, stage, parity, lane, step):
        """Rebuild the scales of a stage once they have landed, and arrive on ``full``."""
        ptx.wait(stage + self.pipeline.landed, parity)
        self.scales.rebuild(memory, addresses, stage, lane, step)
        mma.arrive_once(stage + self.pipeline.full)

    @cute.jit
    def advance_step(self, step):
        """Count the steps of a task round and round."""
        step = step + 1
        if step == self.steps:
            step = Int32(0)
        return step

    @cute.jit
    def consume(self, shared, thread, parameters):
        """Multiply the stages of every task that is handed over, and store the results of the rows that are valid."""
        route_output = parameters[-5]
        lane, warp = thread & 31, thread >> 5
        weight_offset = warp * mma.CHUNK_BYTES + lane * 16
        scale_offset = self.pipeline.scales + (warp * 8 + (lane >> 2)) * 16
        sums = cute.make_rmem_tensor((4 * self.product.slots,), Float32)
        ring = (shared, Int32(self.pipeline.stages), Int32(0))
        order = Int32(0)
        valid = self.take_over(self.record(shared, order), ring)
        while valid > 0:
            for index in cutlass.range_constexpr(4 * self.product.slots):
                sums[index] = Float32(0.0)
            ring = self.multiply_steps(ring, lane, weight_offset, scale_offset, valid, sums)
            self.store(self.record(shared, order), route_output, valid, sums)
            order = order + 1
            valid = self.take_over(self.record(shared, order), ring)

    def take_over(self, record, ring):
        """Wait for a task and return its valid rows, of which there are none after the last task."""
        stage, _, parity = ring
        ptx.wait(stage + self.pipeline.full, parity)
        return cute.arch.make_warp_uniform(Int32(ptx.load_shared(record + 4)))

    @cute.jit
    def multiply_steps(self, ring, lane, weight_offset, scale_offset, valid, sums):
        """Multiply the stages of a task; return the stage after them, the stages to the ring's end, and its parity."""
        stage, left, parity = ring
        # The number of steps is kept from the compiler (nvidia-cutlass-dsl 4.8.1), which spills registers where it
        # knows that there are one or two.
        whole_steps = Int32(select(valid >= 0, Uint32(self.whole_steps), Uint32(0)))
        for _ in cutlass.range(0, whole_steps, 1, unroll=1):
            ptx.wait(stage + self.pipeline.full, parity)
            self.product.multiply(stage, lane, weight_offset, scale_offset, valid, sums)
            stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
        if cutlass.const_expr(self.steps > self.whole_steps):
            ptx.wait(stage + self.pipeline.full, parity)
            self.product.multiply(stage, lane, weight_offset, scale_offset, valid, sums, mma.TAIL_COLUMNS)
            stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
        return stage, left, parity

    @cute.jit
    def store(self, record, route_output, valid, sums):
        """Store the results of a task's valid rows."""
        # Read anew, not kept: the main loop needs the registers. Where all steps are whole the compiler keeps it else.
        thread = cute.arch.thread_idx()[0] if self.steps > self.whole_steps else ptx.read_thread()
        lane, warp = thread & 31, thread >> 5
        task, _, factor, _ = ptx.load_shared_x4(record)
        _, tile = self.split_task(Int32(task))
        first_column = Int64(tile * 128 + warp * 32 + (lane >> 2))
        for slot in cutlass.range_constexpr(self.product.slots):
            # The same in all lanes; and what slots need is not held for all of them at once.
            if tokens.token_of_slot(0, slot) < valid:
                row = tokens.token_of_slot(lane, slot)
                if row < valid:
                    pair = Int32(ptx.load_shared(record + self.pipeline.pairs + row * 4))
                    row_weight = ptx.float_of_bits(ptx.load_shared(record + self.pipeline.row_weights + row * 4))
                    target = route_output + (Int64(pair) * self.hidden + first_column) * 2
                    self.store_column(target, sums, slot, ptx.float_of_bits(factor), row_weight)

    def store_column(self, target, sums, slot, factor, row_weight):
        """Store the four results a lane has of one row."""
        for nt in range(4):
            value = ptx.mul_rn(sums[4 * slot + nt], Float32(mma.PRODUCT_FACTOR))
            value = ptx.mul_rn(ptx.mul_rn(value, factor), row_weight)
            ptx.store_global_bf16(target + 16 * nt, value)
