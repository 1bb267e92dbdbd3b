"""Kernel of family ``micro_fc2`` for sm_90a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.scales_ahead_sm_90a import InlineRowsAhead, NativeRowsAhead
from planfreeze.kernels.mma.stage_sm_90a import CONSUMERS, ROW_BYTES, ROW_SCALE_BYTES, WEIGHT_BYTES
from planfreeze.kernels.mma.tasks import load_id, pair_of, split_task
from planfreeze.kernels.moe.geometry import padded_width, row_tiles
from planfreeze.kernels.moe.micro_fc2 import pipeline_sm_90a

__all__ = ["MicroFc2"]

COLUMN_STRIDE = 4 * mma.CHUNK_BYTES
"""Weights of 128 rows and K32."""


class MicroFc2:
    """Second projection of every route, one route and one tile of 128 output rows per task.

    Math: ``route_output[pair, row] = bf16(alpha[e] * topk_weights[pair] * sum_k a[pair, k] * w[e, row, k])`` with
    e = topk_ids[pair]. Every group of 32 K is a product of its own, rescaled and added in fp32, in K order; then the
    sum is multiplied by 64 (see ``mma``), alpha and weight, every operation rounded on its own. Routes with an id
    outside 0..experts-1 get zeros.

    Arguments: ``intermediate`` u8, for ``rows`` rows: payload ``(rows, padded K)`` in the byte order of sm_90a, then
    f32 scales ``(padded K / 128, rows, 4)``; ``w2`` 32-bit words ``[expert][128-row tile][K128][K32][32-row
    chunk][lane][nt]``; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``, ``bases`` and ``raw``;
    ``topk_ids`` and ``topk_weights`` f32 ``(pairs,)``, ``alpha`` f32 ``(experts,)``, ``route_output`` bf16
    ``(pairs, hidden)``; then ``pairs``, ``experts`` and ``rows``. Tensors are 16-byte aligned, ids and weights to their
    own size.

    Tiles: 192 threads. Warps 0 to 3, one warpgroup, multiply 32 rows each. Warp 4 fills a ring of 4 stages of K128 by
    bulk copies, and warp 5 rebuilds the staged scales to fp32, so that both kinds of scale storage reach the very same
    instructions of the warps that multiply. Steps are numbered through, whatever the task: the ring never drains
    between tasks, which are as short as one step. When K is an odd multiple of 64 the last step of a task has K64.
    44,032 bytes of shared memory (inline: 43,520) and at most 80 registers: 4 blocks per SM. Persistent blocks stride
    over the tasks, pair-major. sm_90a.

    Parameters
    ----------
    launch : LaunchInfo
        That of :func:`~planfreeze.kernels.moe.micro_fc2.pipeline_sm_90a`.
    hidden, intermediate : int
        Output rows, a multiple of 256, and K, a multiple of 64.
    id_bits : int
        32 or 64: width of the expert ids.
    csf_inline : bool
        Read scales from inline storage.
    """

    def __init__(
        self, *, launch: LaunchInfo, hidden: int, intermediate: int, id_bits: int, csf_inline: bool = False
    ) -> None:
        self.launch = launch
        self.pipeline = pipeline_sm_90a(csf_inline=csf_inline)
        assert launch == self.pipeline.launch
        self.hidden = hidden
        self.id_bits = id_bits
        self.tiles = row_tiles(hidden)
        self.row_block_bytes = 128 * intermediate // 2
        self.padded = padded_width(intermediate)
        self.steps = row_tiles(intermediate)
        self.whole_steps = intermediate // 128
        self.stages_ahead = min(self.pipeline.stages, self.steps)
        storage = InlineRowsAhead if csf_inline else NativeRowsAhead
        self.scales = storage(self.pipeline, intermediate=intermediate)

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "MicroFc2"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        topk_ids, pairs = parameters[-7], parameters[-3]
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=128).toint())
        walk = (block, blocks, pairs * self.tiles)
        if thread == 0:
            mma.init_stages(self.pipeline, shared)
        first_id = Int32(-1) if cutlass.const_expr(self.id_bits == 32) else Int64(-1)
        if block < walk[2]:
            first_id = load_id(topk_ids, pair_of(block, self.tiles), self.id_bits)
        cute.arch.sync_threads()
        if thread < CONSUMERS:
            self.consume(shared, thread, walk, first_id, parameters)
        elif thread < CONSUMERS + 32:
            self.copy(shared, thread & 31, walk, first_id, parameters)
        else:
            self.rebuild(shared, thread & 31, walk, first_id, parameters)

    @cute.jit
    def copy(self, shared, lane, walk, next_id, parameters):
        """Fill the ring: weights, scales and activations of every step."""
        block, blocks, tasks = walk
        intermediate, w2 = parameters[:2]
        addresses = parameters[2:-7]
        topk_ids, experts, rows = parameters[-7], parameters[-2], parameters[-1]
        first_row_scales = intermediate + Int64(rows) * self.padded
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        copied = Int32(0)
        memory = self.scales.remember()
        self.look_ahead(memory, addresses, block, next_id, experts, lane)
        ahead = self.copy_ahead(shared, memory, w2, addresses, block, next_id, experts)
        # Ids, weights and scales are older than the launch before this one, which makes the intermediate.
        follow()
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            # Ids are loaded one task ahead: a load takes about as long as a step.
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tiles), self.id_bits)
            if (current >= 0) & (current < experts):
                pair, _ = split_task(task, self.tiles)
                row_block = self.row_block(current, task)
                weights = w2 + row_block * self.row_block_bytes
                row = intermediate + Int64(pair) * self.padded
                row_scales = first_row_scales + Int64(pair) * ROW_SCALE_BYTES
                scales = self.scales.locate(addresses, row_block)
                if copied < ahead:
                    self.copy_rows_ahead(shared, row, row_scales, rows)
                self.scales.start(memory)
                for step in cutlass.range(0, self.steps, 1, unroll=1):
                    if copied >= ahead:
                        found = self.scales.find(memory, step)
                        ptx.wait(stage + self.pipeline.empty, parity)
                        with cute.arch.elect_one():
                            self.scales.copy_raw(stage, addresses, found)
                            self.scales.copy(stage, addresses, scales, row_block, step)
                            self.copy_weights(stage, weights, step)
                            self.copy_row(stage, row, row_scales)
                    weights = weights + WEIGHT_BYTES
                    row = row + ROW_BYTES
                    row_scales = row_scales + Int64(rows) * ROW_SCALE_BYTES
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                    if step == self.steps - 1:
                        self.look_ahead(memory, addresses, task + blocks, next_id, experts, lane)
                    copied = copied + 1
            else:
                self.look_ahead(memory, addresses, task + blocks, next_id, experts, lane)

    @cute.jit
    def rebuild(self, shared, lane, walk, next_id, parameters):
        """Rebuild the scales of every step once they have landed."""
        block, blocks, tasks = walk
        addresses = parameters[2:-7]
        topk_ids, experts = parameters[-7], parameters[-2]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(0)
        memory = self.scales.remember()
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tiles), self.id_bits)
            if (current >= 0) & (current < experts):
                for step in cutlass.range(0, self.steps, 1, unroll=1):
                    ptx.wait(stage + self.pipeline.landed, parity)
                    self.scales.rebuild(memory, addresses, stage, lane, step)
                    mma.arrive_once(stage + self.pipeline.full)
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)

    def row_block(self, expert, task):
        """Return the row block of a task, Int64."""
        return Int64(expert) * self.tiles + Int64(split_task(task, self.tiles)[1])

    @cute.jit
    def look_ahead(self, memory, addresses, task, current, experts, lane):
        """Look at the scales of a task, if it has an expert."""
        if (current >= 0) & (current < experts):
            self.scales.look_ahead(memory, addresses, self.row_block(current, task), lane)

    @cute.jit
    def copy_ahead(self, shared, memory, w2, addresses, task, current, experts):
        """Start copying weights and scales of the first task to stages that nobody used before; return how many.

        There is time: ``micro_act`` lets this launch start while the first projection still multiplies.
        """
        copied = Int32(0)
        if (current >= 0) & (current < experts):
            row_block = self.row_block(current, task)
            weights = w2 + row_block * self.row_block_bytes
            scales = self.scales.locate(addresses, row_block)
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(self.stages_ahead):
                    stage = shared + i * self.pipeline.stage_bytes
                    self.copy_weights(stage, weights + i * WEIGHT_BYTES, Int32(i))
            self.scales.start(memory)
            for i in cutlass.range_constexpr(self.stages_ahead):
                stage = shared + i * self.pipeline.stage_bytes
                found = self.scales.find(memory, Int32(i))
                with cute.arch.elect_one():
                    self.scales.copy_raw(stage, addresses, found)
                    self.scales.copy(stage, addresses, scales, row_block, Int32(i))
            copied = Int32(self.stages_ahead)
        return copied

    def copy_rows_ahead(self, shared, row, row_scales, rows):
        """Start copying the intermediate for the steps whose weights were copied ahead."""
        with cute.arch.elect_one():
            for i in range(self.stages_ahead):
                stage = shared + i * self.pipeline.stage_bytes
                self.copy_row(stage, row + i * ROW_BYTES, row_scales + Int64(rows) * (i * ROW_SCALE_BYTES))

    def copy_weights(self, stage, weights, step):
        """Start the copy of the weights, of K64 in a tail, which ``full`` waits for."""
        full = stage + self.pipeline.full
        size_bytes = cutlass.min(Int32(WEIGHT_BYTES), Int32(self.row_block_bytes) - step * WEIGHT_BYTES)
        ptx.expect(full, size_bytes)
        ptx.copy_bulk(stage + self.pipeline.weights, weights, size_bytes, full)

    def copy_row(self, stage, row, row_scales):
        """Start the copies of the intermediate row and its scales, which ``full`` waits for.

        It waits for an arrival here and one of who rebuilds scales, however early weights were copied.
        """
        full = stage + self.pipeline.full
        ptx.arrive_expecting(full, Int32(ROW_BYTES + ROW_SCALE_BYTES))
        ptx.copy_bulk(stage + self.pipeline.activations, row, Int32(ROW_BYTES), full)
        ptx.copy_bulk(stage + self.pipeline.activation_scales, row_scales, Int32(ROW_SCALE_BYTES), full)

    @cute.jit
    def consume(self, shared, thread, walk, next_id, parameters):
        """Multiply the stages of every task; lanes 0, 4, .. 28 store the results of their four rows."""
        block, blocks, tasks = walk
        topk_ids, topk_weights, alpha, route_output, _, experts, _ = parameters[-7:]
        lane, warp = thread & 31, thread >> 5
        quad = lane >> 2
        weight_offset = warp * mma.CHUNK_BYTES + lane * 16
        scale_offset = self.pipeline.scales + (warp * 8 + quad) * 16
        first_row = warp * 32 + quad
        sums = cute.make_rmem_tensor((4,), Float32)
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(0)
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tiles), self.id_bits)
            pair, tile = split_task(task, self.tiles)
            factor, weight = Float32(0.0), Float32(0.0)
            for nt in cutlass.range_constexpr(4):
                sums[nt] = Float32(0.0)
            if (current >= 0) & (current < experts):
                factor = ptx.load_global_f32(alpha + Int64(current) * 4)
                weight = ptx.load_global_f32(topk_weights + Int64(pair) * 4)
                for _ in cutlass.range(0, self.whole_steps, 1, unroll=1):
                    ptx.wait(stage + self.pipeline.full, parity)
                    mma.multiply_row(self.pipeline, stage, weight_offset, scale_offset, COLUMN_STRIDE, sums)
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                if cutlass.const_expr(self.steps > self.whole_steps):
                    ptx.wait(stage + self.pipeline.full, parity)
                    mma.multiply_row(
                        self.pipeline, stage, weight_offset, scale_offset, COLUMN_STRIDE, sums, mma.TAIL_COLUMNS
                    )
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
            if (lane & 3) == 0:
                place = Int64(pair) * self.hidden + Int64(tile * 128 + first_row)
                target = route_output + place * 2
                for nt in cutlass.range_constexpr(4):
                    value = ptx.mul_rn(ptx.mul_rn(sums[nt], Float32(mma.PRODUCT_FACTOR)), factor)
                    ptx.store_global_bf16(target + 16 * nt, ptx.mul_rn(value, weight))
