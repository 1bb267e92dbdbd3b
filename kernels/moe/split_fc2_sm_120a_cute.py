"""Kernel of family ``split_fc2`` for sm_120a."""

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
    pack_bf16,
    store_global_x1,
    wait_copies,
)
from planfreeze.kernels.mma.ptx import load_global_f32, load_global_i32, load_shared, load_shared_x4, mul_rn
from planfreeze.kernels.mma.sm_120a import (
    accumulate_product,
    clear_tail,
    load_activations,
    place_activations,
    rebuild_words,
    stage_tail_words,
    stage_words,
    weight_registers,
)
from planfreeze.kernels.moe.geometry import (
    GROUP,
    ROW_TILE,
    check_hidden,
    check_intermediate,
    padded_width,
    row_tiles,
)

__all__ = ["SHARED_BYTES", "THREADS", "SplitFc2"]

THREADS = 128
TILE_M = 16
STAGES = 2
STAGE_K = 128
BLOCK_BYTES = 96
"""Inline storage of one scale tile."""
BASE_BYTES = 128
GROUP_BYTES = ROW_TILE * GROUP // 2
"""Weights of one K32 group of a tile of 128 rows."""
# Offsets in a stage: 16 intermediate rows of 128 bytes, their scale words, 8192 bytes of weights, 512 of native scales
# (of which a block of inline storage takes 96, the halves of a last K64 256). Stages, weights and scales start at
# multiples of 512.
ACTIVATION_SCALE, WEIGHTS, SCALES, STAGE_BYTES = 2048, 2560, 10752, 11264
SHARED_BYTES = STAGES * STAGE_BYTES
ROW_PIECES = STAGE_K // 16
"""Threads that copy one intermediate row; the first of them copies its scale word too."""


