"""Kernel of family ``micro_act``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.launch import launch_once, start_next, wait_for_previous
from planfreeze.kernels.mma.memory import bits_of_float, pack_bf16, select, store_global_byte, store_global_x1
from planfreeze.kernels.mma.mxfp8 import NOT_FINITE, block_amax, block_scale, low_high, round_e4m3, scale_factor
from planfreeze.kernels.mma.tasks import load_id, split_task
from planfreeze.kernels.moe.geometry import padded_width, row_tiles

__all__ = ["MicroAct", "approximate_sigmoid", "sigmoid", "silu_product"]

COLUMNS = 4
"""Columns of a lane."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860677e-6
"""ln 2 in two parts: the upper one has 15 bits, so that its products with small whole numbers are exact."""
ROUNDER = 12582912.0
"""1.5 * 2^23: an f32 added to it is rounded to a whole number, which is then in the low mantissa bits."""
INVERSE_FACTORIALS = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


class MicroAct:
    """Activation of every route, quantised, one route and one tile of 128 columns per block.

    Math: gate and up are ``bf16(alpha[e] * sum)`` with e = topk_ids[pair], where ``sum`` is that of the parts in their
    order, ``((p0 + p1) + p2) + p3``. Of them ``bf16(silu(min(gate, L)) * clamp(up, -L, L))`` with silu(x) = x * (1 /
    (1 + exp(-x))), every operation in fp32 and rounded on its own; then MXFP8 as in
    :mod:`planfreeze.kernels.mma.mxfp8`. A NaN stays one through the limits. Without ``fast_math`` the same bits come
    from every architecture: exp within 1 ulp (see :func:`exponential`), the reciprocal rounded to nearest. With it,
    ``ex2.approx`` and ``rcp.approx``, flushing subnormals.

    Arguments: ``projections`` f32 ``(parts, pairs, 2 * intermediate)``, gate columns first; ``topk_ids`` ``(pairs,)``;
    ``alpha`` f32 ``(experts,)``; ``intermediate`` u8 of ``rows`` rows: payload ``(rows, padded)``, then scales
    ``(padded / 128, rows, 4)``, bytes or f32 ``byte << 23``; ``pairs``, ``experts`` and ``rows``. Tensors are 16-byte
    aligned, ids to their own size. Payload bytes are in K order, or in paired order as in ``act_quant``. Padding
    columns get zero payload and zero scales.
    Rows of routes with an id outside 0..experts-1 are neither read nor written.

    Tiles: one warp; a lane has four columns, eight neighbouring lanes a group of 32. No shared memory. sm_90a and
    sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        32 threads.
    intermediate : int
        Columns of each half, a multiple of 64.
    id_bits : int
        32 or 64: width of the expert ids.
    parts : int
        Parts of every column's sum.
    is_paired, is_float_scale : bool
        Store the payload in paired order; store scales as f32.
    limit : str
        Decimal text of L; empty for none.
    fast_math : bool
        Use the approximate instructions.
    """

    def __init__(
        self,
        *,
        launch: LaunchInfo,
        intermediate: int,
        id_bits: int,
        parts: int,
        is_paired: bool,
        is_float_scale: bool,
        limit: str = "",
        fast_math: bool = False,
    ) -> None:
        assert launch.block == (32, 1, 1)
        self.launch = launch
        self.intermediate = intermediate
        self.id_bits = id_bits
        self.parts = parts
        self.is_paired = is_paired
        self.scale_bytes = 4 if is_float_scale else 1
        self.limit = float(limit) if limit else None
        self.sigmoid = approximate_sigmoid if fast_math else sigmoid
        self.tiles = row_tiles(intermediate)
        self.padded = padded_width(intermediate)

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "MicroAct"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(tuple(parameters)), self.launch, stream)

    @cute.kernel
    def kernel(self, parameters):
        projections, topk_ids, alpha, intermediate, pairs, experts, rows = parameters
        # At once, so that the second projection copies weights while the first one multiplies.
        start_next()
        lane, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        pair, tile = split_task(block, self.tiles)
        column = tile * 128 + lane * COLUMNS
        # Lanes past the last column repeat the first one's reads.
        is_live = column < self.intermediate
        read_column = Int32(select(is_live, Uint32(column), Uint32(0)))
        expert = load_id(topk_ids, pair, self.id_bits)
        is_routed = (expert >= 0) & (expert < experts)
        factor = Float32(0.0)
        if is_routed:
            factor = ptx.load_global_f32(alpha + Int64(expert) * 4)
        # Ids and factors are older than the launch before this one, which makes the projections.
        wait_for_previous()
        if is_routed:
            row_bytes = 8 * self.intermediate
            gate_address = projections + Int64(pair) * row_bytes + Int64(read_column) * 4
            part_bytes = Int64(pairs) * row_bytes
            # All loads are started before the first is waited for.
            gate_parts = self.load_parts(gate_address, part_bytes)
            up_parts = self.load_parts(gate_address + 4 * self.intermediate, part_bytes)
            gate, up = join_parts(gate_parts, factor), join_parts(up_parts, factor)
            words = [select(is_live, self.activate(g, u), Uint32(0)) for g, u in zip(gate, up, strict=True)]
            byte, is_finite = block_scale(block_amax(words, lanes=8))
            self.store_payload(
                intermediate + Int64(pair) * self.padded + Int64(tile * 128), lane, words, byte, is_finite
            )
            if (lane & 7) == 0:
                scales = intermediate + Int64(rows) * self.padded
                scales = scales + (Int64(tile) * rows + Int64(pair)) * (4 * self.scale_bytes)
                self.store_scale(scales + Int64((lane >> 3) * self.scale_bytes), select(is_live, byte, Uint32(0)))

    def load_parts(self, address, part_bytes):
        """Load the words of a lane's four columns, part by part."""
        return [ptx.load_global_x4(address + part_bytes * part) for part in range(self.parts)]

    def activate(self, gate, up):
        """Return silu(gate) * up of two columns as packed bf16."""
        low = silu_product(ptx.float_of_bits(gate << 16), ptx.float_of_bits(up << 16), self.sigmoid, self.limit)
        upper = Uint32(0xFFFF0000)
        high = silu_product(ptx.float_of_bits(gate & upper), ptx.float_of_bits(up & upper), self.sigmoid, self.limit)
        return pack_bf16(low, high)

    def store_payload(self, tile_address, lane, words, byte, is_finite):
        """Quantise and store a lane's four columns."""
        low, high = low_high(words, scale_factor(byte))
        if self.is_paired:
            # Lane g of a group has K 4g..4g+3: the even ones are stored at 2g, the odd ones at 16 + 2g.
            payload = select(is_finite, round_e4m3(low[0], low[1], high[0], high[1]), Uint32(NOT_FINITE))
            target = tile_address + Int64((lane >> 3) * 32 + (lane & 7) * 2)
            ptx.store_global_half(target, payload)
            ptx.store_global_half(target + 16, payload >> 16)
        else:
            payload = select(is_finite, round_e4m3(low[0], high[0], low[1], high[1]), Uint32(NOT_FINITE))
            store_global_x1(tile_address + Int64(lane * COLUMNS), payload)

    def store_scale(self, address, byte):
        """Store the scale of a group."""
        if cutlass.const_expr(self.scale_bytes == 4):
            store_global_x1(address, byte << 23)
        else:
            store_global_byte(address, byte)


