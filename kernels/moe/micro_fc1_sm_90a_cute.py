"""Kernel of family ``micro_fc1`` for sm_90a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.scales_ahead_sm_90a import InlineHalvesAhead, NativeHalvesAhead
from planfreeze.kernels.mma.stage_sm_90a import CONSUMERS, ROW_BYTES, ROW_SCALE_BYTES, WEIGHT_BYTES
from planfreeze.kernels.mma.tasks import load_id, pair_of, split_task
from planfreeze.kernels.moe.micro_fc1 import pipeline_sm_90a

__all__ = ["MicroFc1"]

HALF_WEIGHT_BYTES = WEIGHT_BYTES // 2
"""Weights of 64 rows and K128."""


class MicroFc1:
    """First projection of every route, one route, one tile of 64 up and 64 gate rows and one part of K per task.

    Math: ``projections[part, pair, column] = sum_k a[token, k] * w[e, row, k]`` with e = topk_ids[pair] and token =
    pair / top_k, over the K of the part, one of ``parts`` equal ones. Every group of 32 K is a
    product of its own, rescaled and added in fp32, in K order; every operation is rounded on its own. ``micro_act``
    adds the parts. Routes with an id outside 0..experts-1 are skipped: their rows are not written.

    Arguments: ``a8`` u8 ``(tokens, hidden)`` in the byte order of sm_90a, ``a_scale`` f32 ``(tokens, hidden / 32)``,
    ``w13`` 32-bit words ``[expert][up, gate][64-row tile][K128][K32][32-row chunk][lane][nt]``; ``scales`` u8, the
    native plane, or with ``csf_inline`` ``tiles``, ``bases`` and ``raw``; ``topk_ids`` ``(pairs,)``, ``projections``
    f32 ``(parts, pairs, 2 * intermediate)``, gate columns first; then ``pairs`` and ``experts``. Tensors are 16-byte
    aligned, ids to their own size.

    Tiles: 192 threads. Warps 0 to 3, one warpgroup, multiply: 0 and 1 the up rows, 2 and 3 the gate rows. Warp 4 fills
    a ring of 4 stages of K128 by bulk copies, and warp 5 rebuilds the staged scales to fp32, so that both kinds of
    scale storage reach the very same instructions of the warps that multiply. What a block's first stages hold but for
    activations is copied before the launch before this one has ended, and raw words once headers are there. 44,032
    bytes of shared memory (inline: 43,520) and at most 80 registers: 4 blocks per SM. Persistent blocks stride over the
    tasks, pair-major; the parts of a tile are neighbours. sm_90a.

    Parameters
    ----------
    launch : LaunchInfo
        That of :func:`~planfreeze.kernels.moe.micro_fc1.pipeline_sm_90a`.
    hidden, intermediate : int
        K, a multiple of 256, and rows of each half, a multiple of 64.
    top_k : int
        Routes per token.
    id_bits : int
        32 or 64: width of the expert ids.
    csf_inline : bool
        Read scales from inline storage; the last 128-row tile of each half must have 64 rows.
    parts : int
        Parts of K, which divide its steps of 128 evenly.
    """

    def __init__(
        self,
        *,
        launch: LaunchInfo,
        hidden: int,
        intermediate: int,
        top_k: int,
        id_bits: int,
        csf_inline: bool = False,
        parts: int = 1,
    ) -> None:
        self.launch = launch
        self.pipeline = pipeline_sm_90a(csf_inline=csf_inline)
        assert launch == self.pipeline.launch
        self.hidden = hidden
        self.intermediate = intermediate
        self.top_k = top_k
        self.id_bits = id_bits
        self.parts = parts
        self.steps = hidden // 128 // parts
        self.tiles = intermediate // 64
        self.tasks_per_pair = self.tiles * parts
        storage = InlineHalvesAhead if csf_inline else NativeHalvesAhead
        self.scales = storage(self.pipeline, hidden=hidden, intermediate=intermediate, parts=parts)
        # Not the first, whose own headers are just being used: a load takes about as long as a step.
        self.look_ahead_step = min(1, self.steps - 1)
        self.stages_ahead = min(self.pipeline.stages, self.steps)

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "MicroFc1"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        topk_ids, _, pairs, _ = parameters[-4:]
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=128).toint())
        walk = (block, blocks, pairs * self.tasks_per_pair)
        if thread == 0:
            mma.init_stages(self.pipeline, shared)
        first_id = Int32(-1) if cutlass.const_expr(self.id_bits == 32) else Int64(-1)
        if block < walk[2]:
            first_id = load_id(topk_ids, pair_of(block, self.tasks_per_pair), self.id_bits)
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
        a8, a_scale, w13 = parameters[:3]
        addresses = parameters[3:-4]
        topk_ids, experts = parameters[-4], parameters[-1]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        copied = Int32(0)
        memory = self.scales.remember()
        self.look_ahead(memory, addresses, block, next_id, experts, lane)
        ahead = self.copy_ahead(shared, w13, addresses, block, next_id, experts)
        # Ids, weights and scales are older than the launch before this one, which makes the activations.
        follow()
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            # Ids are loaded one task ahead: a load takes about as long as a step.
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tasks_per_pair), self.id_bits)
            if (current >= 0) & (current < experts):
                pair, tile, part = self.divide(task)
                expert = Int64(current)
                token = Int64(pair // Uint32(self.top_k))
                weights = self.locate_weights(w13, expert, tile, part)
                first_step = Int64(part * self.steps)
                row = a8 + token * self.hidden + first_step * ROW_BYTES
                row_scales = a_scale + token * (self.hidden // 8) + first_step * ROW_SCALE_BYTES
                scales, scale_step = self.scales.locate(addresses, expert, tile, part)
                if copied < ahead:
                    self.copy_rows_ahead(shared, row, row_scales)
                self.scales.start(memory)
                for step in cutlass.range(0, self.steps, 1, unroll=1):
                    found = self.scales.find(memory, step)
                    ptx.wait(stage + self.pipeline.empty, parity)
                    with cute.arch.elect_one():
                        if copied >= ahead:
                            self.scales.copy(stage, addresses, scales, expert, tile, step, arrives=False)
                            self.copy_weights(stage, weights)
                            self.copy_row(stage, row, row_scales)
                        self.scales.copy_raw(stage, addresses, tile, found)
                        ptx.arrive(stage + self.pipeline.landed)
                    weights = weights + HALF_WEIGHT_BYTES
                    row = row + ROW_BYTES
                    row_scales = row_scales + ROW_SCALE_BYTES
                    scales = scales + scale_step
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                    if step == self.look_ahead_step:
                        self.look_ahead(memory, addresses, task + blocks, next_id, experts, lane)
                    copied = copied + 1
            else:
                self.look_ahead(memory, addresses, task + blocks, next_id, experts, lane)

    @cute.jit
    def rebuild(self, shared, lane, walk, next_id, parameters):
        """Rebuild the scales of every step once they have landed."""
        block, blocks, tasks = walk
        addresses = parameters[3:-4]
        topk_ids, experts = parameters[-4], parameters[-1]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(0)
        memory = self.scales.remember()
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tasks_per_pair), self.id_bits)
            if (current >= 0) & (current < experts):
                _, tile, _ = self.divide(task)
                for step in cutlass.range(0, self.steps, 1, unroll=1):
                    ptx.wait(stage + self.pipeline.landed, parity)
                    if step == 0:
                        self.scales.keep_rows(memory, stage, lane, tile)
                    self.scales.rebuild(memory, addresses, stage, lane)
                    mma.arrive_once(stage + self.pipeline.full)
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)

    def divide(self, task):
        """Return the pair of a task, Uint32, its tile and its part of K, both Int32."""
        place, part = split_task(task, self.parts)
        return *split_task(place, self.tiles), part

    def locate_weights(self, w13, expert, tile, part):
        """Return the address of the first up words of a task, Int64."""
        tile_words = w13 + (expert * (2 * self.tiles) + Int64(tile)) * (32 * self.hidden)
        return tile_words + Int64(part * (self.steps * HALF_WEIGHT_BYTES))

    @cute.jit
    def look_ahead(self, memory, addresses, task, current, experts, lane):
        """Look at the scales of a task, if it has an expert."""
        if (current >= 0) & (current < experts):
            _, tile, part = self.divide(task)
            self.scales.look_ahead(memory, addresses, Int64(current), tile, lane, part)

    @cute.jit
    def copy_ahead(self, shared, w13, addresses, task, current, experts):
        """Start copying weights and scales of the first task to stages that nobody used before; return how many."""
        copied = Int32(0)
        if (current >= 0) & (current < experts):
            _, tile, part = self.divide(task)
            expert = Int64(current)
            weights = self.locate_weights(w13, expert, tile, part)
            scales, scale_step = self.scales.locate(addresses, expert, tile, part)
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(self.stages_ahead):
                    stage = shared + i * self.pipeline.stage_bytes
                    source = scales + scale_step * i
                    self.scales.copy(stage, addresses, source, expert, tile, Int32(i), arrives=False)
                    self.copy_weights(stage, weights + i * HALF_WEIGHT_BYTES)
            copied = Int32(self.stages_ahead)
        return copied

    def copy_rows_ahead(self, shared, row, row_scales):
        """Start copying the activations for the steps whose weights were copied ahead."""
        with cute.arch.elect_one():
            for i in range(self.stages_ahead):
                stage = shared + i * self.pipeline.stage_bytes
                self.copy_row(stage, row + i * ROW_BYTES, row_scales + i * ROW_SCALE_BYTES)

    def copy_weights(self, stage, weights):
        """Start the copies of the weights of both groups, which ``full`` waits for."""
        full = stage + self.pipeline.full
        target = stage + self.pipeline.weights
        size_bytes = Int32(HALF_WEIGHT_BYTES)
        gate = weights + Int64(self.hidden * self.intermediate // 2)
        ptx.expect(full, Int32(WEIGHT_BYTES))
        ptx.copy_bulk(target, weights, size_bytes, full)
        ptx.copy_bulk(target + HALF_WEIGHT_BYTES, gate, size_bytes, full)

    def copy_row(self, stage, row, row_scales):
        """Start the copies of the activation row and its scales, which ``full`` waits for.

        It waits for an arrival here and one of who rebuilds scales, however early weights were copied.
        """
        full = stage + self.pipeline.full
        ptx.arrive_expecting(full, Int32(ROW_BYTES + ROW_SCALE_BYTES))
        ptx.copy_bulk(stage + self.pipeline.activations, row, Int32(ROW_BYTES), full)
        ptx.copy_bulk(stage + self.pipeline.activation_scales, row_scales, Int32(ROW_SCALE_BYTES), full)

    @cute.jit
    def consume(self, shared, thread, walk, next_id, parameters):
        """Multiply the stages of every task; lanes 0, 4, .. 28 store the sums of their four rows."""
        block, blocks, tasks = walk
        topk_ids, projections, pairs, experts = parameters[-4:]
        lane, warp = thread & 31, thread >> 5
        quad, group, chunk = lane >> 2, warp >> 1, warp & 1
        weight_offset = group * HALF_WEIGHT_BYTES + chunk * mma.CHUNK_BYTES + lane * 16
        scale_offset = self.pipeline.scales + (warp * 8 + quad) * 16
        # Rows are up, then gate; columns are gate, then up.
        column = (1 - group) * self.intermediate + chunk * 32 + quad
        sums = cute.make_rmem_tensor((4,), Float32)
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(0)
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            current = next_id
            if task + blocks < tasks:
                next_id = load_id(topk_ids, pair_of(task + blocks, self.tasks_per_pair), self.id_bits)
            if (current >= 0) & (current < experts):
                for nt in cutlass.range_constexpr(4):
                    sums[nt] = Float32(0.0)
                for _ in cutlass.range(0, self.steps, 1, unroll=1):
                    ptx.wait(stage + self.pipeline.full, parity)
                    mma.multiply_row(self.pipeline, stage, weight_offset, scale_offset, 2 * mma.CHUNK_BYTES, sums)
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                if (lane & 3) == 0:
                    pair, tile, part = self.divide(task)
                    row = Int64(part) * pairs + Int64(pair)
                    target = projections + (row * (2 * self.intermediate) + Int64(tile * 64 + column)) * 4
                    for nt in cutlass.range_constexpr(4):
                        ptx.store_global_f32(target + 32 * nt, ptx.mul_rn(sums[nt], Float32(mma.PRODUCT_FACTOR)))
