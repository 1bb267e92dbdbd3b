"""Staging of weight scales on sm_90a by a warp that has no time to wait for words of raw tiles.

The classes of :mod:`planfreeze.kernels.mma.scales_sm_90a`, with more for the warp that copies. It calls ``look_ahead``
while the task before is copied, then ``start``, and ``find`` and ``copy_raw`` for every step before it arrives on
``landed``, by ``copy`` or by itself. So it is known by then whether a tile of the step is raw, and ``landed`` waits for
the words, too. They are staged where their scales are rebuilt, which consumers have read by then.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
import cutlass
from cutlass import Int32, Int64, Uint32, cute

from planfreeze.kernels.mma import ptx
from planfreeze.kernels.mma.memory import select
from planfreeze.kernels.mma.scales_sm_90a import (
    InlineHalves,
    InlineRows,
    NativeHalves,
    NativeRows,
    RowMemory,
    make_words,
)
from planfreeze.kernels.mma.sm_90a import raw_tile
from planfreeze.kernels.mma.stage_sm_90a import GROUP_SCALE_BYTES
from planfreeze.kernels.mma.tokens_sm_90a import fence_async
from planfreeze.kernels.scales.geometry import RAW_TILE_BYTES, SELECTOR_BYTES, TILE_BLOCK_BYTES

__all__ = ["InlineHalvesAhead", "InlineRowsAhead", "NativeHalvesAhead", "NativeRowsAhead"]

LANES = 32


class NothingAhead:
    """Native words need no look ahead: all steps are alike."""

    def look_ahead(self, *arguments):
        """Nothing is loaded."""

    def start(self, memory):
        """Nothing is kept."""

    def find(self, memory, step):
        """There are no raw tiles."""

    def copy_raw(self, *arguments):
        """There are no raw tiles."""


class NativeHalvesAhead(NothingAhead, NativeHalves):
    """Halves from the native plane."""


class NativeRowsAhead(NothingAhead, NativeRows):
    """Rows from the native plane."""


class AheadMemory(RowMemory):
    """What a warp keeps of a task's steps, too.

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


class InlineAhead:
    """What is alike of halves and rows: a task's headers are loaded ahead, of ``groups`` row groups."""

    groups: int
    steps: int

    def remember(self):
        """Return the registers of a warp."""
        return AheadMemory(self.groups, self.steps)

    def start(self, memory):
        """Begin the task that was looked at last."""
        memory.start()

    def find(self, memory, step):
        """Return what ``copy_raw`` takes: whether a tile of a step is raw, and where its headers are."""
        return find_raw(memory, step), memory

    def raw_words(self, addresses, scales, lane, *arguments):
        """Return what gives a lane's words of a raw tile: they are staged where its first scales will be."""
        return lambda header: ptx.load_shared_x4(scales + lane * 16)


class InlineHalvesAhead(InlineAhead, InlineHalves):
    """Halves from inline storage."""

    groups = 2

    def look_ahead(self, memory, addresses, expert, half_tile, lane, part=0):
        """Load the headers of a task."""
        first, _ = self.locate(addresses, expert, half_tile, part)
        for group in range(2):
            memory.load(group, first + group * self.group_bytes, self.steps, lane)

    @cute.jit
    def copy_raw(self, stage, addresses, half_tile, found):
        """Start the copies of the words of a step's raw tiles, which ``landed`` waits for, too."""
        is_raw, memory = found
        if is_raw:
            raw = addresses[2] + Int64(half_tile & 1) * GROUP_SCALE_BYTES
            copy_tiles(stage + self.pipeline.scales, raw, memory, GROUP_SCALE_BYTES, stage + self.pipeline.landed)


class InlineRowsAhead(InlineAhead, InlineRows):
    """Rows from inline storage."""

    groups = 1

    def look_ahead(self, memory, addresses, row_block, lane):
        """Load the headers of a task."""
        memory.load(0, self.locate(addresses, row_block), self.steps, lane)

    @cute.jit
    def copy_raw(self, stage, addresses, found):
        """Start the copy of the words of a step's raw tile, which ``landed`` waits for, too."""
        is_raw, memory = found
        if is_raw:
            copy_tiles(stage + self.pipeline.scales, addresses[2], memory, RAW_TILE_BYTES, stage + self.pipeline.landed)


@cute.jit
def find_raw(memory, step):
    """Find the headers of a step if a tile of it is raw; return whether one is."""
    is_raw = memory.has_raw(step)
    if is_raw:
        memory.read(step)
    return is_raw


def copy_tiles(target, raw, memory, raw_bytes, landed):
    """Copy the words of the raw tiles of a step, ``raw_bytes`` of each from ``raw`` on; ``landed`` waits for them."""
    for group in range(memory.groups):
        copy_words(target + group * raw_bytes, raw, memory.found[group], raw_bytes, landed)


@cute.jit
def copy_words(target, raw, header, raw_bytes: cutlass.Constexpr, landed):
    """Copy the words of the raw tile that a header names, if it names one."""
    if Int32(header) < 0:
        # Orders the rebuilt scales that stood there before the words.
        fence_async()
        ptx.expect(landed, Int32(raw_bytes))
        ptx.copy_bulk(target, raw_tile(raw, header), Int32(raw_bytes), landed)
