"""Tile product of MXFP4 weights and MXFP8 activations on sm_90a, and the rebuild of weight scales to fp32.

Weights are the M operand of wgmma, out of registers: E2M1 codes become E4M3 bytes of 1/64 of their value by bit
placement alone. Tokens are the N operand. Every K32 group is a product of its own from a zero accumulator, rescaled
in fp32: ``sum = fma(product * activation_scale, weight_scale, sum)``; the epilogue applies the factor 64 once.

A stage has 128 weight rows. In slot order (``slot = 32*warp + 4*quad + nt`` for row ``32*warp + 8*nt + quad``)
lane ``4*quad + c`` of consumer warp ``w`` owns slots ``32*w + 4*quad`` to ``+ 3``: it decodes their weights for K
``8*c`` to ``8*c + 7`` of each K32 group, and receives their results for tokens ``2*c`` and ``2*c + 1``. Lane ``l`` of
the producer rebuilds slots ``4*l`` to ``4*l + 3``.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", register fragments and matrix descriptor.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.stage_sm_90a import GROUP_SCALE_BYTES, SCALE_PLANE_BYTES, STAGED_BLOCK_BYTES
from planfreeze.kernels.scales.geometry import MAX_RECORDS, RAW_TILE_BYTES, SELECTOR_BYTES

PRODUCT_FACTOR = 64.0
"""Times a product of decoded weights gives the product of the E2M1 values."""
CONSUMER_WARPS = 4
COLUMNS = 4
"""K32 groups of one stage."""
TAIL_COLUMNS = 2
"""K32 groups of the last stage of a row when K is an odd multiple of 64."""
GROUPS_IN_FLIGHT = 2
"""wgmma groups started before the first is waited for. With four, 96 registers do not suffice."""
COLUMN_BYTES = SCALE_PLANE_BYTES // COLUMNS
CHUNK_BYTES = 512
"""Weight words of 32 rows and K32: 16 bytes per lane."""
LOWEST_EXPONENT_BIT = 1 << 23
"""Added to the bits of a power of two, gives those of its double."""
HALF_SELECTOR_BYTES = SELECTOR_BYTES // 2
"""Selectors of 64 slots."""
HEADER_BYTES = RECORD_BYTES = 4
"""The header of a tile block, and each of the records that follow."""
RAW_INDEX = 0x7FFFFFFF
"""Bits of a raw tile's header that are its number."""


# --- weights ----------------------------------------------------------------------------------------------------


def decode(word):
    """Turn eight stored E2M1 codes into E4M3 bytes: four of even K, four of odd K.

    A stored byte is, from bit 7 down: odd sign, even e1, even sign, odd e1, odd e0, odd m, even e0, even m.
    """
    even = ((word << 2) & Uint32(0x8C8C8C8C)) | ((word >> 2) & Uint32(0x10101010))
    odd = word & Uint32(0x9C9C9C9C)
    return even, odd


def arrange_fragments(words):
    """Decode a lane's words of four rows into the register operands of two m64k32 products.

    Product ``b`` has the rows of ``nt = 2 * b`` in its upper and of ``2 * b + 1`` in its lower eight rows per warp.
    """
    even, odd = zip(*(decode(word) for word in words), strict=True)
    return [(even[b], even[b + 1], odd[b], odd[b + 1]) for b in (0, 2)]


def row_descriptor(address):
    """Describe one activation row of K128 as an N operand of eight rows, of which only the first means anything.

    Without swizzle an operand is made of 8-row by 16-byte blocks; putting the next block of K only 16 bytes further
    makes row 0 contiguous. Rows 1 to 7 are then whatever follows (112 bytes past the row are read), and reach only
    result columns 1 to 7. Both strides of the descriptor say 16 bytes; eight rows need only one.
    """
    low = Int64((address & Int32(0x3FFFF)) >> 4)
    return low | Int64((1 << 32) | (1 << 16))


