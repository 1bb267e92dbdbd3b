"""Triton kernel of the family ``expand``: inline scale storage to native planes."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

__all__ = ["expand_kernel"]


@triton.jit
def expand_kernel(
    storage,
    native,
    tiles,
    experts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    group_rows: tl.constexpr,
):
    """Write the native planes of all experts from their inline storage. Runs on sm_90a and sm_120a.

    Math: scale = base of its row + selector bit; then at most seven single bytes of the tile are replaced, or the
    tile is a copy of a raw tile. Byte offsets have 64 bits.

    Layouts: 128 threads for eight tiles, sixteen threads a tile. A thread rebuilds two runs of four rows, in the
    order of the native plane: the bases of both are one 16-byte load, their selectors one 8-byte load, the words of
    each one 16-byte store. Replaced bytes are stored after a barrier, over the words. No shared memory.

    Parameters
    ----------
    storage : *u8
        Tile blocks, base blocks, raw tiles; 16-byte aligned.
    native : *u8
        ``(experts, rows * columns)``, 16-byte aligned.
    tiles : i32
        Tiles of all experts, at least 1.
    experts, rows, columns, group_rows : constexpr
        Geometry of the planes.
    """
    row_tiles: tl.constexpr = (group_rows + 127) // 128
    k_tiles: tl.constexpr = (columns + 3) // 4
    row_blocks: tl.constexpr = experts * (rows // group_rows) * row_tiles
    first_base_word: tl.constexpr = row_blocks * k_tiles * 24
    first_raw_word: tl.constexpr = first_base_word + row_blocks * 32
    has_row_tail: tl.constexpr = group_rows % 128 != 0
    has_column_tail: tl.constexpr = columns % 4 != 0

    storage_words = storage.to(tl.pointer_type(tl.int32), bitcast=True)
    storage_halves = storage.to(tl.pointer_type(tl.int16), bitcast=True)
    native_words = native.to(tl.pointer_type(tl.int32), bitcast=True)
    native_halves = native.to(tl.pointer_type(tl.int16), bitcast=True)

    # Tensors are [thread, row of a run]: in this shape every load and store gets the same layout, and none converts.
    thread = tl.arange(0, 128)[:, None]
    step = tl.arange(0, 4)[None, :]
    run = thread % 16
    # The last block repeats the last tile instead of masking: equal bytes to equal places, in the same order.
    tile = tl.minimum(tl.program_id(0) * 8 + thread // 16, tiles - 1)
    row_block = tile // k_tiles
    k_tile = tile - row_block * k_tiles
    group = row_block // row_tiles
    row_tile = row_block - group * row_tiles
    half_tiles = 2
    is_row = True
    if has_row_tail:
        half_tiles = tl.where(row_tile < row_tiles - 1, 2, 1)
        is_row = (row_tile < row_tiles - 1) | (run < 8)
    is_whole = True
    width = 4
    if has_column_tail:
        is_whole = k_tile < k_tiles - 1
        width = tl.where(is_whole, 4, 2)

    block_words = storage_words + tile.to(tl.int64) * 24
    block_halves = storage_halves + tile.to(tl.int64) * 48
    base_words = storage_words + (row_block.to(tl.int64) * 32 + first_base_word)
    # What lies before a tile is a multiple of 32 words: group_rows is one of 64, columns of 2.
    before_group = group.to(tl.int64) * (group_rows * columns // 4)
    first_word = before_group + (row_tile * (32 * columns) + k_tile * half_tiles * 64)

    # Word 8*w + q of bases and selectors has the rows 32*w + 8*nt + q. A thread has four q, and two of the nt.
    slot_word = run // 4 * 8 + run % 2 * 4 + step
    first_nt = run // 2 % 2
    first_row = run // 4 * 32 + run % 4 * 4 + step
    header = tl.load(block_words + 16)
    bases = tl.load(base_words + slot_word)
    selectors = tl.load(block_halves + slot_word).to(tl.int32)
    is_replaced = run < header
    record = tl.load(block_words + 17 + run, mask=is_replaced, other=0)
    raw_words = storage_words + ((header & 0x7FFFFFFF).to(tl.int64) * 128 + first_raw_word)

    for half in tl.static_range(2):
        nt = first_nt + 2 * half
        row = first_row + 16 * half
        base = (bases >> (8 * nt)) & 255
        nibble = (selectors >> (4 * nt)) & 15
        word = base * 0x01010101 + ((nibble * 0x00204081) & 0x01010101)
        word = tl.load(raw_words + (4 * slot_word + nt), mask=header < 0, other=word)
        tl.store(native_words + (first_word + row), word, mask=is_whole & is_row)
        if has_column_tail:
            half_words = native_halves + (2 * first_word + row)
            tl.store(half_words, word.to(tl.int16), mask=(k_tile == k_tiles - 1) & is_row)

    tl.debug_barrier()
    slot = record & 127
    row = slot // 32 * 32 + slot % 4 * 8 + slot // 4 % 8
    column = (record >> 8) & 3
    byte = native + (4 * first_word + (row * width + column))
    tl.store(byte, ((record >> 16) & 255).to(tl.uint8), mask=is_replaced)
