"""Activations of several tokens as an operand of wgmma on sm_90a, and their scales.

The operand has as many rows as the m tile. They are gathered token by token with 16-byte copies into the 128-byte
swizzle: row ``p`` of the operand is at ``128 * p``, its 16-byte chunk ``ch`` at ``ch ^ (p & 7)``.

Lane ``4*quad + c`` receives the results of operand rows ``8*f + 2*c`` and ``8*f + 2*c + 1`` of every eight, and slot
``j = 2*f + x`` of a lane is row ``8*f + 2*c + x``. Tokens are ordered so that it belongs to token ``4*j + c``: every
slot has one of four tokens in a row, and is left out where a tile has none of them.

A lane's scales of the tokens of its slots lie together, so that 16 bytes are loaded at once: those of ``v`` tokens,
four or as many as a lane has, in ``4 / v`` K32 groups.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", register fragments, swizzling modes and matrix
descriptor.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, cute
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import copy_16, load_shared_x2
from planfreeze.kernels.mma.sm_90a import COLUMNS
from planfreeze.kernels.mma.stage_sm_90a import ROW_BYTES, ROW_SCALE_BYTES

__all__ = [
    "ScalePlane",
    "consumer_barrier",
    "copy_tokens",
    "fence_async",
    "permute_bytes",
    "token_descriptor",
    "token_of_slot",
]

CHUNK_BYTES = 16
VECTOR_BYTES, VALUES = 16, 4
"""What a lane loads of scales at once."""


# --- instructions -----------------------------------------------------------------------------------------------


@dsl_user_op
def fence_async(*, loc=None, ip=None):
    """Order this thread's earlier accesses to shared memory before those of wgmma and bulk copies.

    Before those of other threads once a barrier follows.
    """
    ptx.emit([], [], "fence.proxy.async.shared::cta;", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def consumer_barrier(warpgroup, *, loc=None, ip=None):
    """Wait for the 128 threads of a warpgroup, counted from 0; what they wrote to shared memory is visible to them."""
    ptx.emit([], [Int32(warpgroup) + 1], "bar.sync $0, 128;", "r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def permute_bytes(a, b, order, *, loc=None, ip=None):
    """Pick four bytes out of two words: nibble ``i`` of ``order`` names byte ``i``, 0..3 of ``a`` and 4..7 of ``b``."""
    text = "prmt.b32 $0, $1, $2, $3;"
    (word,) = ptx.emit([T.i32()], [a, b, order], text, "=r,r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)


# --- operand ----------------------------------------------------------------------------------------------------


def token_of_slot(lane, slot):
    """Return the token of one of a lane's slots."""
    return (lane & 3) + 4 * slot


def chunk_offsets(lane, tokens):
    """Return where in the operand chunk ``lane & 7`` of each token ``4 * i + (lane >> 3)`` belongs."""
    chunk, row = lane & 7, 2 * (lane >> 3)
    first = row * ROW_BYTES + ((chunk ^ row) << 4)
    return [(first ^ (CHUNK_BYTES * (i & 1))) + (8 * (i >> 1) + (i & 1)) * ROW_BYTES for i in range(tokens // 4)]


class ScalePlane:
    """Where the fp32 scales of an m tile's tokens are in a stage.

    Parameters
    ----------
    tokens : int
        Rows of the m tile: 8, 16 or 32.
    """

    def __init__(self, tokens):
        self.tokens = tokens
        # Tokens and K32 groups of 16 bytes, and the groups of tokens that a lane has one of.
        self.width = min(VALUES, tokens // 4)
        self.columns = VALUES // self.width
        self.blocks = tokens // (4 * self.width)

    def token_offset(self, token):
        """Return where the scale of a token in the first K32 group is."""
        slot = token >> 2
        place = (token & 3) * VALUES + (slot & (self.width - 1))
        if self.blocks > 1:
            place = place + (slot >> 2) * (4 * VALUES)
        return 4 * place

    def column_offset(self, column):
        """Return the distance of a token's scale in a K32 group to the one in the first."""
        # One column or two.
        vectors = 4 * self.blocks * (column >> (self.columns - 1))
        return VECTOR_BYTES * vectors + 4 * self.width * (column & (self.columns - 1))

    def arrange(self, address, lane):
        """Bring the scales of an m tile, 16 bytes of every token, into this order; one warp."""
        # Lanes past the last token load what another does, and store nothing.
        scales = ptx.load_shared_f32x4(address + (lane & (self.tokens - 1)) * ROW_SCALE_BYTES)
        cute.arch.sync_warp()
        self.store(address, lane, scales)

    @cute.jit
    def store(self, address, lane, scales):
        """Store the scales of token ``lane``, if there is one."""
        if lane < self.tokens:
            target = address + self.token_offset(lane)
            for column in cutlass.range_constexpr(COLUMNS):
                ptx.store_shared_f32(target + self.column_offset(column), scales[column])

    def prepare(self, address, lane, slots):
        """Return a function that loads the scales of a K32 group, one for each of a lane's first slots."""
        first = address + (lane & 3) * VECTOR_BYTES
        loaded = {}

        def load(column):
            vector = column // self.columns
            if vector not in loaded:
                loaded[vector] = self.load_vectors(first + self.column_offset(vector * self.columns), slots)
            start = self.width * (column % self.columns)
            return loaded[vector][start : start + slots]

        return load

    def load_vectors(self, address, slots):
        """Load 16 bytes of each of a lane's blocks of tokens; of a last one that has only two slots, eight."""
        values = []
        for block in range(-(-slots // self.width)):
            source = address + 4 * VECTOR_BYTES * block
            if self.columns == 1 and slots - self.width * block == 2:
                values += [ptx.float_of_bits(word) for word in load_shared_x2(source)]
            else:
                values += ptx.load_shared_f32x4(source)
        return values


def copy_tokens(pipeline, stage, lane, source, rows, pitch_bytes, row_scales, valid):
    """Start the copies of K128 of the first ``valid`` tokens and of their scales; one warp.

    Token ``4 * i + (lane >> 3)`` is row ``rows[i]`` in memory, ``pitch_bytes`` from one to the next; ``source`` is this
    lane's chunk of row 0, and ``row_scales`` where the scales of token ``lane`` are. Of sixteen tokens, all are left
    out if none is valid. The rest of the operand stays what it was, and reaches only result columns that nobody reads.
    """
    targets = [stage + pipeline.activations + offset for offset in chunk_offsets(lane, 4 * len(rows))]
    for first in range(0, len(rows), 4):
        some = slice(first, first + 4)
        if first == 0:
            start_copies(0, targets[some], lane, source, rows[some], pitch_bytes, valid)
        else:
            start_copies_from(4 * first, targets[some], lane, source, rows[some], pitch_bytes, valid)
    target = stage + pipeline.activation_scales + lane * ROW_SCALE_BYTES
    copy_16(target, row_scales, Int32(ROW_SCALE_BYTES), Int32(lane < valid))


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
    low = Int64(address >> 4)
    return low | Int64((1 << 62) | (64 << 32) | (1 << 16))
