"""Triton kernel of the family ``expand``: inline scale storage to native planes."""

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
    """Write the native planes of all experts from their inline storage.

    Math: scale = base of its row + selector bit; then at most seven single bytes of the tile are replaced, or the
    tile is a copy of a raw tile. Eight tiles per block, 128 threads.

    Layouts: a thread rebuilds eight words of one tile, two runs of four rows, in the order of the native plane: the
    bases and selectors of a run are one 16-byte and one 8-byte load, its words one 16-byte store. Replaced bytes are
    stored after a barrier, over the words. No shared memory.

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

    # The last block repeats the last tile instead of masking: equal bytes to equal places, in one order.
    tile = tl.minimum(tl.program_id(0) * 8 + tl.arange(0, 8), tiles - 1)[:, None]
    row_block = tile // k_tiles
    k_tile = tile - row_block * k_tiles
    group = row_block // row_tiles
    row_tile = row_block - group * row_tiles
    halves = 2
    if has_row_tail:
        halves = tl.where(row_tile == row_tiles - 1, 1, 2)
    tile_words = storage_words + tile.to(tl.int64) * 24
    tile_halves = storage_halves + tile.to(tl.int64) * 48
    base_words = storage_words + (row_block.to(tl.int64) * 32 + first_base_word)
    # A word of native scales is one row of a tile; a group before this one is a whole number of words.
    first_word = group.to(tl.int64) * (group_rows * columns // 4) + (row_tile * (32 * columns) + k_tile * halves * 64)

    # Sixteen threads a tile, four positions each. Word x of bases and selectors covers the rows 32*(x//8) + x%8 + 8*nt.
    position = tl.arange(0, 64)[None, :]
    slot_word = position // 16 * 8 + position % 8
    header = tl.load(tile_words + 16)
    bases = tl.load(base_words + slot_word)
    selectors = tl.load(tile_halves + slot_word).to(tl.int32)
    entry = tl.arange(0, 16)[None, :]
    records = tl.load(tile_words + 17 + entry, mask=entry < header, other=0)
    raw_words = storage_words + ((header & 0x7FFFFFFF).to(tl.int64) * 128 + first_raw_word)

    # Rows 64.. of a row tail do not exist. Compared by position, whose runs of four the compiler sees through.
    is_row = position < 64
    if has_row_tail:
        is_row = (row_tile < row_tiles - 1) | (position < 32)
    for half in tl.static_range(2):
        nt = position // 8 % 2 + 2 * half
        row = position // 16 * 32 + position % 16 + 16 * half
        nibble = (selectors >> (4 * nt)) & 15
        word = ((bases >> (8 * nt)) & 255) * 0x01010101 + ((nibble * 0x00204081) & 0x01010101)
        word = tl.load(raw_words + (4 * slot_word + nt), mask=header < 0, other=word)
        if has_column_tail:
            is_whole = k_tile < k_tiles - 1
            tl.store(native_words + (first_word + row), word, mask=is_whole & is_row)
            tl.store(native_halves + (2 * first_word + row), word.to(tl.int16), mask=(k_tile == k_tiles - 1) & is_row)
        else:
            tl.store(native_words + (first_word + row), word, mask=is_row)

    tl.debug_barrier()
    slot = records & 127
    row = slot // 32 * 32 + slot % 4 * 8 + slot // 4 % 8
    width = 4
    if has_column_tail:
        width = tl.where(k_tile == k_tiles - 1, 2, 4)
    column = (records >> 8) & 3
    value = ((records >> 16) & 255).to(tl.uint8)
    tl.store(native + (4 * first_word + (row * width + column)), value, mask=entry < header)
