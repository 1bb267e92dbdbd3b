"""Kernel of family ``split_fc1`` for sm_90a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import bits_of_float, commit_copies, pack_bf16, select, store_global_x1, wait_copies
from planfreeze.kernels.mma.mxfp8 import (
    NOT_FINITE,
    block_amax,
    block_scale,
    exchange,
    larger,
    low_high,
    round_e4m3,
    scale_factor,
)
from planfreeze.kernels.mma.rows_sm_90a import RowProduct
from planfreeze.kernels.mma.scales_sm_90a import InlineHalves, NativeHalves
from planfreeze.kernels.mma.stage_sm_90a import (
    CONSUMERS,
    ROW_BYTES,
    ROW_SCALE_BYTES,
    SCALE_PLANE_BYTES,
    SWIZZLE_BYTES,
    WEIGHT_BYTES,
)
from planfreeze.kernels.mma.words import store_shared_x4
from planfreeze.kernels.moe.geometry import padded_width
from planfreeze.kernels.moe.micro_act_cute import approximate_sigmoid, sigmoid, silu_product
from planfreeze.kernels.moe.progress_cute import count_done
from planfreeze.kernels.moe.split_fc1 import THREADS_SM_90A, pipeline_sm_90a, warpgroups_sm_90a

__all__ = ["SplitFc1"]

HALF_WEIGHT_BYTES = WEIGHT_BYTES // 2
"""Weights of 64 rows and K128."""
QUAD_BITS = (4, 8, 16)
"""Lane bits of the eight lanes that have the rows of one group of 32 columns for the same tokens."""


class SplitFc1:
    """First projection, activation and quantisation of grouped tokens: one m tile, 64 up and 64 gate rows per task.

    Math: with e = tile_expert[m] and token = token_map[row] / top_k, gate and up are ``alpha[e] * sum_k a[token, k] *
    w[e, weight_row, k]`` in fp32: every group of 32 K is a product of its own, rescaled and added in K order, every
    operation rounded on its own. Then ``bf16(silu(min(gate, L)) * clamp(up, -L, L))`` as in ``micro_act`` but from
    fp32, and MXFP8 as in :mod:`planfreeze.kernels.mma.mxfp8`.

    Arguments: ``a8`` u8 ``(tokens, hidden)`` in the byte order of sm_90a, ``a_scale`` f32 ``(tokens, hidden / 32)``,
    ``w13`` 32-bit words ``[expert][up, gate][64-row tile][K128][K32][32-row chunk][lane][nt]``; ``scales`` u8, the
    native plane, or with ``csf_inline`` ``tiles``, ``bases`` and ``raw``; ``token_map`` i32 ``(rows,)``,
    ``tile_expert`` and ``tile_valid`` i32 ``(m_tiles,)``; ``tile_count`` i32 ``(3 + m_tiles,)``, whose counters it
    counts up (see :mod:`planfreeze.kernels.moe.progress_cute`); ``alpha`` f32 ``(experts,)``; ``intermediate`` u8 of
    ``rows`` rows in the order of :func:`planfreeze.kernels.moe.reference_rows.arrange_rows`; then ``tokens``,
    ``experts``, ``rows`` and ``m_tiles``. Tensors are 16-byte aligned. Of m tile m the first tile_valid[m] rows are
    written, their padding columns with zeros.

    Tiles: 160 threads. Warps 0 to 3, one warpgroup, multiply: 0 and 1 the up rows, 2 and 3 the gate rows. Warp 4 fills
    a ring of 4 stages of K128: weights and scales by bulk copies, activations token by token by 16-byte copies. ``lag``
    steps later it rebuilds the staged scales to fp32, so that both kinds of scale storage meet the very same arithmetic
    of the other warps, and hands the stage over. Gate and up of a column meet through shared memory: the
    warps of the up rows finish one half of the tokens, those of the gate rows the other. 51,200 bytes of shared memory
    for 8 tokens, 57,344 for 16 and 73,728 for 32 (inline: 69,632); 4, 4 and 3 blocks per SM. Persistent blocks stride
    over the tasks of the live m tiles, m-major: tasks of one m tile share its activations in L2. sm_90a.

    Parameters
    ----------
    launch : LaunchInfo
        160 threads and the shared memory of :func:`~planfreeze.kernels.moe.split_fc1.pipeline_sm_90a`.
    hidden, intermediate : int
        K, a multiple of 256, and rows of each half, a multiple of 64.
    top_k : int
        Routes per token.
    tile_m : int
        Rows of an m tile: 8, 16 or 32.
    limit : str
        Decimal text of L; empty for none.
    fast_math : bool
        Use the approximate exponential and reciprocal.
    csf_inline : bool
        Read scales from inline storage; the last 128-row tile of each half must have 64 rows.
    """

    def __init__(
        self,
        *,
        launch: LaunchInfo,
        hidden: int,
        intermediate: int,
        top_k: int,
        tile_m: int,
        limit: str = "",
        fast_math: bool = False,
        csf_inline: bool = False,
    ) -> None:
        self.launch = launch
        self.warpgroups = warpgroups_sm_90a(tile_m=tile_m, intermediate=intermediate)
        self.pipeline = pipeline_sm_90a(tile_m=tile_m, csf_inline=csf_inline, warpgroups=self.warpgroups)
        assert launch.block == (THREADS_SM_90A[self.warpgroups], 1, 1)
        assert launch.shared_bytes == self.pipeline.block_bytes
        # For more, registers would be spilled (nvidia-cutlass-dsl 4.8.1): the warp that rebuilds scales has, without a
        # warpgroup of its own, as many as those that multiply.
        if self.warpgroups > 1:
            long_slots = 8
        elif csf_inline:
            long_slots = 6
        else:
            long_slots = 2 if intermediate == 64 else 4
        self.product = RowProduct(
            self.pipeline, tile_m=tile_m, column_stride=2 * mma.CHUNK_BYTES, long_slots=long_slots
        )
        self.hidden = hidden
        self.intermediate = intermediate
        self.padded = padded_width(intermediate)
        self.top_k = top_k
        self.tile_m = tile_m
        self.limit = float(limit) if limit else None
        self.sigmoid = approximate_sigmoid if fast_math else sigmoid
        self.steps = hidden // 128
        self.tiles = intermediate // 64
        # The tile whose columns are followed by 64 of padding, or none.
        self.short_tile = self.tiles - 1 if intermediate % 128 else -1
        # Less than a task's steps: its first step is rebuilt in its own loop, which knows which half of a tile it is.
        self.lag = min(2, self.steps - 1)
        storage = InlineHalves if csf_inline else NativeHalves
        self.scales = storage(self.pipeline, hidden=hidden, intermediate=intermediate)

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "SplitFc1"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        # The producer arrives on ``full`` when it starts the copies and when it has rebuilt the scales.
        thread, shared, walk = self.begin(parameters, 2)
        if thread >= CONSUMERS:
            self.produce(shared, thread & 31, walk, parameters)
        else:
            self.consume(shared, thread, walk, parameters)

    @cute.jit
    def begin(self, parameters, full_arrivals: Constexpr):
        """Set up the stages and wait for the launch before; return the thread, its block's memory and its tasks."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        # The swizzle follows address bits, so the operands' alignment counts from zero.
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=SWIZZLE_BYTES).toint())
        if thread == 0:
            mma.init_stages(self.pipeline, shared, full_arrivals)
        follow()
        walk = (block, blocks, ptx.load_global_i32(parameters[-7]) * (self.tiles // self.warpgroups))
        cute.arch.sync_threads()
        return thread, shared, walk

    def split_task(self, task):
        """Return the m tile and the first 64-row tile of a task, both Int32."""
        tasks = Uint32(self.tiles // self.warpgroups)
        m_tile = Uint32(task) // tasks
        return Int32(m_tile), Int32((Uint32(task) - m_tile * tasks) * Uint32(self.warpgroups))

    # --- producer -----------------------------------------------------------------------------------------------

    def load_tables(self, parameters, task, lane):
        """Load the expert and the valid rows of a task's m tile, and the pair of its row ``lane``."""
        tile_expert, tile_valid = parameters[-9:-7]
        m_tile, _ = self.split_task(task)
        return (
            ptx.load_global_i32(tile_expert + Int64(m_tile) * 4),
            ptx.load_global_i32(tile_valid + Int64(m_tile) * 4),
            self.load_pair(parameters, task, lane),
        )

    def load_pair(self, parameters, task, lane):
        """Load the pair of a lane's row of a task."""
        m_tile, _ = self.split_task(task)
        row = Int64(m_tile) * self.tile_m + Int64(lane & (self.tile_m - 1))
        return ptx.load_global_i32(parameters[-10] + row * 4)

    def spread_tokens(self, token, lane):
        """Return the tokens whose activations a lane copies, from the one token every lane has."""
        return [cute.arch.shuffle_sync(token, 4 * i + (lane >> 3)) for i in range(self.tile_m // 4)]

    @cute.jit
    def produce(self, shared, lane, walk, parameters):
        """Fill the ring: the copies of one step, then the rebuild of the scales of the step ``lag`` before it."""
        block, blocks, tasks = walk
        a8, a_scale, w13 = parameters[:3]
        addresses = parameters[3:-10]
        alpha = parameters[-6]
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(1)
        ring = (shared, Int32(self.pipeline.stages), Int32(0))
        record, record_left = shared, Int32(self.pipeline.stages)
        copied = Int32(0)
        memory = self.scales.remember()
        next_expert, next_valid, next_pair = Int32(0), Int32(0), Int32(0)
        next_factor = Int32(0)
        if block < tasks:
            next_expert, next_valid, next_pair = self.load_tables(parameters, block, lane)
            next_factor = ptx.load_global_i32(alpha + Int64(next_expert) * 4)
        for task in cutlass.range(block, tasks, blocks, unroll=1):
            # Tables are loaded one task ahead: a load takes about as long as a step.
            expert, valid, pair, factor = next_expert, next_valid, next_pair, next_factor
            if task + blocks < tasks:
                next_expert, next_valid, next_pair = self.load_tables(parameters, task + blocks, lane)
            m_tile, tile = self.split_task(task)
            token = Int32(Uint32(pair) // Uint32(self.top_k))
            sources = self.spread_tokens(token, lane)
            wide = Int64(expert)
            weights = w13 + (wide * (2 * self.tiles) + Int64(tile)) * (32 * self.hidden)
            scales, scale_step = self.scales.locate(addresses, wide, tile)
            row = a8 + Int64((lane & 7) * 16)
            row_scales = a_scale + Int64(token) * (self.hidden // 8)
            for first in cutlass.range(0, self.steps, self.steps // 2, unroll=1):
                if first > 0:
                    # Past the last task the expert is an earlier one's, and the factor unused.
                    next_factor = ptx.load_global_i32(alpha + Int64(next_expert) * 4)
                for step in cutlass.range(first, first + self.steps // 2, 1, unroll=1):
                    ptx.wait(stage + self.pipeline.empty, parity)
                    with cute.arch.elect_one():
                        if step == 0:
                            self.hand_over(record, m_tile, tile, valid, factor)
                        self.copy_weights(stage + self.pipeline.weights, stage + self.pipeline.full, weights)
                        self.scales.copy(stage, addresses, scales, wide, tile, step)
                    tokens.copy_tokens(self.pipeline, stage, lane, row, sources, self.hidden, row_scales, valid)
                    commit_copies()
                    weights = weights + HALF_WEIGHT_BYTES
                    row = row + ROW_BYTES
                    row_scales = row_scales + ROW_SCALE_BYTES
                    scales = scales + scale_step
                    stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
                    ring = self.catch_up(memory, ring, copied, lane, tile, step == self.lag, addresses)
                    copied = copied + 1
            record, record_left, _ = mma.advance(self.pipeline, record, record_left, Int32(0))
        self.drain(memory, ring, copied, lane, addresses)

    @cute.jit
    def catch_up(self, memory, ring, copied, lane, tile, is_first, addresses):
        """Rebuild the scales of the step ``lag`` before the one that is copied, and hand its stage over."""
        stage, left, parity = ring
        if copied >= self.lag:
            ptx.wait(stage + self.pipeline.landed, parity)
            if is_first:
                self.scales.keep_rows(memory, stage, lane, tile)
            self.scales.rebuild(memory, addresses, stage, lane)
            wait_copies(self.lag)
            self.publish(stage, lane)
            stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
        return stage, left, parity

    @cute.jit
    def drain(self, memory, behind, copied, lane, addresses):
        """Finish the last stages, nothing being copied any more; ``behind`` are the first one and its phase."""
        stage, left, parity = behind
        wait_copies(0)
        for i in cutlass.range(0, self.lag, 1, unroll=1):
            if copied + i >= self.lag:
                ptx.wait(stage + self.pipeline.landed, parity)
                self.scales.rebuild(memory, addresses, stage, lane)
                self.publish(stage, lane)
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)

    def hand_over(self, record, m_tile, tile, valid, factor):
        """Tell the consumers what a task is, and the bits of the expert's factor.

        Records take turns in the stages, one stage on with every task. So a task's record is written over in the first
        step of the task ``stages`` later, and the stage of that step was last used by a later task than this one,
        because a task has two steps or more: this one's consumers have then finished with it.
        """
        words = [Uint32(word) for word in (m_tile, tile, valid, factor)]
        store_shared_x4(record + self.pipeline.task, words)

    def copy_weights(self, target, full, weights):
        """Start the bulk copies that ``full`` waits for: the weights of both groups."""
        size_bytes = Int32(HALF_WEIGHT_BYTES)
        gate = weights + Int64(self.hidden * self.intermediate // 2)
        ptx.arrive_expecting(full, Int32(WEIGHT_BYTES))
        ptx.copy_bulk(target, weights, size_bytes, full)
        ptx.copy_bulk(target + HALF_WEIGHT_BYTES, gate, size_bytes, full)

    def publish(self, stage, lane):
        """Arrive on ``full``, after this warp's copied activations and rebuilt scales."""
        self.product.plane.arrange(stage + self.pipeline.activation_scales, lane)
        tokens.fence_async()
        mma.arrive_once(stage + self.pipeline.full)

    # --- consumers ----------------------------------------------------------------------------------------------

    def place(self, thread):
        """Return the warpgroup of a thread that multiplies, its lane, and its warp in the warpgroup."""
        warpgroup = 0 if self.warpgroups == 1 else thread >> 7
        return warpgroup, thread & 31, (thread >> 5) & 3

    def take_over(self, record):
        """Return what :meth:`hand_over` said of a task."""
        return [Int32(word) for word in ptx.load_shared_x4(record + self.pipeline.task)]

    @cute.jit
    def consume(self, shared, thread, walk, parameters):
        """Multiply the stages of every task and write its part of the intermediate."""
        block, blocks, tasks = walk
        tile_count, _, intermediate, _, _, rows, _ = parameters[-7:]
        warpgroup, lane, warp = self.place(thread)
        group, chunk = warp >> 1, warp & 1
        weight_offset = warpgroup * WEIGHT_BYTES + group * HALF_WEIGHT_BYTES + chunk * mma.CHUNK_BYTES + lane * 16
        scale_offset = self.pipeline.scales + warpgroup * SCALE_PLANE_BYTES + (warp * 8 + (lane >> 2)) * 16
        sums = cute.make_rmem_tensor((self.tile_m,), Float32)
        stage, left, parity = shared, Int32(self.pipeline.stages), Int32(0)
        record, record_left = shared, Int32(self.pipeline.stages)
        for _ in cutlass.range(block, tasks, blocks, unroll=1):
            ptx.wait(stage + self.pipeline.full, parity)
            _, _, valid, _ = self.take_over(record)
            for i in cutlass.range_constexpr(self.tile_m):
                sums[i] = Float32(0.0)
            for _ in cutlass.range(0, self.steps, 1, unroll=1):
                ptx.wait(stage + self.pipeline.full, parity)
                self.product.multiply(stage, lane, weight_offset, scale_offset, valid, sums)
                stage, left, parity = mma.advance(self.pipeline, stage, left, parity)
            self.finish(shared, thread, record, tile_count, intermediate, rows, sums)
            record, record_left, _ = mma.advance(self.pipeline, record, record_left, Int32(0))

    @cute.jit
    def finish(self, shared, thread, record, tile_count, intermediate, rows, sums):
        """Write the part of the intermediate that a task made, and count it."""
        # Read anew, not kept: the main loop needs the registers.
        warpgroup, lane, warp = self.place(thread)
        group, chunk = warp >> 1, warp & 1
        m_tile, first_tile, valid, factor = self.take_over(record)
        tile = first_tile + warpgroup
        scaled = ptx.mul_rn(ptx.float_of_bits(Uint32(factor)), Float32(mma.PRODUCT_FACTOR))
        gates, ups = self.meet(shared, warpgroup, lane, warp, sums, scaled)
        token = tokens.token_of_slot(lane, group)
        payloads, scales = self.targets(intermediate, rows, m_tile, tile * 64 + chunk * 32, lane, group)
        for part in cutlass.range_constexpr(self.tile_m // 8):
            if tokens.token_of_slot(0, 2 * part + group) < valid:
                payload, byte = self.activate(lane, gates[4 * part : 4 * part + 4], ups[4 * part : 4 * part + 4])
                if token + 8 * part < valid:
                    scale = scales + self.product.plane.token_offset(token + 8 * part)
                    self.store([at + 8 * part * ROW_BYTES for at in payloads], scale, tile, lane, payload, byte)
        # The exchange area is free for the next task, too.
        tokens.consumer_barrier(warpgroup)
        if (thread & (CONSUMERS - 1)) == 0:
            count_done(tile_count, m_tile)

    def meet(self, shared, warpgroup, lane, warp, sums, factor):
        """Bring gate and up of a column to one lane: lists of four rows for every eight tokens.

        The warps of the up rows get the gate sums of their even result columns and give the up sums of their odd ones.
        """
        is_gate = warp >= 2
        size_bytes = 64 * self.tile_m
        area = shared + self.pipeline.exchange + warpgroup * (4 * size_bytes) + lane * 4
        mine, partners = (area + w * size_bytes for w in (warp, warp ^ 2))
        pairs = []
        for part in range(self.tile_m // 8):
            for nt in range(4):
                even, odd = (bits_of_float(ptx.mul_rn(sums[8 * part + 4 * x + nt], factor)) for x in range(2))
                pairs.append((select(is_gate, odd, even), select(is_gate, even, odd)))
        for i, (_, given) in enumerate(pairs):
            ptx.store_shared_f32(mine + 128 * i, ptx.float_of_bits(given))
        tokens.consumer_barrier(warpgroup)
        gates, ups = [], []
        for i, (kept, _) in enumerate(pairs):
            taken = ptx.load_shared(partners + 128 * i)
            gates.append(ptx.float_of_bits(select(is_gate, kept, taken)))
            ups.append(ptx.float_of_bits(select(is_gate, taken, kept)))
        return gates, ups

    def activate(self, lane, gates, ups):
        """Activate and quantise a lane's four rows of one token; return four payload bytes to store, and the scale.

        Before the exchange of bytes, byte ``nt`` of lane ``4 * quad + c`` is K ``8 * nt + quad``. In the byte order of
        sm_90a that is position ``16 * (quad & 1) + 4 * nt + (quad >> 1)``: the four quads of one parity transpose their
        bytes, and lane ``i`` of them has the word at ``16 * (quad & 1) + 4 * i``.
        """
        values = [silu_product(gate, up, self.sigmoid, self.limit) for gate, up in zip(gates, ups, strict=True)]
        words = (pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]))
        amax = block_amax(words, lanes=1)
        for mask in QUAD_BITS:
            amax = larger(amax, exchange(amax, mask))
        byte, is_finite = block_scale(amax)
        low, high = low_high(words, scale_factor(byte))
        payload = select(is_finite, round_e4m3(low[0], high[0], low[1], high[1]), Uint32(NOT_FINITE))
        order = select((lane & 8) == 0, Uint32(0x6240), Uint32(0x3715))
        payload = tokens.permute_bytes(payload, exchange(payload, 8), order)
        order = select((lane & 16) == 0, Uint32(0x5410), Uint32(0x3276))
        return tokens.permute_bytes(payload, exchange(payload, 16), order), byte

    def targets(self, intermediate, rows, m_tile, column, lane, group):
        """Return where a lane's payload word of its first row and 32 columns belongs, and the one 64 columns further.

        With them, where the scales of the m tile's rows in these columns begin.
        """
        quad = lane >> 2
        step = Int64(column >> 7)
        operand_row = 2 * (lane & 3) + group
        chunk = ((column >> 4) & 7) + (quad & 1)
        first = intermediate + (Int64(m_tile) * (self.padded // 128) + step) * (self.tile_m * ROW_BYTES)
        payloads = [
            first + Int64(operand_row * ROW_BYTES + (((chunk ^ operand_row) ^ far) << 4) + (quad >> 1) * 4)
            for far in (0, 4)
        ]
        scales = intermediate + Int64(rows) * self.padded
        scales = scales + (step * rows + Int64(m_tile) * self.tile_m) * ROW_SCALE_BYTES
        return payloads, scales + Int64(self.product.plane.column_offset((column >> 5) & 3))

    @cute.jit
    def store(self, payload_targets, scale_target, tile, lane, payload, byte):
        """Store a lane's payload word, and in one lane of eight the scale; clear the padding of the last tile."""
        store_global_x1(payload_targets[0], payload)
        if lane < 4:
            store_global_x1(scale_target, byte << 23)
        if tile == self.short_tile:
            store_global_x1(payload_targets[1], Uint32(0))
            if lane < 4:
                store_global_x1(scale_target + self.product.plane.column_offset(2), Uint32(0))