def multiply_row(pipeline, stage, weight_offset, scale_offset, column_stride, sums, columns=COLUMNS):
    """Add the products of a stage's weights and its one activation row to the sums of this lane's four rows.

    Offsets are this lane's, in the stage; ``column_stride`` is the distance of K32 groups in the weights. Of the
    stage's K32 groups only the first ``columns`` are read. Two groups are in flight; the stage is free for the
    producer once the last one is finished.
    """
    descriptor = row_descriptor(stage + pipeline.activations)
    activation_scales = ptx.load_shared_f32x4(stage + pipeline.activation_scales)
    started = []
    for column in range(columns + GROUPS_IN_FLIGHT - 1):
        if column < columns:
            words = ptx.load_shared_x4(stage + weight_offset + column * column_stride)
            started.append(ptx.start_products(arrange_fragments(words), descriptor + 2 * column))
        done = column - (GROUPS_IN_FLIGHT - 1)
        if done >= 0:
            weight_scales = ptx.load_shared_f32x4(stage + scale_offset + done * COLUMN_BYTES)
            products = ptx.finish_products(started[done], len(started) - 1 - done)
            if done == columns - 1:
                arrive_once(stage + pipeline.empty)
            accumulate_row(sums, products, activation_scales[done], weight_scales)


def accumulate_row(sums, products, activation_scale, weight_scales):
    """Rescale the first token's results of one K32 group and add them."""
    for nt in range(4):
        product = products[nt // 2][2 * (nt % 2)]
        scaled = ptx.mul_rn(product, activation_scale)
        sums[nt] = ptx.fma_rn(scaled, weight_scales[nt], sums[nt])


# --- scales -----------------------------------------------------------------------------------------------------


def scale_bits(word, byte):
    """Return the fp32 bits of 2^(b-127) for one byte of a scale word: 0 for 0, infinity for 255."""
    shifted = word << (23 - 8 * byte) if byte < 3 else word >> 1
    return shifted & Uint32(0x7F800000)


def scale_of(word, byte):
    """Return the scale of one byte of a scale word."""
    return ptx.float_of_bits(scale_bits(word, byte))


def rebuild_native(lane, staged, scales):
    """Turn the native scale words of 128 rows into the fp32 plane."""
    first = staged + (32 * (lane >> 3) + (lane & 7)) * 4
    words = [ptx.load_shared(first + 32 * nt) for nt in range(4)]
    store_words(lane, words, scales)


def rebuild_native_tail(lane, staged, scales):
    """Turn the native half words of 128 rows and the last two K32 groups into the first half of the fp32 plane."""
    first = staged + (32 * (lane >> 3) + (lane & 7)) * 2
    halves = [ptx.load_shared_half(first + 16 * nt) for nt in range(4)]
    store_words(lane, halves, scales, columns=TAIL_COLUMNS)


def store_words(lane, words, scales, columns=COLUMNS):
    """Write the fp32 scales of a lane's four scale words."""
    for column in range(columns):
        values = [scale_of(word, column) for word in words]
        ptx.store_shared_f32x4(scales + column * COLUMN_BYTES + lane * 16, values)


def base_choices(bases):
    """Return, for a lane's four row bases, the fp32 bits of the base and of base + 1."""
    lows = [scale_bits(bases, nt) for nt in range(4)]
    return [(low, low + Uint32(LOWEST_EXPONENT_BIT)) for low in lows]


def store_selected(lane, selectors, choices, scales):
    """Write the fp32 scales of a lane's four slots: bit ``4 * nt + column`` chooses between base and base + 1."""
    values = ptx.select_by_bits(choices, selectors)
    for column in range(COLUMNS):
        ptx.store_shared_f32x4(scales + column * COLUMN_BYTES + lane * 16, values[column::COLUMNS])


@cute.jit
def rebuild_inline_rows(lane: Int32, choices, block: Int32, raw: cutlass.Constexpr, scales: Int32):
    """Turn the scales of 128 rows into the fp32 plane: a staged tile block or, if its header says so, raw words.

    ``choices`` are those of the lane's four row bases; ``raw`` gives a lane's words of the raw tile that a header
    names. Where the tile has two columns only, the other two of the plane get finite numbers without meaning.
    """
    header = ptx.load_shared(block + SELECTOR_BYTES)
    # The selectors of slots 4 * lane and on: half a word.
    selectors = ptx.load_shared_half(block + lane * 2)
    if Int32(header) < 0:
        store_words(lane, raw(header), scales)
    else:
        store_selected(lane, selectors, choices, scales)
        if header != Uint32(0):
            # Orders the stores above before the patches below, which are other lanes'.
            cute.arch.sync_warp()
            if has_record(lane, header):
                record = load_record(block, lane)
                store_record(record, record & Uint32(127), scales)


def selector_offset(lane, half):
    """Return where the selectors of a lane's slots are in the tile blocks of two groups: half a word."""
    return (lane >> 4) * STAGED_BLOCK_BYTES + (lane & 15) * 2 + half * HALF_SELECTOR_BYTES


def half_of_offset(offset):
    """Return which half of the tiles' slots an offset of selectors is for."""
    return (offset // HALF_SELECTOR_BYTES) & 1


@cute.jit
def rebuild_inline(lane: Int32, offset: Int32, choices, blocks: Int32, raw: cutlass.Constexpr, scales: Int32):
    """Turn the scales of two groups into the fp32 plane: 64 rows of each, lanes 0..15 and 16..31.

    ``offset`` is what :func:`selector_offset` gave, which knows the 64 slots of a tile that the stage covers;
    ``choices`` are those of the lane's four row bases. ``blocks`` are the two staged tile blocks; ``raw`` gives the
    words of the raw tile that a header names, those of the lane.
    """
    block = blocks + (lane >> 4) * STAGED_BLOCK_BYTES
    header = ptx.load_shared(block + SELECTOR_BYTES)
    selectors = ptx.load_shared_half(blocks + offset)
    if cute.arch.vote_any_sync(header != Uint32(0)):
        if Int32(header) < 0:
            store_words(lane, raw(header), scales)
        else:
            store_selected(lane, selectors, choices, scales)
        # Orders the stores above before the patches below, which are other lanes'.
        cute.arch.sync_warp()
        if has_record(lane & 15, header):
            record = load_record(block, lane & 15)
            # Both bits tell the half.
            if (((record >> 1) ^ Uint32(offset)) & Uint32(HALF_SELECTOR_BYTES)) == Uint32(0):
                store_record(record, Uint32(64 * (lane >> 4)) + (record & Uint32(63)), scales)
    else:
        store_selected(lane, selectors, choices, scales)


def load_raw(raw, header, place):
    """Load a lane's words, from ``place`` on, of the raw tile that a header names; ``raw`` is where all of them are."""
    return ptx.load_global_x4(raw_tile(raw, header) + Int64(place))


def raw_tile(raw, header):
    """Return where the raw tile is that a header names, if the first is at ``raw``."""
    return raw + Int64(header & Uint32(RAW_INDEX)) * RAW_TILE_BYTES


def half_raw_place(lane, offset):
    """Return where the words of a lane's rows are in a raw tile, of whose slots a stage has one half."""
    return half_of_offset(offset) * GROUP_SCALE_BYTES + (lane & 15) * 16


def has_record(order, header):
    """Tell whether a tile block has a record of this order: none of a raw tile has."""
    return (order < Int32(header)) & (order < MAX_RECORDS)


def load_record(block, order):
    """Load a record of a tile block."""
    return ptx.load_shared(block + SELECTOR_BYTES + HEADER_BYTES + order * RECORD_BYTES)


def store_record(record, slot, scales):
    """Write the scale of a record over the selected one; ``slot`` is its place in the stage."""
    column = Int32((record >> 8) & Uint32(3))
    ptx.store_shared_f32(scales + column * COLUMN_BYTES + Int32(slot) * 4, scale_of(record, 2))


# --- pipeline ---------------------------------------------------------------------------------------------------


def arrive_once(barrier):
    """Arrive once for the whole warp, after all its lanes are done."""
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        ptx.arrive(barrier)


def init_stages(pipeline, shared, full_arrivals=2):
    """Set up the barriers of all stages; one thread, before the block's first barrier.

    A producer that does everything arrives on ``full`` twice: when it starts the copies and when it has rebuilt the
    scales.
    """
    for stage in range(pipeline.stages):
        base = shared + stage * pipeline.stage_bytes
        ptx.init_barrier(base + pipeline.full, full_arrivals)
        ptx.init_barrier(base + pipeline.empty, CONSUMER_WARPS * pipeline.warpgroups)
        ptx.init_barrier(base + pipeline.landed, pipeline.warpgroups)
    cute.arch.mbarrier_init_fence()


@cute.jit
def advance(pipeline: cutlass.Constexpr, stage: Int32, left: Int32, parity: Int32):
    """Move to the next stage of the ring: its shared address, stages to its end, and the parity of its phase.

    ``left`` starts with the number of stages. A comparison with the address of the ring would cost more: it is made
    anew each time from a special register.
    """
    wraps = Int32(Uint32(left - 2) >> 31)
    left = left - 1 + wraps * pipeline.stages
    return stage + pipeline.stage_bytes - wraps * pipeline.shared_bytes, left, parity ^ wraps
