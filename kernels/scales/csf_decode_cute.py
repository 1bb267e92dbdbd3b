"""Kernel of family ``csf_decode``."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.family import LaunchInfo
from planfreeze.kernels.mma.launch import launch_once
from planfreeze.kernels.mma.memory import barrier, select, store_global_byte, store_global_x4
from planfreeze.kernels.mma.ptx import load_global_i32, load_global_i64
from planfreeze.kernels.mma.sm_120a import spread
from planfreeze.kernels.mma.words import load_global_byte, load_global_half, permute_bytes
from planfreeze.kernels.scales.geometry import TILE_COLUMNS, TILE_ROWS, ScaleGeometry

__all__ = ["CsfDecode"]

STEP_BYTES = 16
"""Native bytes a thread writes at once: four rows of four columns, or eight of the two of a column tail."""


class CsfDecode:
    """Decode compressed scales to native planes, 8192 bytes a task.

    Math: native byte ``i`` is the base of its row, plus bit ``i % 8`` of selector byte ``i / 8``, or what an
    exception says. An exception is ``offset | byte << 24``; those of region t of expert e are the ones from
    ``task_offsets[e, t]`` up to ``task_offsets[e, t + 1]``.

    Arguments: ``bases`` u8 ``(experts, rows)`` in native row order, ``selectors`` u8 ``(experts, rows * columns / 8)``,
    ``exceptions`` i32, ``task_offsets`` i64 ``(experts, tasks + 1)``, ``presence`` u8 ``(experts,)``, ``native`` u8
    ``(experts, rows * columns)``, ``experts``. Bases, selectors and planes are 16-byte aligned, the others to their
    own size. Where ``presence`` is 0 nothing but that byte is read, and nothing written.

    Tiles: a block writes a region in 16-byte vectors, adjacent threads adjacent vectors, and then, behind a barrier,
    the exceptions of the region over them. A vector never spans two tiles. Persistent blocks stride over the regions
    of all experts. No shared memory. sm_90a and sm_120a.

    Parameters
    ----------
    launch : LaunchInfo
        Threads that divide ``task_bytes / 16``.
    rows, columns, group_rows : int
        Geometry of one expert's scales.
    task_bytes : int
        Native bytes of a region.
    """

    def __init__(self, *, launch: LaunchInfo, rows: int, columns: int, group_rows: int, task_bytes: int) -> None:
        assert task_bytes % (launch.block[0] * STEP_BYTES) == 0
        self.launch = launch
        self.geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
        self.size = self.geometry.native_bytes(1)
        self.task_bytes = task_bytes
        self.tasks = -(-self.size // task_bytes)
        self.threads = launch.block[0]

    def __repr__(self) -> str:
        # CuTe DSL puts this into the kernel's symbol.
        return "CsfDecode"

    @cute.jit
    def __call__(self, *arguments):
        *parameters, stream = arguments
        launch_once(self.kernel(*parameters), self.launch, stream)

    @cute.kernel
    def kernel(
        self,
        bases: Int64,
        selectors: Int64,
        exceptions: Int64,
        task_offsets: Int64,
        presence: Int64,
        native: Int64,
        experts: Int32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        for task in cutlass.range(Int32(block), experts * self.tasks, Int32(blocks), unroll=1):
            expert = Int64(Uint32(task) // Uint32(self.tasks))
            region = task - Int32(expert) * self.tasks
            if load_global_byte(presence + expert) != 0:
                offsets = task_offsets + (expert * (self.tasks + 1) + Int64(region)) * 8
                first = load_global_i64(offsets)
                count = Int32(load_global_i64(offsets + 8) - first)
                self.decode(
                    bases + expert * self.geometry.rows,
                    selectors + expert * (self.size // 8),
                    exceptions + first * 4,
                    native + expert * self.size,
                    region * self.task_bytes,
                    count,
                    thread,
                )

    @cute.jit
    def decode(self, bases, selectors, exceptions, plane, start, count, thread):
        """Write the region that begins at native offset ``start``, then its ``count`` exceptions."""
        steps = self.task_bytes // (self.threads * STEP_BYTES)
        offsets = [start + (i * self.threads + thread) * STEP_BYTES for i in range(steps)]
        vectors = [self.load_vector(bases, selectors, offset, start) for offset in offsets]
        # On its way while the region is written.
        exception = Uint32(0)
        if thread < count:
            exception = Uint32(load_global_i32(exceptions + Int64(thread) * 4))
        for i in cutlass.range_constexpr(steps):
            if offsets[i] < self.size:
                store_global_x4(plane + Int64(offsets[i]), self.decode_vector(vectors[i]))
        barrier()
        if thread < count:
            store_exception(plane, exception)
        for other in cutlass.range(thread + self.threads, count, self.threads, unroll=1):
            store_exception(plane, Uint32(load_global_i32(exceptions + Int64(other) * 4)))

    def load_vector(self, bases, selectors, offset, start):
        """Load what 16 native bytes are made of: selector bits, two words of bases, and whether it is a column tail.

        Beyond the plane, what belongs to the region's first bytes is loaded instead.
        """
        offset = select(offset < self.size, Uint32(offset), Uint32(start))
        bits = load_global_half(selectors + Int64(offset >> 3))
        row, is_tail = self.locate(offset)
        first = Uint32(load_global_i32(bases + Int64(row)))
        if not self.geometry.has_column_tail:
            return bits, first, first, is_tail
        second = Uint32(load_global_i32(bases + Int64(row + select(is_tail, Uint32(4), Uint32(0)))))
        return bits, first, second, is_tail

    def locate(self, offset):
        """Return the native row of the byte at an offset, and whether its tile has two columns."""
        geometry, columns = self.geometry, self.geometry.columns
        group = offset // Uint32(geometry.group_rows * columns)
        inside = offset - group * (geometry.group_rows * columns)
        row_tile = inside // Uint32(TILE_ROWS * columns)
        place = inside - row_tile * (TILE_ROWS * columns)
        # Bytes of a whole tile, and of all of them in this row tile.
        tile_bytes = Uint32(TILE_ROWS * TILE_COLUMNS)
        if geometry.has_row_tail:
            is_short = row_tile == geometry.group_rows // TILE_ROWS
            tile_bytes = select(is_short, Uint32(TILE_ROWS * TILE_COLUMNS // 2), tile_bytes)
        row = (place & (tile_bytes - 1)) >> 2
        is_tail = place >= tile_bytes * (columns // TILE_COLUMNS)
        if geometry.has_column_tail:
            row = select(is_tail, (place - tile_bytes * (columns // TILE_COLUMNS)) >> 1, row)
        return group * geometry.group_rows + row_tile * TILE_ROWS + row, is_tail

    def decode_vector(self, vector):
        """Return 16 native bytes as four words."""
        bits, first, second, is_tail = vector
        words = []
        for i in range(4):
            bases, order = first, Uint32(0x1111 * i)
            if self.geometry.has_column_tail:
                # A word of a column tail has two rows.
                order = select(is_tail, Uint32((0x1100, 0x3322)[i % 2]), order)
                bases = first if i < 2 else select(is_tail, second, first)
            words.append(permute_bytes(bases, order) + spread((bits >> (4 * i)) & 15))
        return words


def store_exception(plane, word):
    """Write the byte of an exception to its place."""
    store_global_byte(plane + Int64(word & 0xFFFFFF), word >> 24)