class SplitFc2:
    """Second projection of routes grouped by expert: one m tile and 128 output columns a task.

    Math: ``route_output[token_map[r], column] = bf16(alpha[e] * row_weight[r] * sum_k a[r, k] * w[e, column, k])``
    with e = tile_expert[r / 16]. The factor is one fp32 product, the sum is chained in the tile product over all of K,
    in K order.

    Arguments: ``intermediate`` u8, ``rows`` rows of payload in K order, then a plane of ``rows`` scale words for every
    128 columns; ``w2`` packed words; ``scales`` u8, the native plane, or with ``csf_inline`` ``tiles``, ``bases`` and
    ``raw``; ``token_map`` i32 and ``row_weight`` f32 ``(rows,)``, ``tile_expert`` and ``tile_valid`` i32
    ``(m_tiles,)``, ``tile_count`` i32 ``(3 + m_tiles,)``, ``alpha`` f32 ``(experts,)``, ``route_output`` bf16
    ``(pairs, hidden)``; then ``pairs``, ``experts``, ``rows`` and ``m_tiles``. Tensors are 16-byte aligned, the i32
    and f32 ones to their own size. Rows of a tile from ``tile_valid`` on are not used, and rows of ``route_output``
    that no row of the tiles names are not written. Columns that pad the intermediate hold zeros.

    Tiles: 128 threads, M16 x N128 x K128 a stage, 2 stages of 11,264 bytes (22,528 in all), filled by cp.async one
    ahead. Warp w multiplies output columns 32w..32w+31. A last K64 fills the other half of its weights with zeros and
    clears the upper half of its scale words. Persistent blocks stride over the tasks of the live m tiles, tiles of one
    m tile following each other, and go round the stages without a pause between tasks. sm_120a; run on an emulator,
    never on a device.

    Parameters
    ----------
    launch : LaunchInfo
        128 threads and at least 22,528 bytes of shared memory.
    hidden, intermediate : int
        Output columns, a multiple of 256, and K, a multiple of 64.
    tile_m : int
        16.
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
        tile_m: int,
        csf_inline: bool = False,
    ) -> None:
        check_hidden(hidden)
        check_intermediate(intermediate)
        assert launch.block == (THREADS, 1, 1) and launch.shared_bytes >= SHARED_BYTES and tile_m == TILE_M
        self.launch = launch
        self.hidden = hidden
        self.intermediate = intermediate
        self.csf_inline = csf_inline
        self.tiles = hidden // ROW_TILE
        self.slices = row_tiles(intermediate)
        self.has_tail = intermediate % STAGE_K != 0

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "SplitFc2"

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
        # Slices this block has multiplied. The next task goes on in the slot after the last one, which slower warps
        # may still read; the other one is free, as every warp has passed the barrier after its last use.
        done = Int32(0)
        for task in cutlass.range(Int32(block), load_global_i32(tile_count) * self.tiles, Int32(blocks), unroll=1):
            m_tile = Int32(Uint32(task) // Uint32(self.tiles))
            self.project(shared, parameters, m_tile, task - m_tile * self.tiles, done)
            done = done + self.slices

    @cute.jit
    def project(self, shared, parameters, m_tile, tile, done):
        """Run one task: all of K for 16 rows and 128 output columns."""
        thread, _, _ = cute.arch.thread_idx()
        warp = thread >> 5
        quad = (thread & 31) >> 2
        tile_expert, tile_valid, _, alpha, route_output = parameters[-9:-4]
        expert = Int64(load_global_i32(tile_expert + Int64(m_tile) * 4))
        valid = load_global_i32(tile_valid + Int64(m_tile) * 4)
        block = expert * self.tiles + Int64(tile)
        sources = self.locate(parameters, block, m_tile, valid, thread)
        slot = warp * 32 + quad * 4
        bases = Uint32(0)
        raw = Int64(0)
        if cutlass.const_expr(self.csf_inline):
            bases = Uint32(load_global_i32(parameters[3] + block * BASE_BYTES + Int64(slot)))
            raw = parameters[4]
        outputs = self.locate_rows(parameters, load_global_f32(alpha + expert * 4), m_tile, valid, quad)
        sums = cute.make_rmem_tensor((16,), Float32)
        for i in cutlass.range_constexpr(16):
            sums[i] = Float32(0.0)

        self.start_stage(shared, sources, Int32(0), done)
        commit_copies()
        for k128 in cutlass.range(self.slices, unroll=1):
            wait_copies(0)
            barrier()
            self.start_stage(shared, sources, k128 + 1, done)
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
            # Lanes c = 0 and 1 of a quad supply the scales of rows q and q + 8.
            activation_scale = load_shared(staged + ACTIVATION_SCALE + (quad + 8 * (thread & 1)) * 4)
            self.multiply(staged, sums, activation_scale, scales, thread)
        target = route_output + Int64(tile * ROW_TILE + warp * 32 + 2 * (thread & 3)) * 2
        self.store(target, sums, outputs, valid, quad)

    @cute.jit
    def locate(self, parameters, block, m_tile, valid, thread):
        """Return what this thread copies: the sources of its weights, intermediate, scale word and weight scales.

        Each thread copies 16 bytes of an intermediate row to ``offset`` bytes into the stage; those of rows that are
        no routes are zeros, and their scales those of the tile's first row. Threads of warp 1 copy 16 bytes of weight
        scales.
        """
        intermediate, w2, scales = parameters[:3]
        rows = Int64(parameters[-2])
        width = padded_width(self.intermediate)
        weights = w2 + block * (ROW_TILE * self.intermediate // 2) + Int64(thread * 16)
        row = thread // ROW_PIECES
        is_route = Int32(row < valid)
        place = Int64(m_tile * TILE_M + row * is_route)
        part = thread & (ROW_PIECES - 1)
        piece = intermediate + place * width + Int64(part * 16)
        row_scales = intermediate + rows * width + place * 4
        offset = place_activations(row, part)
        part = Int64((thread & 31) * 16)
        if cutlass.const_expr(self.csf_inline):
            weight_scales = scales + block * (self.slices * BLOCK_BYTES) + part
        else:
            weight_scales = scales + block * (ROW_TILE * self.intermediate // GROUP) + part
        return weights, piece, is_route * 16, offset, row_scales, rows * 4, weight_scales, thread

    @cute.jit
    def locate_rows(self, parameters, alpha, m_tile, valid, quad):
        """Return pair and factor of rows q and q + 8; of a row that is no route, those of the tile's first row."""
        token_map, row_weight = parameters[-11:-9]
        found = []
        for upper in cutlass.range_constexpr(2):
            row = quad + 8 * upper
            place = Int64(m_tile * TILE_M + row * Int32(row < valid)) * 4
            found.append((load_global_i32(token_map + place), mul_rn(alpha, load_global_f32(row_weight + place))))
        return tuple(found)

    @cute.jit
    def start_stage(self, shared, sources, k128, done):
        """Start this thread's copies of slice ``k128``; past the end of K, none."""
        weights, piece, piece_bytes, offset, row_scales, plane_bytes, weight_scales, thread = sources
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
        copy_16(target + offset, piece + Int64(k128 * STAGE_K), piece_bytes, is_live)
        is_first = Int32((thread & (ROW_PIECES - 1)) == 0)
        destination = target + ACTIVATION_SCALE + thread // ROW_PIECES * 4
        copy_4(destination, row_scales + Int64(k128) * plane_bytes, is_live & is_first)
        step = BLOCK_BYTES if self.csf_inline else ROW_TILE * STAGE_K // GROUP
        copiers = BLOCK_BYTES // 16 if self.csf_inline else Int32(ROW_TILE // 4) >> is_tail
        part = thread & 31
        is_copier = Int32(thread >> 5 == 1) & Int32(part < copiers)
        copy_16(target + SCALES + part * 16, weight_scales + Int64(k128 * step), Int32(16), is_live & is_copier)

    @cute.jit
    def multiply(self, staged, sums, activation_scale, scales, thread):
        """Add the products of one stage."""
        for j in cutlass.range_constexpr(STAGE_K // GROUP):
            activations = load_activations(staged, (thread & 31) >> 2, thread & 3, j)
            words = load_shared_x4(staged + WEIGHTS + GROUP_BYTES * j + thread * 16)
            for nt in cutlass.range_constexpr(4):
                fragment = tuple(sums[4 * nt + i] for i in range(4))
                registers = weight_registers(words[nt])
                made = accumulate_product(fragment, activations, registers, activation_scale, scales[nt], j)
                for i in cutlass.range_constexpr(4):
                    sums[4 * nt + i] = made[i]

    @cute.jit
    def store(self, target, sums, outputs, valid, quad):
        """Write the warp's 32 columns of the rows that are routes to the rows of their pairs."""
        for upper in cutlass.range_constexpr(2):
            pair, factor = outputs[upper]
            if quad + 8 * upper < valid:
                row = target + Int64(pair) * (self.hidden * 2)
                for nt in cutlass.range_constexpr(4):
                    first = 4 * nt + 2 * upper
                    word = pack_bf16(mul_rn(factor, sums[first]), mul_rn(factor, sums[first + 1]))
                    store_global_x1(row + 16 * nt, word)


def locate_slot(shared, position):
    """Return the shared address of the stage of the block's ``position``-th slice."""
    return shared + (position & (STAGES - 1)) * STAGE_BYTES
