"""Tile product of MXFP4 weights and the intermediate rows of an m tile on sm_90a.

The operand, its order and its instructions are those of ``tokens_sm_90a``; here the rows stand one after another in
memory, K may end with half a stage, and a tile that is at most half full is multiplied at half the width: products
of 8 instead of 16 columns, 16 instead of 32; of 8, which is the least, half of the results are left out.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import Constexpr, Int32, Int64, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma import sm_90a as mma
from planfreeze.kernels.mma import tokens_sm_90a as tokens
from planfreeze.kernels.mma.memory import copy_16

__all__ = ["RowProduct", "copy_rows"]

SMALLEST_WIDTH = 8
"""N of the narrowest wgmma."""


def copy_rows(target, source, lane, valid, tile_m, pitch_bytes):
    """Start this lane's copies of K128 of the first ``valid`` rows to the operand at ``target``.

    ``source`` is the lane's: 16-byte chunk ``lane & 7`` of row ``lane >> 3``. The lane copies every fourth row; rows
    are ``pitch_bytes`` apart. The rest of the operand stays what it was, and reaches only columns that nobody reads.
    """
    for i, offset in enumerate(tokens.chunk_offsets(lane, tile_m)):
        is_live = Int32(4 * i + (lane >> 3) < valid)
        copy_16(target + offset, source + Int64(4 * i * pitch_bytes), Int32(16), is_live)


class RowProduct:
    """The product of a stage's 128 weight rows and an m tile, for the lanes of the warpgroup.

    Parameters
    ----------
    pipeline : Pipeline
        Stages whose activations are a swizzled operand of ``tile_m`` rows.
    tile_m : int
        Rows of an m tile: 8, 16 or 32.

    Notes
    -----
    Products are started in units and two units are in flight, so that one is rescaled while the next is multiplied. A
    unit is the two products of a K32 group for 8 rows, else a single one: results of two groups of 16 or 32 columns
    are more than the registers of 4 or 3 blocks per SM hold.
    """

    UNITS_IN_FLIGHT = 2

    def __init__(self, pipeline, *, tile_m):
        self.pipeline = pipeline
        self.tile_m = tile_m
        self.slots = tile_m // 4
        self.unit_products = 2 if tile_m == 8 else 1

    @cute.jit
    def multiply(self, stage, lane, weight_offset, scale_offset, valid, sums, columns: Constexpr):
        """Add the products of a stage to ``sums[slots * nt + slot]`` of row ``nt`` and result column ``slot``.

        Offsets are this lane's, in the stage. Of the stage's K32 groups only the first ``columns`` are read. Sums of
        rows from ``valid`` on have no meaning. The stage is free for the producer once the last unit is finished.
        """
        if valid > self.tile_m // 2:
            self.multiply_slots(stage, lane, weight_offset, scale_offset, sums, columns, self.slots)
        else:
            self.multiply_slots(stage, lane, weight_offset, scale_offset, sums, columns, self.slots // 2)

    def multiply_slots(self, stage, lane, weight_offset, scale_offset, sums, columns, slots):
        """Multiply for the first ``slots`` result columns of each lane."""
        width = max(SMALLEST_WIDTH, 4 * slots)
        units = 2 // self.unit_products
        descriptor = tokens.token_descriptor(stage + self.pipeline.activations)
        load_scales = self.prepare_scales(stage, lane, slots)
        started = []
        for index in range(columns * units + self.UNITS_IN_FLIGHT - 1):
            column, unit = divmod(index, units)
            if column < columns:
                if unit == 0:
                    words = ptx.load_shared_x4(stage + weight_offset + column * (mma.CONSUMER_WARPS * mma.CHUNK_BYTES))
                    fragments = mma.arrange_fragments(words)
                some = fragments[unit * self.unit_products : (unit + 1) * self.unit_products]
                started.append(ptx.start_products(some, descriptor + 2 * column, width))
            done = index - (self.UNITS_IN_FLIGHT - 1)
            if done >= 0:
                column, unit = divmod(done, units)
                if unit == 0:
                    weight_scales = ptx.load_shared_f32x4(stage + scale_offset + column * mma.COLUMN_BYTES)
                    row_scales = load_scales(column)
                products = ptx.finish_products(started[done], len(started) - 1 - done)
                if done == columns * units - 1:
                    mma.arrive_once(stage + self.pipeline.empty)
                for b, product in enumerate(products, start=unit * self.unit_products):
                    self.rescale(sums, product, b, row_scales, weight_scales)

    def prepare_scales(self, stage, lane, slots):
        """Return a function that gives the scales of a K32 group, one per result column.

        Eight rows' are loaded for the whole stage at once, more group by group: the registers are few.
        """
        addresses = [
            stage + self.pipeline.activation_scales + tokens.token_of_column(self.tile_m, lane, slot) * 16
            for slot in range(slots)
        ]
        if self.tile_m == 8:
            whole = [ptx.load_shared_f32x4(address) for address in addresses]
            return lambda column: [scales[column] for scales in whole]
        return lambda column: [ptx.float_of_bits(ptx.load_shared(address + 4 * column)) for address in addresses]

    def rescale(self, sums, product, b, row_scales, weight_scales):
        """Rescale the results of product ``b`` of one K32 group and add them: weight rows ``2 * b`` and one more."""
        for nt in (2 * b, 2 * b + 1):
            for slot, row_scale in enumerate(row_scales):
                result = product[4 * (slot >> 1) + 2 * (nt & 1) + (slot & 1)]
                scaled = ptx.mul_rn(result, row_scale)
                index = self.slots * nt + slot
                sums[index] = ptx.fma_rn(scaled, weight_scales[nt], sums[index])
