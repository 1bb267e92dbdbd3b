"""Words of integers: narrow loads, counters in shared memory, bytes and warp votes, as inline PTX.

Global addresses are Int64, shared addresses Int32, both in bytes. Warp votes need all 32 lanes.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Int32, Uint32
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma.ptx import emit

__all__ = [
    "add_bytes",
    "ballot",
    "count_bits",
    "count_shared",
    "load_global_byte",
    "load_global_half",
    "match_lanes",
    "permute_bytes",
    "store_shared",
    "store_shared_byte",
    "store_shared_x4",
]


@dsl_user_op
def load_global_byte(address, *, loc=None, ip=None):
    """Load one byte, with zeros above it."""
    (word,) = emit([T.i32()], [address], "ld.global.u8 $0, [$1];", "=r,l", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def load_global_half(address, *, loc=None, ip=None):
    """Load 16 bits, with zeros above them."""
    (word,) = emit([T.i32()], [address], "ld.global.u16 $0, [$1];", "=r,l", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def store_shared_byte(address, word, *, loc=None, ip=None):
    """Store the low byte of a word."""
    emit([], [address, word], "st.shared.b8 [$0], $1;", "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_shared(address, word, *, loc=None, ip=None):
    """Store one 32-bit word."""
    emit([], [address, word], "st.shared.b32 [$0], $1;", "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_shared_x4(address, words, *, loc=None, ip=None):
    """Store four 32-bit words to a 16-byte aligned address."""
    text = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};"
    emit([], [address, *words], text, "r,r,r,r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def count_shared(address, is_live, *, loc=None, ip=None):
    """Add one to a 32-bit counter that all threads share, where the condition holds."""
    text = "{\n.reg .pred live;\nsetp.ne.b32 live, $1, 0;\n@live red.shared.add.u32 [$0], 1;\n}"
    emit([], [address, Int32(is_live)], text, "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def match_lanes(word, *, loc=None, ip=None):
    """Return the lanes of the warp that hold the same word, one bit each."""
    text = "match.any.sync.b32 $0, $1, 0xffffffff;"
    (lanes,) = emit([T.i32()], [word], text, "=r,r", loc=loc, ip=ip)
    return Uint32(lanes)


@dsl_user_op
def ballot(condition, *, loc=None, ip=None):
    """Return the lanes of the warp where the condition holds, one bit each."""
    text = "{\n.reg .pred holds;\nsetp.ne.b32 holds, $1, 0;\nvote.sync.ballot.b32 $0, holds, 0xffffffff;\n}"
    (lanes,) = emit([T.i32()], [Int32(condition)], text, "=r,r", loc=loc, ip=ip)
    return Uint32(lanes)


@dsl_user_op
def count_bits(word, *, loc=None, ip=None):
    """Return how many bits of a word are set."""
    (count,) = emit([T.i32()], [word], "popc.b32 $0, $1;", "=r,r", is_volatile=False, loc=loc, ip=ip)
    return Int32(count)


@dsl_user_op
def permute_bytes(word, order, *, loc=None, ip=None):
    """Return four bytes of a word: nibble ``i`` of ``order``, 0..3, says which becomes byte ``i``."""
    text = "prmt.b32 $0, $1, 0, $2;"
    (bytes_,) = emit([T.i32()], [word, order], text, "=r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(bytes_)


@dsl_user_op
def add_bytes(word, weights, total, *, loc=None, ip=None):
    """Return ``total`` plus the unsigned bytes of a word, each times the byte of ``weights`` in its place."""
    text = "dp4a.u32.u32 $0, $1, $2, $3;"
    (made,) = emit([T.i32()], [word, weights, total], text, "=r,r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(made)
