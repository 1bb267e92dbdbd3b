"""Tile product of MXFP4 weights and the rows of an m tile on sm_90a.

Operand, order and instructions are those of ``tokens_sm_90a``. A tile is multiplied at the least width there is for its
valid rows: of 16 rows half or all of them, of 32 rows every multiple of 8; of 8 rows, which is the least width, half of
the results are left out. The weights of a K32 group are read and decoded once for all rows of the tile.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Constexpr, Int64, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens

__all__ = ["RowProduct"]

SMALLEST_WIDTH = 8
"""N of the narrowest wgmma."""
SLOTS = {8: (1, 2), 16: (2, 4), 32: (2, 4, 6, 8)}
"""By rows of a tile, the numbers of a lane's result columns it may be multiplied with; four rows are one column."""


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

    Notes
    -----
    Products are started in units and two units are in flight, so that one is rescaled while the next is multiplied. A
    unit is the two products of a K32 group for 8 rows, else one of them: results of more are more than the registers
    hold. Of 32 rows, two K32 groups are multiplied by the same instructions as the two after them, which leaves the
    compiler registers enough.
    """

    UNITS_IN_FLIGHT = 2

    def __init__(self, pipeline, *, tile_m, column_stride):
        self.pipeline = pipeline
        self.tile_m = tile_m
        self.column_stride = column_stride
        self.slots = tile_m // 4
        self.unit_products = ((0, 1),) if tile_m == 8 else ((0,), (1,))

    def multiply(self, stage, lane, weight_offset, scale_offset, valid, sums, columns=mma.COLUMNS):
        """Add the products of a stage to ``sums[4 * slot + nt]`` of result column ``slot`` and row ``nt``.

        Offsets are this lane's, in the stage. Of the stage's K32 groups only the first ``columns`` are read, an even
        number, which for 32 rows may be an Int32. Sums of rows from ``valid`` on have no meaning. The stage is free for
        the producer once its last results are there.
        """
        weights, scales = stage + weight_offset, stage + scale_offset
        self.choose(stage, lane, weights, scales, valid, sums, columns, SLOTS[self.tile_m])

    @cute.jit
    def choose(self, stage, lane, weights, scales, valid, sums, columns, choices: Constexpr):
        """Multiply with the least of some numbers of result columns, ascending, that holds the valid rows."""
        if cutlass.const_expr(len(choices) > 1):
            if valid > 4 * choices[-2]:
                self.multiply_slots(stage, lane, weights, scales, sums, columns, choices[-1])
            else:
                self.choose(stage, lane, weights, scales, valid, sums, columns, choices[:-1])
        else:
            self.multiply_slots(stage, lane, weights, scales, sums, columns, choices[0])

    @cute.jit
    def multiply_slots(self, stage, lane, weights, scales, sums, columns, slots: Constexpr):
        """Multiply for the first ``slots`` result columns of each lane."""
        descriptor = tokens.token_descriptor(stage + self.pipeline.activations)
        row_scales = stage + self.pipeline.activation_scales
        if cutlass.const_expr(self.tile_m == 32):
            for half in cutlass.range(0, columns >> 1, 1, unroll=1):
                self.multiply_columns(
                    lane,
                    descriptor + 4 * Int64(half),
                    weights + 2 * self.column_stride * half,
                    scales + 2 * mma.COLUMN_BYTES * half,
                    row_scales + 8 * half,
                    sums,
                    2,
                    slots,
                )
            mma.arrive_once(stage + self.pipeline.empty)
        else:
            empty = stage + self.pipeline.empty
            self.multiply_columns(lane, descriptor, weights, scales, row_scales, sums, columns, slots, empty)

    def multiply_columns(self, lane, descriptor, weights, scales, row_scales, sums, columns, slots, empty=None):
        """Multiply some K32 groups, and arrive on ``empty`` when the last results are there."""
        load_scales = self.prepare_scales(row_scales, lane, slots)
        units = [(column, products) for column in range(columns) for products in self.unit_products]
        width = max(SMALLEST_WIDTH, 4 * slots)
        started = []
        for index in range(len(units) + self.UNITS_IN_FLIGHT - 1):
            if index < len(units):
                column, products = units[index]
                if products[0] == 0:
                    fragments = mma.arrange_fragments(ptx.load_shared_x4(weights + column * self.column_stride))
                # The descriptor counts 16 bytes.
                started.append(ptx.start_products([fragments[b] for b in products], descriptor + 2 * column, width))
            done = index - (self.UNITS_IN_FLIGHT - 1)
            if done >= 0:
                column, products = units[done]
                if products[0] == 0:
                    weight_scales = ptx.load_shared_f32x4(scales + column * mma.COLUMN_BYTES)
                    factors = load_scales(column)
                results = ptx.finish_products(started[done], len(started) - 1 - done)
                if empty is not None and done == len(units) - 1:
                    mma.arrive_once(empty)
                for b, result in zip(products, results, strict=True):
                    self.rescale(sums, result, b, factors, weight_scales)

    def prepare_scales(self, row_scales, lane, slots):
        """Return a function that gives the scales of a K32 group, one per result column.

        Eight rows' are loaded for the whole stage at once, more group by group: the registers are few.
        """
        addresses = [row_scales + tokens.token_of_column(self.tile_m, lane, slot) * 16 for slot in range(slots)]
        if self.tile_m == 8:
            whole = [ptx.load_shared_f32x4(address) for address in addresses]
            return lambda column: [scales[column] for scales in whole]
        return lambda column: [ptx.float_of_bits(ptx.load_shared(address + 4 * column)) for address in addresses]

    def rescale(self, sums, result, b, factors, weight_scales):
        """Rescale the results of product ``b`` of one K32 group and add them: weight rows ``2 * b`` and one more."""
        for nt in (2 * b, 2 * b + 1):
            for slot, factor in enumerate(factors):
                scaled = ptx.mul_rn(result[4 * (slot >> 1) + 2 * (nt & 1) + (slot & 1)], factor)
                index = 4 * slot + nt
                sums[index] = ptx.fma_rn(scaled, weight_scales[nt], sums[index])
