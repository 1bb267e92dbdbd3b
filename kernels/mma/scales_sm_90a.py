"""Staging of weight scales on sm_90a, native or inline.

Halves are those of the first projection, 64 up rows and the same 64 gate rows a stage; Rows those of the second, 128
rows of one group. All have the same methods, so that a kernel is written once. The producer calls ``locate`` for every
task and for every step ``copy``, in one lane; some steps later ``rebuild``, which turns what has landed into the fp32
plane. The words of a raw tile come in one of two ways. Who has time to wait calls ``fetch`` before it rebuilds. Who has
not calls ``look_ahead`` while the task before is copied, then ``start``, and ``find`` and ``copy_raw`` for every step:
they start the copies of words before those of the step. What a warp keeps between calls is in the registers that
``remember`` gives. ``addresses`` are the kernel's scale parameters.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import select
from planfreeze.kernels.mma.sm_90a import (
    base_bits,
    half_of_offset,
    header_offset,
    rebuild_inline,
    rebuild_inline_rows,
    rebuild_native,
    rebuild_native_tail,
    selector_offset,
)
from planfreeze.kernels.mma.stage_sm_90a import (
    GROUP_SCALE_BYTES,
    NATIVE_SCALE_BYTES,
    ROWS,
    STAGED_BLOCK_BYTES,
    Pipeline,
)
from planfreeze.kernels.mma.words import store_shared_x4
from planfreeze.kernels.scales.geometry import BASE_BLOCK_BYTES, RAW_TILE_BYTES, SELECTOR_BYTES, TILE_BLOCK_BYTES

__all__ = ["InlineHalves", "InlineRows", "NativeHalves", "NativeRows", "RowMemory", "copy_words", "make_words"]

LANES = 32
RAW_INDEX = 0x7FFFFFFF
"""Bits of a raw tile's header that are its number."""


class NativeHalves:
    """Scales from the native plane: words of 64 rows of each group.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    hidden, intermediate : int
        K and rows of each group.
    parts : int
        Parts of K, of which a task has one.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int, parts: int = 1) -> None:
        self.pipeline = pipeline
        self.steps = hidden // 128 // parts
        self.group_bytes = intermediate * hidden // 32
        self.row_tile_bytes = 128 * hidden // 32
        # The 64-row tile that is a tile of its own in the plane, or none.
        self.short_tile = intermediate // 64 - 1 if intermediate % 128 else -1

    def remember(self):
        """Nothing is kept."""
        return ()

    def look_ahead(self, memory, addresses, expert, half_tile, lane, part=0):
        """Native words need no look ahead."""

    def start(self, memory):
        """Nothing is kept."""

    def find(self, memory, step):
        """All steps are alike."""

    def copy_raw(self, stage, addresses, half_tile, found):
        """There are no raw tiles."""

    def fetch(self, memory, addresses, stage, lane):
        """There are no raw tiles."""

    def keep_rows(self, memory, stage, lane, half):
        """Nothing is kept."""

    @cute.jit
    def locate(self, addresses, expert, half_tile, part=0):
        """Return the address of a task's first up words and the distance of its steps, both Int64."""
        first = Int64(half_tile >> 1) * self.row_tile_bytes + Int64(half_tile & 1) * GROUP_SCALE_BYTES
        step = Int64(NATIVE_SCALE_BYTES)
        if half_tile == self.short_tile:
            step = Int64(GROUP_SCALE_BYTES)
        first = first + Int64(part * self.steps) * step
        return addresses[0] + expert * (2 * self.group_bytes) + first, step

    def copy(self, stage, addresses, source, expert, half_tile, step):
        """Start the copies of one step from ``source``; ``landed`` completes when they have arrived."""
        self.copy_to(stage + self.pipeline.staged_scales, stage + self.pipeline.landed, source)

    def copy_to(self, target, landed, source):
        """Start the copies of one step, of the words of both groups."""
        size_bytes = Int32(GROUP_SCALE_BYTES)
        ptx.arrive_expecting(landed, Int32(NATIVE_SCALE_BYTES))
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(target + GROUP_SCALE_BYTES, source + Int64(self.group_bytes), size_bytes, landed)

    def rebuild(self, memory, stage, lane):
        """Write the fp32 plane of a stage."""
        rebuild_native(lane, stage + self.pipeline.staged_scales, stage + self.pipeline.scales)


