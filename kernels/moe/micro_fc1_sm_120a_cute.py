"""Kernel of family ``micro_fc1`` for sm_120a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import (
    barrier,
    bits_of_float,
    commit_copies,
    copy_4,
    copy_16,
    load_shared_x2,
    store_global_x2,
    wait_copies,
)
from planfreeze.kernels.mma.ptx import load_global_i32, load_shared, load_shared_x4
from planfreeze.kernels.mma.sm_120a import (
    activation_registers,
    rebuild_words,
    scaled_product,
    stage_words,
    weight_registers,
)
from planfreeze.kernels.mma.tasks import load_id, pair_of
from planfreeze.kernels.moe.geometry import GROUP, ROW_TILE, check_hidden, check_intermediate, row_tiles
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, TILE_BLOCK_BYTES

__all__ = ["SHARED_BYTES", "THREADS", "MicroFc1"]

THREADS = 128
STAGES = 4
STAGE_K = 64
STAGES_PER_TILE = 128 // STAGE_K
# Offsets in a stage: 64 bytes of activations, their scale word, 4096 bytes of weights, 512 of native scales (of which
# a block of inline storage takes 96). Weights and scales start at multiples of 128.
ACTIVATION_SCALE, WEIGHTS, SCALES, STAGE_BYTES = 64, 128, 4224, 4736
SHARED_BYTES = STAGES * STAGE_BYTES
ACTIVATION_COPIERS = STAGE_K // 16
"""Threads that copy activations; the next one copies their scale word."""
FIRST_SCALE_COPIER = 32


class MicroFc1:
    """First projection of every route, one route and one tile of 128 rows per task.

    Math: ``projections[pair, column] = sum_k a[token, k] * w[e, row, k]`` with e = topk_ids[pair] and token = pair /
    top_k. Every group of 32 K starts from a zero accumulator and is added in fp32, in K order; K is one part. Routes
    with an id outside 0..experts-1 are skipped: their rows are not written.

    Arguments: ``a8`` u8 ``(tokens, hidden)`` in K order, ``a_scale`` u8 ``(tokens, hidden / 32)``, ``w13`` packed
    words; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``, ``bases`` and ``raw``; ``topk_ids``
    ``(pairs,)``, ``projections`` f32 ``(1, pairs, 2 * intermediate)``, gate columns first; then ``pairs`` and
    ``experts``. Tensors are 16-byte aligned, ids to their own size.

    Tiles: 128 threads, N128 x K64 a stage, 4 stages of 4736 bytes (18,944 in all), filled by cp.async three ahead.
    Warp w multiplies rows 32w..32w+31; the one activation row stands in all 16 rows of the product. Scale words are
    taken once per K128, in its even stage. In the last tile of a half with 64 rows, warps 2 and 3 multiply zeros.
    Persistent blocks stride over the tasks. sm_120a; run on an emulator, never on a device.

    Parameters
    ----------
    launch : LaunchInfo
        128 threads and at least 18,944 bytes of shared memory.
    hidden, intermediate : int
        K, a multiple of 256, and rows of each half, a multiple of 64.
    top_k : int
        Routes per token.
    id_bits : int
        32 or 64: width of the expert ids.
    csf_inline : bool
        Read scales from inline storage.

    Raises
    ------
    UnsupportedGeometry
        The sizes are not whole tiles.
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
    ) -> None:
        check_hidden(hidden)
        check_intermediate(intermediate)
        assert launch.block == (THREADS, 1, 1) and launch.shared_bytes >= SHARED_BYTES and id_bits in (32, 64)
        self.launch = launch
        self.hidden = hidden
        self.intermediate = intermediate
        self.top_k = top_k
        self.id_bits = id_bits
        self.csf_inline = csf_inline
        self.tiles = row_tiles(intermediate)
        self.has_short_tile = intermediate % ROW_TILE != 0

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        topk_ids, _, pairs, experts = parameters[-4:]
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        follow()
        tasks_per_pair = 2 * self.tiles
        for task in cutlass.range(Int32(block), pairs * tasks_per_pair, Int32(blocks), unroll=1):
            pair = Int32(pair_of(task, tasks_per_pair))
            expert = Int64(load_id(topk_ids, pair, self.id_bits))
            if expert >= 0 and expert < Int64(experts):
                self.project(shared, parameters, expert, pair, task - pair * tasks_per_pair)

    @cute.jit
    def project(self, shared, parameters, expert, pair, tile):
        """Run one task: all of K for one tile of 128 rows."""
        thread, _, _ = cute.arch.thread_idx()
        lane = thread & 31
        warp = thread >> 5
        quad = lane >> 2
        column = lane & 3
        group = Int32(tile >= self.tiles)
        row = (tile - group * self.tiles) * ROW_TILE
        height = Int32(ROW_TILE)
        if cutlass.const_expr(self.has_short_tile):
            height = select_height(row, self.intermediate)
        sources = self.locate(parameters, expert, pair, tile, group * self.intermediate + row, height, thread)
        bases = Uint32(0)
        raw = Int64(0)
        slot = warp * 32 + quad * 4
        if cutlass.const_expr(self.csf_inline):
            block = (expert * (2 * self.tiles) + Int64(tile)) * BASE_BLOCK_BYTES
            bases = Uint32(load_global_i32(parameters[4] + block + Int64(slot)))
            raw = parameters[5]
        sums = cute.make_rmem_tensor((8,), Float32)
        for i in cutlass.range_constexpr(8):
            sums[i] = Float32(0.0)

        # Slots 0..2 are free: every warp has passed the barrier after their last use. Slot 3 is filled after the next.
        for stage in cutlass.range_constexpr(STAGES - 1):
            self.start_stage(shared + stage * STAGE_BYTES, sources, Int32(stage), stage % STAGES_PER_TILE == 0)
            commit_copies()
        for k128 in cutlass.range(self.hidden // 128, unroll=1):
            for half in cutlass.range_constexpr(STAGES_PER_TILE):
                wait_copies(STAGES - 2)
                barrier()
                stage = k128 * STAGES_PER_TILE + half
                ahead = stage + (STAGES - 1)
                target = shared + (ahead & (STAGES - 1)) * STAGE_BYTES
                self.start_stage(target, sources, ahead, (half + STAGES - 1) % STAGES_PER_TILE == 0)
                commit_copies()
                staged = shared + (stage & (STAGES - 1)) * STAGE_BYTES
                if cutlass.const_expr(half == 0):
                    activation_scale = load_shared(staged + ACTIVATION_SCALE)
                    if cutlass.const_expr(self.csf_inline):
                        scales = rebuild_words(staged + SCALES, bases, slot, raw)
                    else:
                        scales = stage_words(staged + SCALES, warp * 32 + quad)
                self.multiply(staged, sums, activation_scale, scales, 2 * half, thread)
        self.store(parameters[-3], sums, pair, group, row + warp * 32, quad, column)

    @cute.jit
    def locate(self, parameters, expert, pair, tile, row, height, thread):
        """Return what this thread copies: the source of its weights and of one smaller piece, and their sizes.

        The smaller piece is 16 bytes of activations (threads 0..3), their scale word (thread 4) or 16 bytes of weight
        scales (warp 1); it advances by ``step`` bytes a K128 and lands ``offset`` bytes into the stage.
        """
        a8, a_scale, w13, scales = parameters[:4]
        token = Int64(Uint32(pair) // Uint32(self.top_k))
        first_row = expert * (2 * self.intermediate) + Int64(row)
        weights = w13 + first_row * (self.hidden // 2) + Int64(thread * 16)
        weight_bytes = Int32(thread < height) * 16

        piece = a8 + token * self.hidden + Int64(thread * 16)
        piece_bytes = Int32(16)
        step = Int32(128)
        offset = thread * 16
        if thread == ACTIVATION_COPIERS:
            piece = a_scale + token * (self.hidden // GROUP)
            step = Int32(4)
        if thread >= FIRST_SCALE_COPIER:
            part = thread - FIRST_SCALE_COPIER
            offset = SCALES + part * 16
            if cutlass.const_expr(self.csf_inline):
                block = expert * (2 * self.tiles) + Int64(tile)
                piece = scales + block * (self.hidden // 128 * TILE_BLOCK_BYTES) + Int64(part * 16)
                step = Int32(TILE_BLOCK_BYTES)
            else:
                piece = scales + first_row * (self.hidden // GROUP) + Int64(part * 16)
                piece_bytes = Int32(part * 4 < height) * 16
                step = height * 4
        return weights, piece, weight_bytes, piece_bytes, step, offset, height, thread

    @cute.jit
    def start_stage(self, target, sources, stage, is_even: cutlass.Constexpr):
        """Start this thread's copies of K64 slice ``stage`` to ``target``; past the end of K, none."""
        weights, piece, weight_bytes, piece_bytes, step, offset, height, thread = sources
        is_live = Int32(stage < self.hidden // STAGE_K)
        slice_weights = weights + Int64(stage * (height * (STAGE_K // 2)))
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            copy_16(
                target + WEIGHTS + 2048 * j + thread * 16,
                slice_weights + Int64(height * (GROUP // 2 * j)),
                weight_bytes,
                is_live,
            )
        source = piece + Int64(stage // STAGES_PER_TILE * step)
        is_copier = Int32(thread < ACTIVATION_COPIERS)
        if cutlass.const_expr(is_even):
            last = FIRST_SCALE_COPIER + (TILE_BLOCK_BYTES // 16 if self.csf_inline else ROW_TILE // 4)
            is_copier = is_copier | (Int32(thread >= FIRST_SCALE_COPIER) & Int32(thread < last))
            copy_4(target + ACTIVATION_SCALE, source, is_live & Int32(thread == ACTIVATION_COPIERS))
        else:
            source = source + STAGE_K
        copy_16(target + offset, source, piece_bytes, is_live & is_copier)

    @cute.jit
    def multiply(self, staged, sums, activation_scale, scales, byte: cutlass.Constexpr, thread):
        """Add the products of one stage; ``byte`` is the first byte of the scale words that applies."""
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            low, high = load_shared_x2(staged + GROUP * j + 8 * (thread & 3))
            even, odd = activation_registers(low, high)
            words = load_shared_x4(staged + WEIGHTS + 2048 * j + thread * 16)
            for nt in cutlass.range_constexpr(4):
                registers = weight_registers(words[nt])
                part = scaled_product((even, even, odd, odd), registers, activation_scale, scales[nt], byte + j)
                sums[2 * nt] = sums[2 * nt] + part[0]
                sums[2 * nt + 1] = sums[2 * nt + 1] + part[1]

    @cute.jit
    def store(self, projections, sums, pair, group, row, quad, column):
        """Write the warp's 32 columns from the lanes of quad 0: all rows of the product are the same row."""
        if quad == 0 and row < self.intermediate:
            # Rows are up, then gate; columns are gate, then up.
            first = Int64(pair) * (2 * self.intermediate) + Int64((1 - group) * self.intermediate + row)
            target = projections + (first + Int64(2 * column)) * 4
            for nt in cutlass.range_constexpr(4):
                store_global_x2(target + 32 * nt, (bits_of_float(sums[2 * nt]), bits_of_float(sums[2 * nt + 1])))


def select_height(row, rows):
    """Return the rows of the tile that starts at ``row``: 128, or 64 in the last one of a half with 64 rows over."""
    return Int32(ROW_TILE) - Int32(row + ROW_TILE > rows) * 64
