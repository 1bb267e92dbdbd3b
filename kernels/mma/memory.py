"""Stores, staged copies and selections, as inline PTX; loads and arithmetic are in ``ptx``.

Global addresses are Int64, shared addresses Int32, both in bytes.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Int32, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from planfreeze.kernels.mma.ptx import emit

__all__ = [
    "barrier",
    "bits_of_float",
    "commit_copies",
    "copy_4",
    "copy_16",
    "load_shared_x2",
    "pack_bf16",
    "select",
    "store_global_byte",
    "store_global_x1",
    "store_global_x2",
    "store_global_x4",
    "wait_copies",
]


@dsl_user_op
def load_shared_x2(address, *, loc=None, ip=None):
    """Load two 32-bit words from an 8-byte aligned address."""
    text = "ld.shared.v2.u32 {$0,$1}, [$2];"
    words = emit([T.i32()] * 2, [address], text, "=r,=r,r,~{memory}", loc=loc, ip=ip)
    return tuple(Uint32(word) for word in words)


@dsl_user_op
def store_global_byte(address, word, *, loc=None, ip=None):
    """Store the low byte of a word."""
    emit([], [address, word], "st.global.b8 [$0], $1;", "l,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_global_x1(address, word, *, loc=None, ip=None):
    """Store one 32-bit word."""
    emit([], [address, word], "st.global.b32 [$0], $1;", "l,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_global_x2(address, words, *, loc=None, ip=None):
    """Store two 32-bit words to an 8-byte aligned address."""
    text = "st.global.v2.b32 [$0], {$1, $2};"
    emit([], [address, *words], text, "l,r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_global_x4(address, words, *, loc=None, ip=None):
    """Store four 32-bit words to a 16-byte aligned address."""
    text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
    emit([], [address, *words], text, "l,r,r,r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def copy_16(shared, source, size_bytes, is_live, *, loc=None, ip=None):
    """Start copying to 16 bytes of shared memory past L1, where ``is_live`` (Int32) is not zero.

    Only ``size_bytes`` (Int32, 0..16) are read from global memory; zeros follow them.
    """
    text = (
        "{\n.reg .pred live;\nsetp.ne.b32 live, $3, 0;\n@live cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;\n}"
    )
    emit([], [shared, source, size_bytes, is_live], text, "r,l,r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def copy_4(shared, source, is_live, *, loc=None, ip=None):
    """Start copying 4 bytes from global to shared memory, where ``is_live`` (Int32) is not zero."""
    text = "{\n.reg .pred live;\nsetp.ne.b32 live, $2, 0;\n@live cp.async.ca.shared.global [$0], [$1], 4;\n}"
    emit([], [shared, source, is_live], text, "r,l,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def commit_copies(*, loc=None, ip=None):
    """Close the group of copies this thread started since the last one; an empty group is complete at once."""
    emit([], [], "cp.async.commit_group;", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def wait_copies(pending: Constexpr, *, loc=None, ip=None):
    """Wait until at most ``pending`` of this thread's groups are in flight."""
    emit([], [], f"cp.async.wait_group {pending};", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def barrier(*, loc=None, ip=None):
    """Wait for all threads of the block; what they wrote to shared memory is then visible."""
    emit([], [], "bar.sync 0;", "~{memory}", loc=loc, ip=ip)


@dsl_user_op
def bits_of_float(value, *, loc=None, ip=None):
    """Return the bits of an f32 as a word."""
    return Uint32(llvm.bitcast(T.i32(), value.ir_value(loc=loc, ip=ip), loc=loc, ip=ip))


@dsl_user_op
def pack_bf16(low, high, *, loc=None, ip=None):
    """Round two f32 to nearest even bf16 and pack them, ``low`` in the low half."""
    text = "cvt.rn.bf16x2.f32 $0, $2, $1;"
    (word,) = emit([T.i32()], [low, high], text, "=r,f,f", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def select(condition, a, b, *, loc=None, ip=None):
    """Return word ``a`` where the condition holds, else ``b``, without a branch."""
    text = "{\n.reg .pred holds;\nsetp.ne.b32 holds, $1, 0;\nselp.b32 $0, $2, $3, holds;\n}"
    operands = [Int32(condition), a, b]
    (word,) = emit([T.i32()], operands, text, "=r,r,r,r", is_volatile=False, loc=loc, ip=ip)
    return Uint32(word)