class RowMemory:
    """What a producer warp keeps, in registers, of the rows that its lanes rebuild: bases, and where selectors are."""

    def __init__(self):
        self.bases = make_words(4)
        self.offset = make_words(1)

    def __extract_mlir_values__(self):
        """The tensors stay where they are: nothing of them is carried through branches and loops."""
        return []

    def __new_from_mlir_values__(self, values):
        return self

    def load_bases(self, address):
        """Load the bases of the lane's four slots from where a task's first step staged them."""
        for nt, bits in enumerate(base_bits(ptx.load_shared(address))):
            self.bases[nt] = bits

    def keep_rows(self, bases, lane, half):
        """Keep the rows of one half of a tile, whose bases are staged there."""
        self.load_bases(bases + lane * 4)
        self.offset[0] = Uint32(selector_offset(lane, half))


class InlineMemory(RowMemory):
    """What it keeps of a task's steps, too: so it is known before a step is copied whether a tile of it is raw.

    These are the headers of the tile blocks, of which lane l has those of steps l, l + 32, .. of every row group, and
    in every lane a bit for each step with a raw tile.
    """

    def __init__(self, groups, steps):
        super().__init__()
        self.groups = groups
        self.words = -(-steps // LANES)
        self.next_headers = make_words(groups * self.words)
        self.headers = make_words(groups * self.words)
        self.raw_steps = make_words(self.words)
        self.found = make_words(groups)

    def load(self, group, first_block, steps, lane):
        """Load the headers of a task's blocks in one row group."""
        for word in range(self.words):
            step = cutlass.min(Int32(word * LANES) + lane, Int32(steps - 1))
            header = first_block + Int64(step) * TILE_BLOCK_BYTES + SELECTOR_BYTES
            self.next_headers[group * self.words + word] = Uint32(ptx.load_global_i32(header))

    def start(self):
        """Go on to the task whose headers were loaded last."""
        for word in range(self.words):
            merged = Uint32(0)
            for group in range(self.groups):
                place = group * self.words + word
                self.headers[place] = self.next_headers[place]
                merged = merged | self.headers[place]
            self.raw_steps[word] = Uint32(cute.arch.vote_ballot_sync(Int32(merged) < 0))

    def pick(self, words, step):
        """Return the word of a step, of those that have 32 steps each."""
        word = words[0]
        for i in range(1, self.words):
            word = select(step >= i * LANES, words[i], word)
        return word

    def has_raw(self, step):
        """Tell whether a tile of a step is raw."""
        return ((self.pick(self.raw_steps, step) >> Uint32(step & (LANES - 1))) & Uint32(1)) != Uint32(0)

    def read(self, step):
        """Find the headers of a step."""
        for group in range(self.groups):
            words = [self.headers[group * self.words + word] for word in range(self.words)]
            self.found[group] = Uint32(cute.arch.shuffle_sync(self.pick(words, step), step & (LANES - 1)))


def make_words(count):
    """Return so many registers, zero."""
    words = cute.make_rmem_tensor((count,), Uint32)
    for i in range(count):
        words[i] = Uint32(0)
    return words


@cute.jit
def find_inline(memory, step):
    """Find the headers of a step if a tile of it is raw; return whether one is."""
    is_raw = memory.has_raw(step)
    if is_raw:
        memory.read(step)
    return is_raw


class InlineHalves:
    """Scales from inline storage: of a 128-row tile of each group, of which 64 slots are used, the tile block and, if
    the tile is raw, their words.

    Parameters are those of :class:`NativeHalves`. ``addresses`` are tile blocks, row bases and raw tiles.
    """

    def __init__(self, pipeline: Pipeline, *, hidden: int, intermediate: int, parts: int = 1) -> None:
        self.pipeline = pipeline
        self.row_tiles = -(-intermediate // 128)
        self.steps = hidden // 128 // parts
        self.row_tile_bytes = hidden // 128 * TILE_BLOCK_BYTES
        self.group_bytes = self.row_tiles * self.row_tile_bytes

    def remember(self):
        """Return the registers of a producer warp."""
        return InlineMemory(2, self.steps)

    def row_block(self, expert, half_tile):
        """Return the up row block of a 64-row tile; its gate block is ``row_tiles`` further."""
        return expert * (2 * self.row_tiles) + Int64(half_tile >> 1)

    def look_ahead(self, memory, addresses, expert, half_tile, lane, part=0):
        """Load the headers of a task."""
        first, _ = self.locate(addresses, expert, half_tile, part)
        for group in range(2):
            memory.load(group, first + group * self.group_bytes, self.steps, lane)

    def start(self, memory):
        """Begin the task that was looked at last."""
        memory.start()

    def find(self, memory, step):
        """Return what :meth:`copy_raw` takes: whether a tile of a step is raw, and where its headers are."""
        return find_inline(memory, step), memory

    def locate(self, addresses, expert, half_tile, part=0):
        """Return the address of a task's first up tile block and the distance of its steps, both Int64."""
        first = self.row_block(expert, half_tile) * self.row_tile_bytes + Int64(part * self.steps * TILE_BLOCK_BYTES)
        return addresses[0] + first, Int64(TILE_BLOCK_BYTES)

    @cute.jit
    def copy_raw(self, stage, addresses, half_tile, found):
        """Start the copies of the words of a step's raw tiles, which ``landed`` waits for, too."""
        is_raw, memory = found
        if is_raw:
            raw = addresses[2] + Int64(half_tile & 1) * GROUP_SCALE_BYTES
            copy_raw(stage + self.pipeline.scales, raw, memory, GROUP_SCALE_BYTES, stage + self.pipeline.landed)

    @cute.jit
    def copy(self, stage, addresses, source, expert, half_tile, step):
        """Start the copies of one step from ``source``, and of the row bases in a task's first step."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales
        if step == 0:
            self.copy_bases(stage, stage + self.pipeline.bases, addresses, expert, half_tile)
        size_bytes = Int32(TILE_BLOCK_BYTES)
        ptx.arrive_expecting(landed, Int32(2 * TILE_BLOCK_BYTES))
        ptx.copy_bulk(target, source, size_bytes, landed)
        ptx.copy_bulk(target + STAGED_BLOCK_BYTES, source + self.group_bytes, size_bytes, landed)

    def copy_bases(self, stage, target, addresses, expert, half_tile):
        """Start the copies of the row bases, which ``landed`` waits for, too."""
        landed = stage + self.pipeline.landed
        size_bytes = Int32(BASE_BLOCK_BYTES // 2)
        up = addresses[1] + self.row_block(expert, half_tile) * BASE_BLOCK_BYTES
        up = up + Int64(half_tile & 1) * (BASE_BLOCK_BYTES // 2)
        ptx.expect(landed, Int32(BASE_BLOCK_BYTES))
        ptx.copy_bulk(target, up, size_bytes, landed)
        ptx.copy_bulk(target + BASE_BLOCK_BYTES // 2, up + self.row_tiles * BASE_BLOCK_BYTES, size_bytes, landed)

    def keep_rows(self, memory, stage, lane, half):
        """Keep what a task's first stage has of its rows; ``half`` is which of the two halves of a tile they are."""
        memory.keep_rows(stage + self.pipeline.bases, lane, half)

    @cute.jit
    def fetch(self, memory, addresses, stage, lane):
        """Bring the words of raw tiles that have landed to where they are staged."""
        header = ptx.load_shared(stage + self.pipeline.staged_scales + header_offset(lane))
        if Int32(header) < 0:
            half = half_of_offset(Int32(memory.offset[0]))
            place = Int64(half * GROUP_SCALE_BYTES + (lane & 15) * 16)
            fetch_words(stage + self.pipeline.scales + lane * 16, addresses[2] + place, header)

    def rebuild(self, memory, stage, lane):
        """Write the fp32 plane of a stage."""
        blocks, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        rebuild_inline(lane, Int32(memory.offset[0]), memory.bases, blocks, scales)


class NativeRows:
    """Scales of 128-row tiles from the native plane: scale words, or half words where two columns are left.

    Parameters
    ----------
    pipeline : Pipeline
        The stages they are staged in.
    intermediate : int
        K of the projection, whose one row group is made of whole tiles.
    """

    def __init__(self, pipeline: Pipeline, *, intermediate: int) -> None:
        self.pipeline = pipeline
        self.row_block_bytes = ROWS * intermediate // 32
        self.last_step = -(-intermediate // 128) - 1
        self.has_tail = intermediate % 128 != 0

    def remember(self):
        """Nothing is kept."""
        return ()

    def look_ahead(self, memory, addresses, row_block, lane):
        """Native words need no look ahead."""

    def start(self, memory):
        """Nothing is kept."""

    def find(self, memory, step):
        """All steps are alike."""

    def copy_raw(self, stage, addresses, found):
        """There are no raw tiles."""

    def locate(self, addresses, row_block):
        """Return the address of the first words of a row block, Int64."""
        return addresses[0] + row_block * self.row_block_bytes

    def copy(self, stage, addresses, source, row_block, step):
        """Start the copy of one step of a row block; ``landed`` completes when it has arrived."""
        landed = stage + self.pipeline.landed
        size_bytes = cutlass.min(Int32(NATIVE_SCALE_BYTES), Int32(self.row_block_bytes) - step * NATIVE_SCALE_BYTES)
        ptx.arrive_expecting(landed, size_bytes)
        words = source + Int64(step) * NATIVE_SCALE_BYTES
        ptx.copy_bulk(stage + self.pipeline.staged_scales, words, size_bytes, landed)

    def fetch(self, addresses, stage, lane):
        """There are no raw tiles."""

    @cute.jit
    def rebuild(self, memory, stage, lane, step):
        """Write the fp32 plane of a stage, the step of its task."""
        staged, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        if cutlass.const_expr(self.has_tail):
            if step == self.last_step:
                rebuild_native_tail(lane, staged, scales)
            else:
                rebuild_native(lane, staged, scales)
        else:
            rebuild_native(lane, staged, scales)


class InlineRows:
    """Scales of 128-row tiles from inline storage: the tile block and, if the tile is raw, its words.

    Parameters are those of :class:`NativeRows`. ``addresses`` are tile blocks, row bases and raw tiles.
    """

    def __init__(self, pipeline: Pipeline, *, intermediate: int) -> None:
        self.pipeline = pipeline
        self.steps = -(-intermediate // 128)
        self.row_block_bytes = self.steps * TILE_BLOCK_BYTES

    def remember(self):
        """Return the registers of a producer warp."""
        return InlineMemory(1, self.steps)

    def look_ahead(self, memory, addresses, row_block, lane):
        """Load the headers of a task."""
        memory.load(0, self.locate(addresses, row_block), self.steps, lane)

    def start(self, memory):
        """Begin the task that was looked at last."""
        memory.start()

    def find(self, memory, step):
        """Return what :meth:`copy_raw` takes: whether the tile of a step is raw, and where its header is."""
        return find_inline(memory, step), memory

    def locate(self, addresses, row_block):
        """Return the address of the first tile block of a row block, Int64."""
        return addresses[0] + row_block * self.row_block_bytes

    @cute.jit
    def copy_raw(self, stage, addresses, found):
        """Start the copy of the words of a step's raw tile, which ``landed`` waits for, too."""
        is_raw, memory = found
        if is_raw:
            copy_raw(stage + self.pipeline.scales, addresses[2], memory, RAW_TILE_BYTES, stage + self.pipeline.landed)

    @cute.jit
    def copy(self, stage, addresses, source, row_block, step):
        """Start the copy of one step of a row block, and of its row bases in the first step."""
        landed = stage + self.pipeline.landed
        target = stage + self.pipeline.staged_scales
        if step == 0:
            bases = addresses[1] + row_block * BASE_BLOCK_BYTES
            ptx.expect(landed, Int32(BASE_BLOCK_BYTES))
            ptx.copy_bulk(stage + self.pipeline.bases, bases, Int32(BASE_BLOCK_BYTES), landed)
        block = source + Int64(step) * TILE_BLOCK_BYTES
        ptx.arrive_expecting(landed, Int32(TILE_BLOCK_BYTES))
        ptx.copy_bulk(target, block, Int32(TILE_BLOCK_BYTES), landed)

    @cute.jit
    def fetch(self, addresses, stage, lane):
        """Bring the words of a raw tile that has landed to where they are staged."""
        header = ptx.load_shared(stage + self.pipeline.staged_scales + SELECTOR_BYTES)
        if Int32(header) < 0:
            fetch_words(stage + self.pipeline.scales + lane * 16, addresses[2] + Int64(lane * 16), header)

    @cute.jit
    def rebuild(self, memory, stage, lane, step):
        """Write the fp32 plane of a stage, the step of its task."""
        if step == 0:
            memory.load_bases(stage + self.pipeline.bases + lane * 4)
        block, scales = stage + self.pipeline.staged_scales, stage + self.pipeline.scales
        rebuild_inline_rows(lane, memory.bases, block, scales)


def copy_raw(target, raw, memory, raw_bytes, landed):
    """Copy the words of the raw tiles of a step, ``raw_bytes`` of each from ``raw`` on; ``landed`` waits for them."""
    for group in range(memory.groups):
        copy_words(target + group * raw_bytes, raw, memory.found[group], raw_bytes, landed)


@cute.jit
def copy_words(target, raw, header, raw_bytes: cutlass.Constexpr, landed):
    """Copy the words of the raw tile that a header names, if it names one."""
    if Int32(header) < 0:
        ptx.expect(landed, Int32(raw_bytes))
        ptx.copy_bulk(target, raw_words(raw, header), Int32(raw_bytes), landed)


def fetch_words(target, raw, header):
    """Copy a lane's words of the raw tile that a header names, of which those of the first are at ``raw``."""
    store_shared_x4(target, ptx.load_global_x4(raw_words(raw, header)))


def raw_words(raw, header):
    """Return where the words of the raw tile that a header names are, if those of the first are at ``raw``."""
    return raw + Int64(header & Uint32(RAW_INDEX)) * RAW_TILE_BYTES
