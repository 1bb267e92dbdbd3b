"""Tile product of sm_120a: block-scaled mma of E4M3 activations (16 rows) and E2M1 weights (8 columns), K 32.

Fragments (PTX ISA, warp-level matrix instructions, m16n8k32 with 8-bit elements): with q = lane / 4 and c = lane % 4,
byte ``i`` of the first register of a row is K 4c+i of the instruction, of the second 16+4c+i. The K of both operands
may be permuted alike: here lane c holds the real K 8c..8c+7, the even ones in the first register, the odd ones in the
second, so that a word of eight weights becomes both registers by two shifts and two masks.

Compiled and run on an emulator of the instruction, never on a device.

The functions of plain arithmetic take DSL words and numpy arrays alike.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, Uint32, cute
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma.memory import load_shared_x2, select
from planfreeze.kernels.mma.ptx import emit, load_global_x4, load_shared
from planfreeze.kernels.scales.geometry import RAW_TILE_BYTES

__all__ = [
    "accumulate_product",
    "activation_registers",
    "clear_tail",
    "load_activations",
    "place_activations",
    "rebuild_words",
    "scaled_product",
    "spread",
    "stage_tail_words",
    "stage_words",
    "weight_registers",
]

HEADER = 64
RECORDS = 68
ACTIVATION_STRIDE = 128
"""Bytes from one staged activation row to the next."""


def weight_registers(word):
    """Return the B registers of eight weights: an E2M1 code sits in bits 5..2 of its byte."""
    return (word << 2) & 0x3C3C3C3C, (word >> 2) & 0x3C3C3C3C


def spread(selectors):
    """Return a word whose byte ``i`` is bit ``i`` of a nibble."""
    return (selectors * 0x00204081) & 0x01010101


@dsl_user_op
def replicate(word, byte: Constexpr, *, loc=None, ip=None):
    """Return a word of four times one byte of ``word``.

    Volatile, so that it is not moved out of the loop: one instruction is cheaper than a register for each byte.
    """
    text = f"prmt.b32 $0, $1, 0, {0x1111 * byte:#06x};"
    (replicated,) = emit([T.i32()], [word], text, "=r,r", loc=loc, ip=ip)
    return Uint32(replicated)


@dsl_user_op
def activation_registers(low, high, *, loc=None, ip=None):
    """Return the even and the odd bytes of eight E4M3 activations in K order."""
    registers = []
    for order in ("0x6420", "0x7531"):
        text = f"prmt.b32 $0, $1, $2, {order};"
        registers += emit([T.i32()], [low, high], text, "=r,r,r", is_volatile=False, loc=loc, ip=ip)
    return tuple(Uint32(register) for register in registers)


@dsl_user_op
def scaled_product(activations, weights, activation_scale, weight_scale, byte: Constexpr, *, loc=None, ip=None):
    """Multiply one K32 group from a zero accumulator.

    Parameters
    ----------
    activations : tuple of 4 Uint32
        A registers: row q and row q+8 of the first half of K, then of the second.
    weights : tuple of 2 Uint32
        B registers of column q.
    activation_scale : Uint32
        E8M0 bytes of row ``q + 8 * (lane & 1)``; the lanes c = 0, 1 of each quad supply them.
    weight_scale : Uint32
        E8M0 bytes of column q; lane c = 0 of each quad supplies them.
    byte : int
        Which byte of both scale words applies.

    Returns
    -------
    tuple of 4 Float32
        Row q, columns 2c and 2c+1; row q+8, the same columns.
    """
    text = (
        "{\n.reg .f32 zero;\nmov.f32 zero, 0f00000000;\n"
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {zero,zero,zero,zero}, "
        f"{{$10}}, {{{byte},0}}, {{$11}}, {{{byte},0}};\n}}"
    )
    operands = [*activations, *weights, activation_scale, weight_scale]
    constraints = ",".join(["=f"] * 4 + ["r"] * 8)
    values = emit([T.f32()] * 4, operands, text, constraints, loc=loc, ip=ip)
    return tuple(Float32(value) for value in values)


@dsl_user_op
def accumulate_product(
    sums, activations, weights, activation_scale, weight_scale, byte: Constexpr, *, loc=None, ip=None
):
    """Multiply one K32 group and add it to ``sums``, four Float32, inside the instruction.

    Everything else is as for :func:`scaled_product`. The sums pass through tied registers. Volatile: every lane of
    the warp must reach it, so it must not be moved into the branch that uses its results.
    """
    text = (
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$0,$1,$2,$3}, "
        f"{{$10}}, {{{byte},0}}, {{$11}}, {{{byte},0}};"
    )
    operands = [*activations, *weights, activation_scale, weight_scale, *sums]
    constraints = ",".join(["=f"] * 4 + ["r"] * 8 + [str(i) for i in range(4)])
    values = emit([T.f32()] * 4, operands, text, constraints, loc=loc, ip=ip)
    return tuple(Float32(value) for value in values)


def stage_words(scales, row):
    """Load the scale words of rows ``row + 8 * nt`` from staged native words at shared address ``scales``."""
    return tuple(load_shared(scales + (row + 8 * nt) * 4) for nt in range(4))


def stage_tail_words(scales, row, is_tail):
    """Load scale words as :func:`stage_words`, from staged halves of two columns where ``is_tail`` (Int32 0 or 1).

    The upper half of a word made from a staged half is zero.
    """
    place = row << (2 - is_tail)
    first = scales + (place & ~3)
    shift = Uint32((place & 2) * 8)
    step = 32 >> is_tail
    return clear_tail(tuple(load_shared(first + step * nt) >> shift for nt in range(4)), is_tail)


def clear_tail(words, is_tail):
    """Clear the two upper bytes of scale words, columns that do not exist, where ``is_tail`` (Int32 0 or 1)."""
    kept = Uint32(0xFFFFFFFF) >> Uint32(is_tail * 16)
    return tuple(word & kept for word in words)


@cute.jit
def rebuild_words(block, bases, slot, raw):
    """Rebuild the scale words of slots ``slot .. slot+3`` from a staged block of inline storage.

    Parameters
    ----------
    block : Int32
        Shared address of the 96 bytes: 64 of selector nibbles, a header, seven exception records.
    bases : Uint32
        The four base bytes of the slots, lowest slot in the low byte.
    slot : Int32
        First slot, a multiple of 4.
    raw : Int64
        Global address of the raw tiles.

    Returns
    -------
    tuple of 4 Uint32
        The words a native stage would have held. Columns that do not exist (last K64) hold leftovers.

    Notes
    -----
    The header is the same for all threads, so both branches are uniform. Base bytes are at most 254: no carry.
    """
    selectors = load_shared(block + (slot >> 3) * 4) >> Uint32((slot & 4) * 4)
    word0 = replicate(bases, 0) + spread(selectors & 15)
    word1 = replicate(bases, 1) + spread((selectors >> 4) & 15)
    word2 = replicate(bases, 2) + spread((selectors >> 8) & 15)
    word3 = replicate(bases, 3) + spread((selectors >> 12) & 15)
    header = load_shared(block + HEADER)
    if header != 0:
        if Int32(header) < 0:
            tile = Int64(header & 0x7FFFFFFF) * RAW_TILE_BYTES
            word0, word1, word2, word3 = load_global_x4(raw + tile + Int64(slot * 4))
        else:
            for i in cutlass.range(Int32(header), unroll=1):
                record = load_shared(block + RECORDS + i * 4)
                offset = Int32(record & 127) - slot
                shift = (record >> 5) & 24
                keep = ~(Uint32(255) << shift)
                value = ((record >> 16) & 255) << shift
                word0 = select(offset == 0, (word0 & keep) | value, word0)
                word1 = select(offset == 1, (word1 & keep) | value, word1)
                word2 = select(offset == 2, (word2 & keep) | value, word2)
                word3 = select(offset == 3, (word3 & keep) | value, word3)
    return word0, word1, word2, word3


def place_activations(row, piece):
    """Return the offset of 16-byte piece ``piece`` (0..7) of an activation row in 16 staged rows of up to K128.

    Rows are 128 bytes apart. Bits 5 and 6 of the place are changed by the row, so that neither the 8-byte loads of
    :func:`load_activations` nor copies of whole rows or of their first halves meet in a bank.
    """
    return row * ACTIVATION_STRIDE + (piece * 16 ^ swizzle(row))


def load_activations(staged, quad, column, group: Constexpr):
    """Load the A registers of K32 group ``group`` from 16 rows staged as :func:`place_activations` says.

    ``quad`` and ``column`` are those of the lane. Returns what :func:`scaled_product` takes.
    """
    first = staged + quad * ACTIVATION_STRIDE + ((column * 8 | swizzle(quad)) ^ 32 * group)
    even, odd = activation_registers(*load_shared_x2(first))
    # Eight rows further the row changes the place alike.
    even_after, odd_after = activation_registers(*load_shared_x2(first + 8 * ACTIVATION_STRIDE))
    return even, even_after, odd, odd_after


def swizzle(row):
    """Return the bits of a place in a row of 128 bytes that the row changes."""
    return (row & 1) << 6 | (row & 2) << 4
