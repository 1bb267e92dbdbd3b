"""Tile product of MXFP4 weights and the MXFP8 activations of an m tile on sm_90a.

Like the product of one row in ``sm_90a``, whose decoding, stages and rounding this uses; the operand and its scales are
those of ``tokens_sm_90a``. A tile is multiplied at the least width there is for its valid rows, a multiple of 8, and
rescaled at a multiple of 4. The weights of a K32 group are read and decoded once for all rows of the tile.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Int64, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens

__all__ = ["RowProduct"]

WHOLE_SLOTS = {8: 2, 16: 2, 32: 4}
"""By rows of a tile, the most slots for which both products of a K32 group are one unit: what the registers hold."""


class RowProduct:
    """The product of a stage's 128 weight rows and an m tile, for the lanes of the warpgroup.

    Parameters
    ----------
    pipeline : Pipeline
        Stages whose activations are a swizzled operand of ``tile_m`` rows.
    tile_m : int
        Rows of an m tile: 8, 16 or 32.
    column_stride : int
        Distance of K32 groups in a lane's weights.
    long_slots : int
        The most slots for which a whole step is multiplied without a pause. For more, two K32 groups are multiplied by
        the same instructions as the two after them, which leaves the compiler registers enough.

    Notes
    -----
    Products are started in units and two units are in flight, so that one is rescaled while the next is multiplied. A
    unit is the two products of a K32 group, or for many rows one of them: results of more are more than the registers
    hold.
    """

    UNITS_IN_FLIGHT = 2

    def __init__(self, pipeline, *, tile_m, column_stride, long_slots):
        self.pipeline = pipeline
        self.tile_m = tile_m
        self.column_stride = column_stride
        self.long_slots = long_slots
        self.slots = tile_m // 4
        self.plane = tokens.ScalePlane(tile_m)

    def multiply(self, stage, lane, weight_offset, scale_offset, valid, sums, columns=mma.COLUMNS):
        """Add the products of a stage to ``sums[4 * slot + nt]`` of result column ``slot`` and row ``nt``.

        Offsets are this lane's, in the stage. Of the stage's K32 groups only the first ``columns`` are read, an even
        number. Sums of rows from ``valid`` on have no meaning. The stage is free for the producer once its last results
        are there.
        """
        weights, scales = stage + weight_offset, stage + scale_offset
        self.choose(stage, lane, weights, scales, valid, sums, columns, self.slots)

    @cute.jit
    def choose(self, stage, lane, weights, scales, valid, sums, columns, slots: Constexpr):
        """Multiply with the least even number of slots, at most ``slots``, that holds the valid rows."""
        if cutlass.const_expr(slots > 2):
            if valid > 4 * (slots - 2):
                self.multiply_slots(stage, lane, weights, scales, valid, sums, columns, slots)
            else:
                self.choose(stage, lane, weights, scales, valid, sums, columns, slots - 2)
        else:
            self.multiply_slots(stage, lane, weights, scales, valid, sums, columns, slots)

    @cute.jit
    def multiply_slots(self, stage, lane, weights, scales, valid, sums, columns, slots: Constexpr):
        """Multiply for the first ``slots`` slots of each lane."""
        descriptor = tokens.token_descriptor(stage + self.pipeline.activations)
        row_scales = stage + self.pipeline.activation_scales
        empty = stage + self.pipeline.empty
        if cutlass.const_expr(slots > self.long_slots):
            for first in cutlass.range(0, columns, 2, unroll=1):
                self.multiply_columns(
                    lane,
                    descriptor + 2 * Int64(first),
                    weights + self.column_stride * first,
                    scales + mma.COLUMN_BYTES * first,
                    row_scales + (self.plane.column_offset(2) // 2) * first,
                    valid,
                    sums,
                    2,
                    slots,
                )
            mma.arrive_once(empty)
        else:
            self.multiply_columns(lane, descriptor, weights, scales, row_scales, valid, sums, columns, slots, empty)

    def multiply_columns(self, lane, descriptor, weights, scales, row_scales, valid, sums, columns, slots, empty=None):
        """Multiply some K32 groups, and arrive on ``empty`` when the last results are there."""
        load_scales = self.plane.prepare(row_scales, lane, slots)
        unit_products = ((0, 1),) if slots <= WHOLE_SLOTS[self.tile_m] else ((0,), (1,))
        units = [(column, products) for column in range(columns) for products in unit_products]
        started = []
        for index in range(len(units) + self.UNITS_IN_FLIGHT - 1):
            if index < len(units):
                column, products = units[index]
                if products[0] == 0:
                    fragments = mma.arrange_fragments(ptx.load_shared_x4(weights + column * self.column_stride))
                # The descriptor counts 16 bytes.
                started.append(ptx.start_products([fragments[b] for b in products], descriptor + 2 * column, 4 * slots))
            done = index - (self.UNITS_IN_FLIGHT - 1)
            if done >= 0:
                column, products = units[done]
                if products[0] == 0:
                    weight_scales = ptx.load_shared_f32x4(scales + column * mma.COLUMN_BYTES)
                    factors = load_scales(column)
                results = ptx.finish_products(started[done], len(started) - 1 - done)
                if empty is not None and done == len(units) - 1:
                    mma.arrive_once(empty)
                self.rescale(sums, results, products, factors, weight_scales, range(slots - 1))
                self.rescale_last(valid, sums, results, products, factors, weight_scales, slots - 1)

    @cute.jit
    def rescale_last(self, valid, sums, results, products: Constexpr, factors, weight_scales, slot: Constexpr):
        """Rescale the results of one slot, if the tile has its tokens."""
        if valid > 4 * slot:
            self.rescale(sums, results, products, factors, weight_scales, (slot,))

    def rescale(self, sums, results, products, factors, weight_scales, slots):
        """Rescale results of a K32 group in some slots and add them; product ``b`` is of row ``2 * b`` and the next."""
        for b, result in zip(products, results, strict=True):
            for nt in (2 * b, 2 * b + 1):
                for slot in slots:
                    scaled = ptx.mul_rn(result[4 * (slot >> 1) + 2 * (nt & 1) + (slot & 1)], factors[slot])
                    index = 4 * slot + nt
                    sums[index] = ptx.fma_rn(scaled, weight_scales[nt], sums[index])
