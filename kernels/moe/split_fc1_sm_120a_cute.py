"""Kernel of family ``split_fc1`` for sm_120a."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import follow, launch_once
from planfreeze.kernels.mma.memory import (
    barrier,
    commit_copies,
    copy_4,
    copy_16,
    pack_bf16,
    select,
    store_global_byte,
    wait_copies,
)
from planfreeze.kernels.mma.mxfp8 import NOT_FINITE, block_amax, block_scale, low_high, round_e4m3, scale_factor
from planfreeze.kernels.mma.ptx import (
    load_global_f32,
    load_global_i32,
    load_shared,
    load_shared_x4,
    mul_rn,
    store_global_half,
)
from planfreeze.kernels.mma.sm_120a import (
    accumulate_product,
    load_activations,
    place_activations,
    rebuild_words,
    stage_words,
    weight_registers,
)
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ROW_TILE,
    check_hidden,
    check_intermediate,
    check_top_k,
    padded_width,
    row_tiles,
)
from planfreeze.kernels.moe.micro_act_cute import approximate_sigmoid, sigmoid, silu_product

__all__ = ["SHARED_BYTES", "THREADS", "SplitFc1"]

THREADS = 128
TILE_M = 16
STAGES = 2
STAGE_K = 64
STAGES_PER_TILE = 128 // STAGE_K
BLOCK_BYTES = 96
"""Inline storage of one scale tile."""
BASE_BYTES = 128
HALVES = 2
"""Gate and up, in the order a stage holds them; the weights hold up first."""
GROUP_BYTES = ROW_TILE * GROUP // 2
"""Weights of one K32 group of a tile of 128 rows."""
# Offsets in a stage: 16 activation rows 128 bytes apart, their scale words, weights of both halves, scales of both
# halves (512 bytes each, of which a block of inline storage takes 96).
ACTIVATION_SCALE, WEIGHTS, SCALES, STAGE_BYTES = 2048, 2112, 10304, 11328
WEIGHT_BYTES, SCALE_BYTES = STAGE_K // GROUP * GROUP_BYTES, 512
SHARED_BYTES = STAGES * STAGE_BYTES
ROW_PIECES = STAGE_K // 16
"""Threads that copy one activation row; the first of them copies its scale word too."""
FIRST_SCALE_COPIER = TILE_M * ROW_PIECES
"""Warps 2 and 3 copy the weight scales of gate and up."""


class SplitFc1:
    """First projection and activation of routes grouped by expert: one m tile and 128 columns of both halves a task.

    Math: ``gate[r, n] = alpha[e] * sum_k a[t, k] * w[e, N + n, k]`` and ``up[r, n]`` alike from row ``n``, with e =
    tile_expert[r / 16], t = token_map[r] / top_k and N = intermediate. Sums are chained in the tile product over all
    of K, in K order. ``bf16(silu(min(gate, L)) * clamp(up, -L, L))`` is then made in fp32 from unrounded gate and up,
    each operation rounded on its own, and quantised as in :mod:`planfreeze.kernels.mma.mxfp8`. With ``fast_math`` the
    sigmoid is made of ``ex2.approx`` and ``rcp.approx``.

    Arguments: ``a8`` u8 ``(tokens, hidden)`` in K order, ``a_scale`` u8 ``(tokens, hidden / 32)``, ``w13`` packed
    words; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``, ``bases`` and ``raw``; ``token_map`` i32
    ``(rows,)``, ``tile_expert`` and ``tile_valid`` i32 ``(m_tiles,)``, ``tile_count`` i32 ``(3 + m_tiles,)``, ``alpha``
    f32 ``(experts,)``, ``intermediate`` u8, ``rows`` rows of payload in K order, then a plane of ``rows`` scale words
    for every 128 columns; then ``tokens``, ``experts``, ``rows`` and ``m_tiles``. Tensors are 16-byte aligned, the i32
    and f32 ones to their own size. Rows of a tile from ``tile_valid`` on are not written. Padding columns get zero
    payload and zero scales.

    Tiles: 128 threads, M16 x N128 of gate and of up x K64 a stage, 2 stages of 11,328 bytes (22,656 in all), filled
    by cp.async one ahead. Warp w multiplies columns 32w..32w+31 of both halves, so that a quad of lanes has whole
    groups of 32 of rows q and q+8. Scale words are taken once per K128, in its even stage. In a last tile of 64
    columns, warps 2 and 3 multiply zeros. Persistent blocks stride over the tasks of the live m tiles, tiles of one m
    tile following each other. sm_120a; run on an emulator, never on a device.

    Parameters
    ----------
    launch : LaunchInfo
        128 threads and at least 22,656 bytes of shared memory.
    hidden, intermediate : int
        K, a multiple of 256, and columns of each half, a multiple of 64.
    top_k : int
        Routes per token, 1..32.
    tile_m : int
        16.
    limit : str
        Decimal text of L; empty for none.
    fast_math : bool
        Use the approximate instructions.
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
        tile_m: int,
        limit: str = "",
        fast_math: bool = False,
        csf_inline: bool = False,
    ) -> None:
        check_hidden(hidden)
        check_intermediate(intermediate)
        check_top_k(top_k)
        assert launch.block == (THREADS, 1, 1) and launch.shared_bytes >= SHARED_BYTES and tile_m == TILE_M
        self.launch = launch
        self.hidden = hidden
        self.intermediate = intermediate
        self.top_k = top_k
        self.limit = float(limit) if limit else None
        self.sigmoid = approximate_sigmoid if fast_math else sigmoid
        self.csf_inline = csf_inline
        self.tiles = row_tiles(intermediate)
        self.has_short_tile = intermediate % ROW_TILE != 0

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "SplitFc1"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        tile_count = parameters[-7]
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        shared = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint())
        follow()
        for task in cutlass.range(Int32(block), load_global_i32(tile_count) * self.tiles, Int32(blocks), unroll=1):
            m_tile = Int32(Uint32(task) // Uint32(self.tiles))
            self.project(shared, parameters, m_tile, task - m_tile * self.tiles)

    @cute.jit
    def project(self, shared, parameters, m_tile, tile):
        """Run one task: all of K for 16 rows and 128 columns of gate and up."""
        thread, _, _ = cute.arch.thread_idx()
        lane = thread & 31
        warp = thread >> 5
        quad = lane >> 2
        tile_expert, tile_valid, _, alpha = parameters[-9:-5]
        expert = Int64(load_global_i32(tile_expert + Int64(m_tile) * 4))
        valid = load_global_i32(tile_valid + Int64(m_tile) * 4)
        height = Int32(ROW_TILE)
        if cutlass.const_expr(self.has_short_tile):
            height = height - Int32(tile == self.tiles - 1) * 64
        sources = self.locate(parameters, expert, m_tile, tile, valid, height, thread)
        slot = warp * 32 + quad * 4
        bases = (Uint32(0), Uint32(0))
        raw = Int64(0)
        if cutlass.const_expr(self.csf_inline):
            up = parameters[4] + (expert * (2 * self.tiles) + Int64(tile)) * BASE_BYTES + Int64(slot)
            bases = (Uint32(load_global_i32(up + self.tiles * BASE_BYTES)), Uint32(load_global_i32(up)))
            raw = parameters[5]
        factor = load_global_f32(alpha + expert * 4)
        sums = cute.make_rmem_tensor((HALVES * 16,), Float32)
        for i in cutlass.range_constexpr(HALVES * 16):
            sums[i] = Float32(0.0)

        # Slot 0 is free: every warp has passed the barrier after its last use. Slot 1 is filled after the next.
        self.start_stage(shared, sources, Int32(0), 0)
        commit_copies()
        for k128 in cutlass.range(self.hidden // 128, unroll=1):
            for step in cutlass.range_constexpr(STAGES_PER_TILE):
                wait_copies(0)
                barrier()
                staged = shared + step * STAGE_BYTES
                following = 1 - step
                self.start_stage(
                    shared + following * STAGE_BYTES, sources, k128 * STAGES_PER_TILE + (step + 1), following
                )
                commit_copies()
                if cutlass.const_expr(step == 0):
                    # Lanes c = 0 and 1 of a quad supply the scales of rows q and q + 8.
                    activation_scale = load_shared(staged + ACTIVATION_SCALE + (quad + 8 * (lane & 1)) * 4)
                    gate_scales = self.load_scales(staged + SCALES, bases[0], slot, raw, warp * 32 + quad)
                    up_scales = self.load_scales(staged + SCALES + SCALE_BYTES, bases[1], slot, raw, warp * 32 + quad)
                self.multiply(staged, sums, activation_scale, (gate_scales, up_scales), 2 * step, thread)
        self.store(parameters, sums, factor, m_tile, tile * ROW_TILE + warp * 32, valid, lane)

    @cute.jit
    def locate(self, parameters, expert, m_tile, tile, valid, height, thread):
        """Return what this thread copies: the source of its weights and of one smaller piece, and their sizes.

        The smaller piece is 16 bytes of an activation row (warps 0 and 1) or of the weight scales of gate (warp 2) or
        up (warp 3); it advances by ``step`` bytes a K128 and lands ``offset`` bytes into the stage. The source of the
        row's scale word comes after it. Rows that are no routes get zeros, and the scales of the tile's first row.
        """
        a8, a_scale, w13, scales = parameters[:4]
        token_map = parameters[-10]
        first_row = expert * (2 * self.intermediate) + Int64(tile * ROW_TILE)
        weights = w13 + first_row * (self.hidden // 2) + Int64(thread * 16)
        weight_bytes = Int32(thread < height) * 16

        row = (thread // ROW_PIECES) & (TILE_M - 1)
        is_route = Int32(row < valid)
        pair = load_global_i32(token_map + Int64(m_tile * TILE_M + row * is_route) * 4)
        token = Int64(Uint32(pair) // Uint32(self.top_k))
        row_scales = a_scale + token * (self.hidden // GROUP)
        part = thread & (ROW_PIECES - 1)
        piece = a8 + token * self.hidden + Int64(part * 16)
        piece_bytes = is_route * 16
        step = Int32(128)
        offset = place_activations(row, part)
        if thread >= FIRST_SCALE_COPIER:
            part = thread & 31
            is_up = (thread >> 5) & 1
            offset = SCALES + is_up * SCALE_BYTES + part * 16
            piece_bytes = Int32(16)
            if cutlass.const_expr(self.csf_inline):
                block = expert * (2 * self.tiles) + Int64(tile + (1 - is_up) * self.tiles)
                piece = scales + block * (self.hidden // 128 * BLOCK_BYTES) + Int64(part * 16)
                step = Int32(BLOCK_BYTES)
            else:
                scale_row = first_row + Int64((1 - is_up) * self.intermediate)
                piece = scales + scale_row * (self.hidden // GROUP) + Int64(part * 16)
                piece_bytes = Int32(part * 4 < height) * 16
                step = height * 4
        return weights, weight_bytes, piece, piece_bytes, step, offset, row_scales, height, thread

    @cute.jit
    def start_stage(self, target, sources, stage, is_odd: Constexpr):
        """Start this thread's copies of K64 slice ``stage`` to ``target``; past the end of K, none."""
        weights, weight_bytes, piece, piece_bytes, step, offset, row_scales, height, thread = sources
        is_live = Int32(stage < self.hidden // STAGE_K)
        slice_weights = weights + Int64(stage * (height * (STAGE_K // 2)))
        for half in cutlass.range_constexpr(HALVES):
            half_weights = slice_weights + (1 - half) * (self.intermediate * self.hidden // 2)
            for j in cutlass.range_constexpr(STAGE_K // GROUP):
                destination = target + (WEIGHTS + WEIGHT_BYTES * half + GROUP_BYTES * j) + thread * 16
                copy_16(destination, half_weights + Int64(height * (GROUP // 2 * j)), weight_bytes, is_live)
        k128 = stage // STAGES_PER_TILE
        source = piece + Int64(k128 * step)
        is_row_copier = Int32(thread < FIRST_SCALE_COPIER)
        is_copier = is_row_copier
        if cutlass.const_expr(is_odd):
            source = source + STAGE_K
        else:
            copiers = BLOCK_BYTES // 16 if self.csf_inline else ROW_TILE // 4
            is_copier = is_copier | Int32((thread & 31) < copiers)
            is_first = Int32((thread & (ROW_PIECES - 1)) == 0)
            destination = target + ACTIVATION_SCALE + thread // ROW_PIECES * 4
            copy_4(destination, row_scales + Int64(k128 * 4), is_live & is_row_copier & is_first)
        copy_16(target + offset, source, piece_bytes, is_live & is_copier)

    @cute.jit
    def load_scales(self, staged, bases, slot, raw, row):
        """Return the scale words of one half's rows ``row + 8 * nt``."""
        if cutlass.const_expr(self.csf_inline):
            words = rebuild_words(staged, bases, slot, raw)
        else:
            words = stage_words(staged, row)
        return words

    @cute.jit
    def multiply(self, staged, sums, activation_scale, scales, byte: Constexpr, thread):
        """Add the products of one stage; ``byte`` is the first byte of the scale words that applies."""
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            activations = load_activations(staged, (thread & 31) >> 2, thread & 3, j)
            for half in cutlass.range_constexpr(HALVES):
                words = load_shared_x4(staged + (WEIGHTS + WEIGHT_BYTES * half + GROUP_BYTES * j) + thread * 16)
                for nt in cutlass.range_constexpr(4):
                    first = 16 * half + 4 * nt
                    fragment = tuple(sums[first + i] for i in range(4))
                    registers = weight_registers(words[nt])
                    scale = scales[half][nt]
                    made = accumulate_product(fragment, activations, registers, activation_scale, scale, byte + j)
                    for i in cutlass.range_constexpr(4):
                        sums[first + i] = made[i]

    @cute.jit
    def store(self, parameters, sums, factor, m_tile, column, valid, lane):
        """Activate, quantise and write the warp's 32 columns from ``column`` on."""
        intermediate = parameters[-5]
        rows = Int64(parameters[-2])
        # The whole warp has columns of the intermediate, or padding.
        is_live = Int32(column < self.intermediate)
        for upper in cutlass.range_constexpr(2):
            words = []
            for nt in cutlass.range_constexpr(4):
                first = 4 * nt + 2 * upper
                columns = (self.activate(factor, sums[first + i], sums[16 + first + i]) for i in range(2))
                words.append(pack_bf16(*columns))
            byte, is_finite = block_scale(block_amax(words, lanes=4))
            low, high = low_high(words, scale_factor(byte))
            row = (lane >> 2) + 8 * upper
            if row < valid:
                place = Int64(m_tile * TILE_M + row)
                width = padded_width(self.intermediate)
                target = intermediate + place * width + Int64(column + 2 * (lane & 3))
                for half in cutlass.range_constexpr(2):
                    i = 2 * half
                    pair = round_e4m3(low[i], high[i], low[i + 1], high[i + 1])
                    pair = select(is_live, select(is_finite, pair, Uint32(NOT_FINITE)), Uint32(0))
                    store_global_half(target + 16 * half, pair)
                    store_global_half(target + (16 * half + 8), pair >> 16)
                if (lane & 3) == 0:
                    plane = Int64(column // ROW_TILE) * rows
                    scales = intermediate + rows * width + (plane + place) * 4
                    group = Int64((column // GROUP) & 3)
                    store_global_byte(scales + group, select(is_live, byte, Uint32(0)))

    def activate(self, factor, gate, up):
        """Return silu(gate) * up of one column, scaled and limited."""
        gate, up = mul_rn(factor, gate), mul_rn(factor, up)
        return silu_product(gate, up, self.sigmoid, self.limit)
