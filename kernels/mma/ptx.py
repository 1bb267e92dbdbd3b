"""The PTX instructions of the sm_90a kernels that CuTe DSL has no plain-address form for.

Shared addresses are ``Int32`` offsets in the shared window, global addresses ``Int64``. Instructions that touch
memory or barriers are volatile and keep their order; arithmetic is not, so that unused results disappear. Global loads
are coherent ones: what a kernel reads may be written while it already waits for the launch before it.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op


def emit(results, operands, text, constraints, *, is_volatile=True, loc, ip):
    """Place one asm statement; ``results`` is a list of MLIR types, the return value a list of MLIR values."""
    if not results:
        kind = None
    elif len(results) == 1:
        kind = results[0]
    else:
        kind = llvm.StructType.get_literal(results)
    made = llvm.inline_asm(
        kind,
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        constraints,
        has_side_effects=is_volatile,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    if len(results) < 2:
        return [made]
    return [llvm.extractvalue(part, made, [i], loc=loc, ip=ip) for i, part in enumerate(results)]


# --- barriers and bulk copies ---------------------------------------------------------------------------------


@dsl_user_op
def init_barrier(barrier, arrivals: Constexpr, *, loc=None, ip=None):
    """Set up an mbarrier whose phases end after ``arrivals`` arrivals."""
    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
    emit([], [barrier], text, "r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def arrive(barrier, *, loc=None, ip=None):
    """Arrive once on an mbarrier, releasing this thread's earlier accesses."""
    emit([], [barrier], "mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def arrive_expecting(barrier, size_bytes, *, loc=None, ip=None):
    """Arrive once and let the phase wait for ``size_bytes`` of bulk copies."""
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    emit([], [barrier, size_bytes], text, "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def expect(barrier, size_bytes, *, loc=None, ip=None):
    """Let the current phase of an mbarrier wait for ``size_bytes`` more of bulk copies, without arriving."""
    text = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
    emit([], [barrier, size_bytes], text, "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def wait(barrier, parity, *, loc=None, ip=None):
    """Wait until the phase of the given parity has ended."""
    text = (
        "{\n.reg .pred done;\n"
        "again_${:uid}:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n"
        "@!done bra again_${:uid};\n}"
    )
    emit([], [barrier, parity], text, "r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def copy_bulk(shared, source, size_bytes, barrier, *, loc=None, ip=None):
    """Copy global bytes to shared memory asynchronously; addresses and size are multiples of 16."""
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    emit([], [shared, source, size_bytes, barrier], text, "r,l,r,r,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def read_thread(*, loc=None, ip=None):
    """Return the thread's number in its block, read here: what is made of it is not kept from before a loop."""
    (thread,) = emit([T.i32()], [], "mov.u32 $0, %tid.x;", "=r", loc=loc, ip=ip)
    return Int32(thread)


# --- loads and stores -----------------------------------------------------------------------------------------


@dsl_user_op
def load_shared(address, *, loc=None, ip=None):
    """Load one 32-bit word."""
    (word,) = emit([T.i32()], [address], "ld.shared.u32 $0, [$1];", "=r,r,~{memory}", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def load_shared_half(address, *, loc=None, ip=None):
    """Load 16 bits, with zeros above them."""
    text = "{\n.reg .b16 half;\nld.shared.b16 half, [$1];\ncvt.u32.u16 $0, half;\n}"
    (word,) = emit([T.i32()], [address], text, "=r,r,~{memory}", loc=loc, ip=ip)
    return Uint32(word)


@dsl_user_op
def load_shared_x4(address, *, loc=None, ip=None):
    """Load four 32-bit words from a 16-byte aligned address."""
    text = "ld.shared.v4.u32 {$0,$1,$2,$3}, [$4];"
    words = emit([T.i32()] * 4, [address], text, "=r,=r,=r,=r,r,~{memory}", loc=loc, ip=ip)
    return tuple(Uint32(word) for word in words)


@dsl_user_op
def load_shared_f32x4(address, *, loc=None, ip=None):
    """Load four fp32 values from a 16-byte aligned address."""
    text = "ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];"
    values = emit([T.f32()] * 4, [address], text, "=f,=f,=f,=f,r,~{memory}", loc=loc, ip=ip)
    return tuple(Float32(value) for value in values)


@dsl_user_op
def store_shared_f32(address, value, *, loc=None, ip=None):
    """Store one fp32 value."""
    emit([], [address, value], "st.shared.f32 [$0], $1;", "r,f,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_shared_f32x4(address, values, *, loc=None, ip=None):
    """Store four fp32 values to a 16-byte aligned address."""
    text = "st.shared.v4.f32 [$0], {$1,$2,$3,$4};"
    emit([], [address, *values], text, "r,f,f,f,f,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def load_global_i32(address, *, loc=None, ip=None):
    """Load a 32-bit integer."""
    (value,) = emit([T.i32()], [address], "ld.global.b32 $0, [$1];", "=r,l", loc=loc, ip=ip)
    return Int32(value)


@dsl_user_op
def load_global_i64(address, *, loc=None, ip=None):
    """Load a 64-bit integer."""
    (value,) = emit([T.i64()], [address], "ld.global.b64 $0, [$1];", "=l,l", loc=loc, ip=ip)
    return Int64(value)


@dsl_user_op
def load_global_f32(address, *, loc=None, ip=None):
    """Load an fp32 value."""
    (value,) = emit([T.f32()], [address], "ld.global.f32 $0, [$1];", "=f,l", loc=loc, ip=ip)
    return Float32(value)


@dsl_user_op
def load_global_x4(address, *, loc=None, ip=None):
    """Load four 32-bit words from a 16-byte aligned address."""
    text = "ld.global.v4.u32 {$0,$1,$2,$3}, [$4];"
    words = emit([T.i32()] * 4, [address], text, "=r,=r,=r,=r,l", loc=loc, ip=ip)
    return tuple(Uint32(word) for word in words)


@dsl_user_op
def store_global_bf16(address, value, *, loc=None, ip=None):
    """Round an fp32 value to bf16 (nearest even) and store it."""
    text = "{\n.reg .b16 half;\ncvt.rn.bf16.f32 half, $1;\nst.global.b16 [$0], half;\n}"
    emit([], [address, value], text, "l,f,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_global_f32(address, value, *, loc=None, ip=None):
    """Store one fp32 value."""
    emit([], [address, value], "st.global.f32 [$0], $1;", "l,f,~{memory}", loc=loc, ip=ip)


@dsl_user_op
def store_global_half(address, word, *, loc=None, ip=None):
    """Store the low 16 bits of a word."""
    text = "{\n.reg .b16 half;\ncvt.u16.u32 half, $1;\nst.global.b16 [$0], half;\n}"
    emit([], [address, word], text, "l,r,~{memory}", loc=loc, ip=ip)


# --- arithmetic -----------------------------------------------------------------------------------------------


@dsl_user_op
def float_of_bits(word, *, loc=None, ip=None):
    """Read 32 bits as fp32."""
    return Float32(llvm.bitcast(T.f32(), word.ir_value(loc=loc, ip=ip), loc=loc, ip=ip))


@dsl_user_op
def mul_rn(a, b, *, loc=None, ip=None):
    """Multiply fp32 values; never contracted into an fma."""
    text = "mul.rn.f32 $0, $1, $2;"
    return Float32(emit([T.f32()], [a, b], text, "=f,f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def add_rn(a, b, *, loc=None, ip=None):
    """Add fp32 values; never contracted into an fma."""
    text = "add.rn.f32 $0, $1, $2;"
    return Float32(emit([T.f32()], [a, b], text, "=f,f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def fma_rn(a, b, c, *, loc=None, ip=None):
    """Compute ``a * b + c`` in fp32 with one rounding."""
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return Float32(emit([T.f32()], [a, b, c], text, "=f,f,f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def negate(a, *, loc=None, ip=None):
    """Return ``-a``."""
    return Float32(emit([T.f32()], [a], "neg.f32 $0, $1;", "=f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def min_nan(a, b, *, loc=None, ip=None):
    """Return the smaller fp32 value, NaN if one is NaN."""
    text = "min.NaN.f32 $0, $1, $2;"
    return Float32(emit([T.f32()], [a, b], text, "=f,f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def max_nan(a, b, *, loc=None, ip=None):
    """Return the larger fp32 value, NaN if one is NaN."""
    text = "max.NaN.f32 $0, $1, $2;"
    return Float32(emit([T.f32()], [a, b], text, "=f,f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def reciprocal(a, *, loc=None, ip=None):
    """Return ``1 / a`` in fp32, rounded to nearest."""
    return Float32(emit([T.f32()], [a], "rcp.rn.f32 $0, $1;", "=f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def reciprocal_approximate(a, *, loc=None, ip=None):
    """Return ``1 / a`` in fp32 within 1 ulp, subnormals flushed (PTX ISA, rcp.approx)."""
    text = "rcp.approx.ftz.f32 $0, $1;"
    return Float32(emit([T.f32()], [a], text, "=f,f", is_volatile=False, loc=loc, ip=ip)[0])


@dsl_user_op
def power_of_two_approximate(a, *, loc=None, ip=None):
    """Return ``2^a`` in fp32 to about 22 bits, subnormals flushed (PTX ISA, ex2.approx)."""
    text = "ex2.approx.ftz.f32 $0, $1;"
    return Float32(emit([T.f32()], [a], text, "=f,f", is_volatile=False, loc=loc, ip=ip)[0])


PREDICATES = 7
"""The predicates of a thread."""


@dsl_user_op
def select_by_bits(choices, word, *, loc=None, ip=None):
    """Return 16 fp32 values: bit ``i`` of a word chooses between two bit patterns, ``choices[i // 4]``.

    Written so that one instruction sets the predicates of as many bits as a thread has predicates.
    """
    lines = ["{", f".reg .pred is_set<{PREDICATES}>;", ".reg .b32 bits, masked, chosen;"]
    for first in range(0, 16, PREDICATES):
        sources = range(first, min(first + PREDICATES, 16))
        lines.append(f"shr.u32 bits, $24, {first};")
        for i in sources:
            lines.append(f"and.b32 masked, bits, {1 << (i - first)};")
            lines.append(f"setp.ne.u32 is_set{i - first}, masked, 0;")
        for i in sources:
            low = 16 + 2 * (i // 4)
            lines.append(f"selp.b32 chosen, ${low + 1}, ${low}, is_set{i - first};")
            lines.append(f"mov.b32 ${i}, chosen;")
    lines.append("}")
    operands = [*(bits for pair in choices for bits in pair), word]
    # Results are written while operands are still read.
    constraints = ",".join(["=&f"] * 16 + ["r"] * 9)
    values = emit([T.f32()] * 16, operands, "\n".join(lines), constraints, is_volatile=False, loc=loc, ip=ip)
    return [Float32(value) for value in values]


# --- tile products --------------------------------------------------------------------------------------------


@dsl_user_op
def start_products(fragments, descriptor, tokens: Constexpr = 8, *, loc=None, ip=None):
    """Start e4m3 products m64 by ``tokens`` by k32 from zero: register fragments times one shared-memory operand.

    Parameters
    ----------
    fragments : list of 4-tuples of Uint32
        The A operand of each product.
    descriptor : Int64
        Matrix descriptor of the common B operand.
    tokens : int
        N of the products.

    Returns
    -------
    list of list of Float32
        ``tokens / 2`` results per product, valid after :func:`finish_products`. All products are one wgmma group.
    """
    size = tokens // 2
    count = size * len(fragments)
    words = 4 * len(fragments)
    lines = ["{", ".reg .pred accumulate;", "setp.ne.b32 accumulate, 0, 0;", "wgmma.fence.sync.aligned;"]
    for product in range(len(fragments)):
        results = ",".join(f"${size * product + i}" for i in range(size))
        fragment = ",".join(f"${count + 4 * product + i}" for i in range(4))
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3 {{{results}}}, {{{fragment}}}, "
            f"${count + words}, accumulate, 1, 1;"
        )
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    operands = [word for fragment in fragments for word in fragment] + [descriptor]
    constraints = ",".join(["=f"] * count + ["r"] * words + ["l", "~{memory}"])
    values = emit([T.f32()] * count, operands, "\n".join(lines), constraints, loc=loc, ip=ip)
    return [[Float32(value) for value in values[first : first + size]] for first in range(0, count, size)]


@dsl_user_op
def finish_products(products, pending: Constexpr, *, loc=None, ip=None):
    """Wait until at most ``pending`` later groups are unfinished, and return the results of ``products``.

    The results pass through the statement: nothing that reads them can move above the wait.
    """
    flat = [value for product in products for value in product]
    count, size = len(flat), len(products[0])
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["~{memory}"])
    text = f"wgmma.wait_group.sync.aligned {pending};"
    values = emit([T.f32()] * count, flat, text, constraints, loc=loc, ip=ip)
    return [[Float32(value) for value in values[first : first + size]] for first in range(0, count, size)]
