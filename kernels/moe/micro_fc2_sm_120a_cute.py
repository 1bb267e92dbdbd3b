"""Kernel of family ``micro_fc2`` for sm_120a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import (
    barrier,
    commit_copies,
    copy_4,
    copy_16,
    load_shared_x2,
    pack_bf16,
    store_global_x1,
    store_global_x4,
    wait_copies,
)
from planfreeze.kernels.mma.ptx import (
    load_global_f32,
    load_global_i32,
    load_shared,
    load_shared_x4,
    mul_rn,
)
from planfreeze.kernels.mma.sm_120a import (
    accumulate_product,
    activation_registers,
    clear_tail,
    rebuild_words,
    stage_tail_words,
    stage_words,
    weight_registers,
)
from planfreeze.kernels.mma.tasks import load_id, split_task
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ROW_TILE,
    check_hidden,
    check_intermediate,
    padded_width,
    row_tiles,
)
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, TILE_BLOCK_BYTES

__all__ = ["SHARED_BYTES", "THREADS", "MicroFc2"]

THREADS = 128
STAGES = 4
STAGE_K = 128
GROUP_BYTES = ROW_TILE * GROUP // 2
"""Weights of one K32 group of a tile of 128 rows."""
# Offsets in a stage: 128 bytes of activations, their scale word, 8192 bytes of weights, 512 of native scales (of which
# a block of inline storage takes 96, the halves of a last K64 256). All start at multiples of 128.
ACTIVATION_SCALE, WEIGHTS, SCALES, STAGE_BYTES = 128, 256, 8448, 8960
SHARED_BYTES = STAGES * STAGE_BYTES
ACTIVATION_COPIERS = STAGE_K // 16
"""Threads that copy activations; the next one copies their scale word."""
FIRST_SCALE_COPIER = 32


class MicroFc2:
    """Second projection of every route, one route and one tile of 128 output columns per task.

    Math: ``route_output[pair, column] = bf16(alpha[e] * topk_weights[pair] * sum_k a[pair, k] * w[e, column, k])``
    with e = topk_ids[pair]. The factor is one fp32 product, the sum is chained in the tile product over all of K, in K
    order. A route with an id outside 0..experts-1 gets a row of zeros.

    Arguments: ``intermediate`` u8, ``rows`` rows of payload in K order, then a plane of ``rows`` scale words for
    every 128 columns; ``w2`` packed words; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``,
    ``bases`` and ``raw``; ``topk_ids`` and ``topk_weights`` f32 ``(pairs,)``, ``alpha`` f32 ``(experts,)``,
    ``route_output`` bf16 ``(pairs, hidden)``; then ``pairs``, ``experts`` and ``rows``. Tensors are 16-byte aligned,
    ids and factors to their own size. Columns that pad the intermediate hold zeros.

    Tiles: 128 threads, N128 x K128 a stage, 4 stages of 8960 bytes (35,840 in all), filled by cp.async three ahead.
    Warp w multiplies output columns 32w..32w+31; the one activation row stands in all 16 rows of the product. A last
    K64 fills the other half of its weights with zeros and clears the upper half of its scale words. Persistent blocks
    stride over the tasks and go round the stages without a pause between them. sm_120a; run on an emulator, never on
    a device.

    Parameters
    ----------
    launch : LaunchInfo
        128 threads and at least 35,840 bytes of shared memory.
    hidden, intermediate : int
        Output columns, a multiple of 256, and K, a multiple of 64.
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
        id_bits: int,
        csf_inline: bool = False,
    ) -> None:
        check_hidden(hidden)
        check_intermediate(intermediate)
        assert launch.block == (THREADS, 1, 1) and launch.shared_bytes >= SHARED_BYTES and id_bits in (32, 64)
        self.launch = launch
        self.hidden = hidden
        self.intermediate = intermediate
        self.id_bits = id_bits
        self.csf_inline = csf_inline
        self.tiles = hidden // ROW_TILE
        self.slices = row_tiles(intermediate)
        self.has_tail = intermediate % STAGE_K != 0

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        topk_ids, _, _, route_output, pairs, experts, _ = parameters[-7:]
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        follow()
        # Slices this block has multiplied. The next task goes on in the slots after the last one, which slower warps
        # may still read; the other three are free, as every warp has passed the barrier after their last use.
        done = Int32(0)
        for task in cutlass.range(Int32(block), pairs * self.tiles, Int32(blocks), unroll=1):
            pair, tile = split_task(task, self.tiles)
            target = route_output + (Int64(pair) * self.hidden + Int64(tile * ROW_TILE)) * 2
            expert = Int64(load_id(topk_ids, pair, self.id_bits))
            if expert >= 0 and expert < Int64(experts):
                self.project(shared, parameters, expert, Int32(pair), tile, target, done)
                done = done + self.slices
            else:
                clear_row(target)

    @cute.jit
    def project(self, shared, parameters, expert, pair, tile, target, done):
        """Run one task: all of K for one tile of 128 output columns."""
        thread, _, _ = cute.arch.thread_idx()
        lane = thread & 31
        warp = thread >> 5
        quad = lane >> 2
        topk_weights, alpha = parameters[-6:-4]
        block = expert * self.tiles + Int64(tile)
        sources = self.locate(parameters, block, pair, thread)
        slot = warp * 32 + quad * 4
        bases = Uint32(0)
        raw = Int64(0)
        if cutlass.const_expr(self.csf_inline):
            bases = Uint32(load_global_i32(parameters[3] + block * BASE_BLOCK_BYTES + Int64(slot)))
            raw = parameters[4]
        factor = mul_rn(load_global_f32(alpha + expert * 4), load_global_f32(topk_weights + Int64(pair) * 4))
        sums = cute.make_rmem_tensor((16,), Float32)
        for i in cutlass.range_constexpr(16):
            sums[i] = Float32(0.0)

        for ahead in cutlass.range_constexpr(STAGES - 1):
            self.start_stage(shared, sources, Int32(ahead), done)
            commit_copies()
        for k128 in cutlass.range(self.slices, unroll=1):
            wait_copies(STAGES - 2)
            barrier()
            self.start_stage(shared, sources, k128 + (STAGES - 1), done)
            commit_copies()
            staged = locate_slot(shared, done + k128)
            is_tail = Int32(k128 == self.slices - 1)
            if cutlass.const_expr(self.csf_inline):
                scales = rebuild_words(staged + SCALES, bases, slot, raw)
                if cutlass.const_expr(self.has_tail):
                    scales = clear_tail(scales, is_tail)
            elif cutlass.const_expr(self.has_tail):
                scales = stage_tail_words(staged + SCALES, warp * 32 + quad, is_tail)
            else:
                scales = stage_words(staged + SCALES, warp * 32 + quad)
            self.multiply(staged, sums, load_shared(staged + ACTIVATION_SCALE), scales, thread)
        store(target, sums, factor, warp, quad, lane & 3)

    @cute.jit
    def locate(self, parameters, block, pair, thread):
        """Return what this thread copies: the source of its weights and of one smaller piece.

        The smaller piece is 16 bytes of activations (threads 0..7), their scale word (thread 8) or 16 bytes of weight
        scales (warp 1); it advances by ``step`` bytes a K128 and lands ``offset`` bytes into the stage.
        """
        intermediate, w2, scales = parameters[:3]
        rows = Int64(parameters[-1])
        width = padded_width(self.intermediate)
        weights = w2 + block * (ROW_TILE * self.intermediate // 2) + Int64(thread * 16)
        piece = intermediate + Int64(pair) * width + Int64(thread * 16)
        step = Int64(STAGE_K)
        offset = thread * 16
        if thread == ACTIVATION_COPIERS:
            piece = intermediate + rows * width + Int64(pair) * 4
            step = rows * 4
        if thread >= FIRST_SCALE_COPIER:
            part = thread - FIRST_SCALE_COPIER
            offset = SCALES + part * 16
            if cutlass.const_expr(self.csf_inline):
                piece = scales + block * (self.slices * TILE_BLOCK_BYTES) + Int64(part * 16)
                step = Int64(TILE_BLOCK_BYTES)
            else:
                piece = scales + block * (ROW_TILE * self.intermediate // GROUP) + Int64(part * 16)
                step = Int64(ROW_TILE * STAGE_K // GROUP)
        return weights, piece, step, offset, thread

    @cute.jit
    def start_stage(self, shared, sources, k128, done):
        """Start this thread's copies of slice ``k128``; past the end of K, none."""
        weights, piece, step, offset, thread = sources
        target = locate_slot(shared, done + k128)
        is_live = Int32(k128 < self.slices)
        is_tail = Int32(0)
        if cutlass.const_expr(self.has_tail):
            is_tail = Int32(k128 == self.slices - 1)
        slice_weights = weights + Int64(k128 * (STAGE_K // GROUP * GROUP_BYTES))
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            size_bytes = Int32(16)
            if cutlass.const_expr(j >= STAGE_K // GROUP // 2):
                size_bytes = 16 - 16 * is_tail
            destination = target + WEIGHTS + GROUP_BYTES * j + thread * 16
            copy_16(destination, slice_weights + Int64(GROUP_BYTES * j), size_bytes, is_live)
        source = piece + Int64(k128) * step
        copiers = TILE_BLOCK_BYTES // 16 if self.csf_inline else Int32(ROW_TILE // 4) >> is_tail
        is_scale_copier = Int32(thread >= FIRST_SCALE_COPIER) & Int32(thread < FIRST_SCALE_COPIER + copiers)
        copy_16(target + offset, source, Int32(16), is_live & (is_scale_copier | Int32(thread < ACTIVATION_COPIERS)))
        copy_4(target + ACTIVATION_SCALE, source, is_live & Int32(thread == ACTIVATION_COPIERS))

    @cute.jit
    def multiply(self, staged, sums, activation_scale, scales, thread):
        """Add the products of one stage."""
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            low, high = load_shared_x2(staged + GROUP * j + 8 * (thread & 3))
            even, odd = activation_registers(low, high)
            words = load_shared_x4(staged + WEIGHTS + GROUP_BYTES * j + thread * 16)
            for nt in cutlass.range_constexpr(4):
                fragment = tuple(sums[4 * nt + i] for i in range(4))
                registers = weight_registers(words[nt])
                made = accumulate_product(fragment, (even, even, odd, odd), registers, activation_scale, scales[nt], j)
                for i in cutlass.range_constexpr(4):
                    sums[4 * nt + i] = made[i]


def locate_slot(shared, position):
    """Return the shared address of the stage of the block's ``position``-th slice."""
    return shared + (position & (STAGES - 1)) * STAGE_BYTES


@cute.jit
def store(target, sums, factor, warp, quad, column):
    """Write the warp's 32 columns from the lanes of quad 0: all rows of the product are the same row."""
    if quad == 0:
        first = target + Int64(warp * 64 + column * 4)
        for nt in cutlass.range_constexpr(4):
            word = pack_bf16(mul_rn(factor, sums[4 * nt]), mul_rn(factor, sums[4 * nt + 1]))
            store_global_x1(first + 16 * nt, word)


@cute.jit
def clear_row(target):
    """Write zeros to the 128 columns of a tile."""
    thread, _, _ = cute.arch.thread_idx()
    if thread < ROW_TILE // 8:
        zero = Uint32(0)
        store_global_x4(target + Int64(thread * 16), (zero, zero, zero, zero))
