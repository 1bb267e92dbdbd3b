"""Triton kernels that are measured beside the product: a MoE layer with ``tl.dot_scaled``, and plain reading.

The layer has MXFP8 activations, MXFP4 weights and routes in m tiles. Weight rows are M of the product and the rows of
an m tile are N. Scales of weights are stored by K tiles, ``(experts, K / block_k, rows, block_k / 32)``, so that the
bytes of one step are adjacent.
"""

import triton
import triton.language as tl


@triton.jit
def quantise_groups(values):
    """Quantise groups of 32 in the last axis of ``(rows, groups, 32)`` f32: E4M3 and the E8M0 byte of each group."""
    largest = tl.max(tl.abs(values), axis=2)
    bits = (largest * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    scale = tl.where(largest == 0, 127, (bits + 0x7FFFFF) >> 23)
    factor = ((254 - scale) << 23).to(tl.float32, bitcast=True)
    scaled = values * factor[:, :, None]
    return tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(tl.float8e4nv), scale.to(tl.uint8)


@triton.jit
def quantise_rows(x, out, out_scale, width, block: tl.constexpr):
    """Quantise ``block`` columns of one row."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * block
    columns = first + tl.arange(0, block)
    values = tl.load(x + row * width + columns).to(tl.float32)
    codes, scale = quantise_groups(tl.reshape(values, (1, block // 32, 32)))
    tl.store(out + row * width + columns, tl.reshape(codes, (block,)))
    groups = first // 32 + tl.arange(0, block // 32)
    tl.store(out_scale + row * (width // 32) + groups, tl.reshape(scale, (block // 32,)))


@triton.jit
def multiply(total, w, w_scale, row, k, x, x_scale, width, rows, block_rows: tl.constexpr, block_k: tl.constexpr):
    """Add the product of one K step: ``w`` and ``w_scale`` are one expert's, ``row`` is the first of the rows."""
    at = (row + tl.arange(0, block_rows))[:, None]
    codes = tl.load(w + at * (width // 2) + (k // 2 + tl.arange(0, block_k // 2))[None, :])
    groups: tl.constexpr = block_k // 32
    scale = tl.load(w_scale + (k // block_k * rows + at) * groups + tl.arange(0, groups)[None, :])
    return tl.dot_scaled(codes, scale, "e2m1", tl.trans(x), x_scale, "e4m3", total)


@triton.jit
def first_projection(
    x, x_scale, w, w_scale, token_map, tile_expert, tile_valid, tile_count, out, out_scale,
    hidden, columns, top_k: tl.constexpr, tile_m: tl.constexpr, block_rows: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute ``block_rows`` columns of the quantised intermediate of one m tile: rows of up, and the same of gate."""
    tile = tl.program_id(1).to(tl.int64)
    if tile >= tl.load(tile_count):
        return
    expert = tl.load(tile_expert + tile).to(tl.int64)
    order = tl.arange(0, tile_m)
    is_live = order < tl.load(tile_valid + tile)
    token = (tl.load(token_map + tile * tile_m + order, mask=is_live, other=0) // top_k).to(tl.int64)
    w += expert * (2 * columns) * (hidden // 2)
    w_scale += expert * (2 * columns) * (hidden // 32)
    first = tl.program_id(0) * block_rows
    up = tl.zeros((block_rows, tile_m), dtype=tl.float32)
    gate = tl.zeros((block_rows, tile_m), dtype=tl.float32)
    for k in range(0, hidden, block_k):
        a = tl.load(x + token[:, None] * hidden + (k + tl.arange(0, block_k))[None, :])
        a_scale = tl.load(x_scale + token[:, None] * (hidden // 32) + (k // 32 + tl.arange(0, block_k // 32))[None, :])
        up = multiply(up, w, w_scale, first, k, a, a_scale, hidden, 2 * columns, block_rows, block_k)
        gate = multiply(gate, w, w_scale, columns + first, k, a, a_scale, hidden, 2 * columns, block_rows, block_k)
    activated = (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16).to(tl.float32)
    groups: tl.constexpr = block_rows // 32
    codes, scale = quantise_groups(tl.reshape(tl.trans(activated), (tile_m, groups, 32)))
    row = (tile * tile_m + order)[:, None]
    place = row * columns + first + tl.arange(0, block_rows)[None, :]
    tl.store(out + place, tl.reshape(codes, (tile_m, block_rows)), mask=is_live[:, None])
    place = row * (columns // 32) + first // 32 + tl.arange(0, groups)[None, :]
    tl.store(out_scale + place, scale, mask=is_live[:, None])


@triton.jit
def second_projection(
    x, x_scale, w, w_scale, token_map, row_weight, tile_expert, tile_valid, tile_count, out,
    hidden, columns, tile_m: tl.constexpr, block_rows: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute ``block_rows`` columns of the weighted results of one m tile, each row at its route's place."""
    tile = tl.program_id(1).to(tl.int64)
    if tile >= tl.load(tile_count):
        return
    expert = tl.load(tile_expert + tile).to(tl.int64)
    order = tl.arange(0, tile_m)
    is_live = order < tl.load(tile_valid + tile)
    row = tile * tile_m + order
    w += expert * hidden * (columns // 2)
    w_scale += expert * hidden * (columns // 32)
    first = tl.program_id(0) * block_rows
    total = tl.zeros((block_rows, tile_m), dtype=tl.float32)
    for k in range(0, columns, block_k):
        # Rows past the live ones hold what an earlier call left there.
        at = row[:, None] * columns + (k + tl.arange(0, block_k))[None, :]
        a = tl.load(x + at, mask=is_live[:, None], other=0.0)
        at = row[:, None] * (columns // 32) + (k // 32 + tl.arange(0, block_k // 32))[None, :]
        a_scale = tl.load(x_scale + at, mask=is_live[:, None], other=127)
        total = multiply(total, w, w_scale, first, k, a, a_scale, columns, hidden, block_rows, block_k)
    pair = tl.load(token_map + row, mask=is_live, other=0).to(tl.int64)
    weighted = tl.trans(total) * tl.load(row_weight + row, mask=is_live, other=0.0)[:, None]
    place = pair[:, None] * hidden + first + tl.arange(0, block_rows)[None, :]
    tl.store(out + place, weighted.to(tl.bfloat16), mask=is_live[:, None])


@triton.jit
def read_words(source, target, count, block: tl.constexpr, magic: tl.constexpr):
    """Read ``count`` int32 in 16-byte loads, blocks in turn; what they add up to is kept from being dead."""
    total = tl.zeros((block,), dtype=tl.int32)
    step = tl.num_programs(0).to(tl.int64) * block
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    for _ in range(0, count // step):
        total ^= tl.load(source + place)
        place += step
    if tl.max(total) == magic:
        tl.store(target + tl.program_id(0), tl.max(total))


@triton.jit
def silu_product(x, out, columns, block: tl.constexpr):
    """Compute ``silu(first half) * second half`` of ``block`` columns of one row of bf16."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    is_inside = place < columns
    gate = tl.load(x + row * 2 * columns + place, mask=is_inside).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + place, mask=is_inside).to(tl.float32)
    tl.store(out + row * columns + place, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=is_inside)
