"""Tile product of MXFP4 weights and the MXFP8 activations of several tokens on sm_90a.

Like the product of one row in ``sm_90a``, whose decoding, stages and rounding this uses; but the N operand has as many
columns as the m tile has rows. They are gathered token by token with 16-byte copies into the 128-byte swizzle: row
``p`` of the operand is at ``128 * p``, its 16-byte chunk ``ch`` at ``ch ^ (p & 7)``.

Lane ``4*quad + c`` receives the results of operand rows ``8*f + 2*c`` and ``8*f + 2*c + 1`` of every eight. Sixteen and
more tokens are in plain order. Eight are in even order: tokens 0 to 3 in rows 0, 2, 4, 6 and tokens 4 to 7 in rows 1,
3, 5, 7, so that every lane has one of the first four and one of the last four. Rescaling is left out for the last four
of eight tokens, and the last eight of sixteen, where a tile has none of them.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", register fragments, swizzling modes and matrix
descriptor.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Int32, Int64, Uint32, cute
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import copy_16
from planfreeze.kernels.mma.sm_90a import COLUMN_BYTES, COLUMNS, arrange_fragments, arrive_once
from planfreeze.kernels.mma.stage_sm_90a import ROW_BYTES, ROW_SCALE_BYTES

__all__ = [
    "chunk_offsets",
    "consumer_barrier",
    "copy_tokens",
    "fence_async",
    "multiply_tokens",
    "permute_bytes",
    "token_descriptor",
    "token_of_column",
]

CHUNK_BYTES = 16
GROUPS_IN_FLIGHT = 2
"""wgmma groups started before the first is waited for: what 96 registers suffice for."""


# --- instructions -----------------------------------------------------------------------------------------------


@dsl_user_op
def fence_async(*, loc=None, ip=None):
    """Make this thread's earlier accesses to shared memory visible to wgmma, once a barrier follows."""
    ptx.emit([], [], "fence.proxy.async.shared::cta;", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def consumer_barrier(*, loc=None, ip=None):
    """Wait for the 128 threads that multiply; what they wrote to shared memory is then visible to them."""
    ptx.emit([], [], "bar.sync 1, 128;", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def permute_bytes(a, b, order, *, loc=None, ip=None):
    """Pick four bytes out of two words: nibble ``i`` of ``order`` names byte ``i``, 0..3 of ``a`` and 4..7 of ``b``."""
    text = "prmt.b32 $0, $1, $2, $3;"
    (word,) = ptx.emit([T.i32()], [a, b, order], text, "=r,r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)


# --- operand ----------------------------------------------------------------------------------------------------


def chunk_offsets(lane, tokens):
    """Return where in the operand chunk ``lane & 7`` of each token ``4 * i + (lane >> 3)`` belongs."""
    chunk, row = lane & 7, lane >> 3
    if tokens == 8:
        first = row * (2 * ROW_BYTES) + ((chunk ^ (2 * row)) << 4)
        return [first, (first ^ 16) + ROW_BYTES]
    first = row * ROW_BYTES + ((chunk ^ row) << 4)
    return [(first ^ (64 * (i & 1))) + 4 * i * ROW_BYTES for i in range(tokens // 4)]


def copy_tokens(pipeline, stage, lane, source, rows, pitch_bytes, row_scales, valid):
    """Start the copies of K128 of the first ``valid`` tokens and of their scales; one warp.

    ``source``, ``rows`` and ``pitch_bytes`` say what :func:`copy_chunks` copies; ``row_scales`` is the lane's source
    for the scales of token ``lane``.
    """
    copy_chunks(stage + pipeline.activations, lane, source, rows, pitch_bytes, valid)
    target = stage + pipeline.activation_scales + lane * ROW_SCALE_BYTES
    copy_16(target, row_scales, Int32(ROW_SCALE_BYTES), Int32(lane < valid))


def copy_chunks(target, lane, source, rows, pitch_bytes, valid):
    """Start a lane's copies of K128 of the first ``valid`` rows of an operand; of sixteen, all are left out if none is.

    Row ``4 * i + (lane >> 3)`` of the operand is row ``rows[i]`` in memory, ``pitch_bytes`` from one to the next;
    ``source`` is this lane's chunk of row 0. The rest of the operand stays what it was, and reaches only result columns
    that nobody reads.
    """
    targets = [target + offset for offset in chunk_offsets(lane, 4 * len(rows))]
    for first in range(0, len(rows), 4):
        some = slice(first, first + 4)
        if first == 0:
            start_copies(0, targets[some], lane, source, rows[some], pitch_bytes, valid)
        else:
            start_copies_from(4 * first, targets[some], lane, source, rows[some], pitch_bytes, valid)


@cute.jit
def start_copies_from(first_row: Constexpr, targets, lane, source, rows, pitch_bytes: Constexpr, valid):
    """Start copies to every fourth row from ``first_row`` on, if that row is valid."""
    if valid > first_row:
        start_copies(first_row, targets, lane, source, rows, pitch_bytes, valid)


def start_copies(first_row, targets, lane, source, rows, pitch_bytes, valid):
    """Start copies to every fourth row from ``first_row`` on, where they are valid."""
    for i, target in enumerate(targets):
        is_live = Int32(first_row + 4 * i + (lane >> 3) < valid)
        copy_16(target, source + Int64(rows[i]) * pitch_bytes, Int32(CHUNK_BYTES), is_live)


def token_descriptor(address):
    """Describe the operand at a multiple of 1024: K-major, 128-byte swizzle, 1024 bytes from eight rows to the next."""
    low = Int64((address & Int32(0x3FFFF)) >> 4)
    return low | Int64((1 << 62) | (64 << 32) | (1 << 16))


# --- products ---------------------------------------------------------------------------------------------------


def parts(tokens):
    """Split a lane's result columns into those that are rescaled, or left out, together.

    Returns
    -------
    list of (int, tuple of int)
        The first token of the part, in any lane, and the result columns; the first part starts with token 0.
    """
    if tokens == 8:
        return [(0, (0,)), (4, (1,))]
    return [(0, (0, 1)), (8, (2, 3))]


def token_of_column(tokens, lane, column):
    """Return the token of one of a lane's result columns ``2 * f + x``: ``x`` of eight operand rows ``f``."""
    c = lane & 3
    return c + 4 * column if tokens == 8 else 8 * (column >> 1) + 2 * c + (column & 1)


def multiply_tokens(pipeline, stage, lane, weight_offset, scale_offset, column_stride, valid, sums):
    """Add the products of a stage's weights and its tokens to the sums of this lane's four rows.

    Weight and scale offsets are this lane's, in the stage; ``column_stride`` is the distance of K32 groups in the
    weights. ``sums[4 * column + nt]`` belongs to result column ``column`` and row ``nt``; those of tokens from
    ``valid`` on have no meaning. The stage is free for the producer once the scales of its last K32 group are read.
    """
    tokens = pipeline.tokens
    descriptor = token_descriptor(stage + pipeline.activations)
    addresses = [
        stage + pipeline.activation_scales + token_of_column(tokens, lane, column) * ROW_SCALE_BYTES
        for column in range(tokens // 4)
    ]
    # Fewer loads, where there are registers for all of them.
    loaded = [ptx.load_shared_f32x4(address) for address in addresses] if tokens == 8 else None
    started = []
    for turn in range(COLUMNS + GROUPS_IN_FLIGHT - 1):
        if turn < COLUMNS:
            words = ptx.load_shared_x4(stage + weight_offset + turn * column_stride)
            started.append(ptx.start_products(arrange_fragments(words), descriptor + 2 * turn, tokens))
        done = turn - (GROUPS_IN_FLIGHT - 1)
        if done >= 0:
            weight_scales = ptx.load_shared_f32x4(stage + scale_offset + done * COLUMN_BYTES)
            if loaded:
                factors = [scales[done] for scales in loaded]
            else:
                factors = [ptx.float_of_bits(ptx.load_shared(address + 4 * done)) for address in addresses]
            products = ptx.finish_products(started[done], len(started) - 1 - done)
            if done == COLUMNS - 1:
                arrive_once(stage + pipeline.empty)
            for first_token, columns in parts(tokens):
                if first_token == 0:
                    accumulate_columns(sums, products, factors, weight_scales, columns)
                else:
                    accumulate_from(valid, first_token, sums, products, factors, weight_scales, columns)


@cute.jit
def accumulate_from(valid, first_token: Constexpr, sums, products, factors, weight_scales, columns: Constexpr):
    """Rescale and add results of one K32 group, if the tile has their tokens."""
    if valid > first_token:
        accumulate_columns(sums, products, factors, weight_scales, columns)


def accumulate_columns(sums, products, factors, weight_scales, columns):
    """Rescale the results of one K32 group in some result columns and add them."""
    for column in columns:
        for nt in range(4):
            product = products[nt // 2][4 * (column >> 1) + 2 * (nt % 2) + (column & 1)]
            scaled = ptx.mul_rn(product, factors[column])
            sums[4 * column + nt] = ptx.fma_rn(scaled, weight_scales[nt], sums[4 * column + nt])