def join_parts(parts, factor):
    """Add the parts of four columns in their order, and return the sums times the factor as two words of bf16."""
    values = []
    for words in zip(*parts, strict=True):
        total = ptx.float_of_bits(words[0])
        for word in words[1:]:
            total = ptx.add_rn(total, ptx.float_of_bits(word))
        values.append(ptx.mul_rn(total, factor))
    return pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3])


def sigmoid(x):
    """Return 1 / (1 + exp(-x)), each operation rounded to nearest."""
    return ptx.reciprocal(ptx.add_rn(exponential(ptx.negate(x)), Float32(1.0)))


def approximate_sigmoid(x):
    """Return 1 / (1 + 2^(-x * log2(e))) by the approximate instructions."""
    power = ptx.power_of_two_approximate(ptx.mul_rn(x, Float32(-LOG2_E)))
    return ptx.reciprocal_approximate(ptx.add_rn(power, Float32(1.0)))


def exponential(x):
    """Return exp(x) for an exp that is added to one: within 1 ulp above -64, and exp(-64) below.

    With n = x / ln 2 to the nearest whole number, exp(x) = 2^n * exp(x - n ln 2); the second factor is the Taylor
    polynomial of degree 7, whose remainder on +-ln(2)/2 is 5e-9. Overflow gives infinity. Only fma, add, mul and
    integers: the same bits everywhere.
    """
    # Below -64 the sum with one is one; above 128 it is infinite. Between them n has nine bits.
    x = ptx.min_nan(ptx.max_nan(x, Float32(-64.0)), Float32(128.0))
    shifted = ptx.fma_rn(x, Float32(LOG2_E), Float32(ROUNDER))
    whole = ptx.add_rn(shifted, Float32(-ROUNDER))
    rest = ptx.fma_rn(whole, Float32(-LN2_HIGH), x)
    rest = ptx.fma_rn(whole, Float32(-LN2_LOW), rest)
    result = Float32(INVERSE_FACTORIALS[0])
    for factor in INVERSE_FACTORIALS[1:]:
        result = ptx.fma_rn(result, rest, Float32(factor))
    # In two steps, because 2^n itself may be too large for f32.
    n = Int32(bits_of_float(shifted) - bits_of_float(Float32(ROUNDER)))
    half = n >> 1
    result = ptx.mul_rn(result, ptx.float_of_bits(Uint32(half + 127) << 23))
    return ptx.mul_rn(result, ptx.float_of_bits(Uint32(n - half + 127) << 23))


def silu_product(gate, up, sigmoid, limit):
    """Return silu(gate) * up of one column, gate at most ``limit`` and up within it unless that is None."""
    if limit is not None:
        gate = ptx.min_nan(gate, Float32(limit))
        up = ptx.max_nan(ptx.min_nan(up, Float32(limit)), Float32(-limit))
    return ptx.mul_rn(ptx.mul_rn(gate, sigmoid(gate)), up)
