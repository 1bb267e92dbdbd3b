"""Slices of a checkpoint: which part of every stored matrix one tensor-parallel rank holds."""

from collections.abc import Iterator

from msgspec import Struct

from planfreeze.kernels.moe.checkpoint_layouts import CheckpointLayout, MatrixNames
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.rules import ShardedModel

__all__ = ["MatrixSlice", "rank_slices"]

CODES_PER_BYTE = 2
# Element types as a safetensors header names them. Writers call a byte of two FP4 codes signed or unsigned, and an E8M0
# byte by its own name or plainly a byte.
WEIGHT_DTYPES = ("U8", "I8")
SCALE_DTYPES = ("U8", "F8_E8M0")


class MatrixSlice(Struct, frozen=True, kw_only=True):
    """The rank's part of one stored matrix, of any expert.

    Parameters
    ----------
    pattern : str
        Pattern of the tensor's name.
    is_scale : bool
        Whether the matrix holds scales, not codes.
    shape : tuple of int
        Shape of the whole tensor in bytes; three dimensions where it holds all experts.
    rows, columns : slice
        The rank's part of an expert's matrix.
    output : str
        Field of the result it goes to.
    output_row : int
        First row of it there.
    """

    pattern: str
    is_scale: bool
    shape: tuple[int, ...]
    rows: slice
    columns: slice
    output: str
    output_row: int

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types it may be stored as."""
        return SCALE_DTYPES if self.is_scale else WEIGHT_DTYPES

    @property
    def is_stacked(self) -> bool:
        """Whether the tensor holds all experts."""
        return len(self.shape) == 3

    def index(self, expert: int) -> tuple[slice, ...]:
        """Return what to take of the tensor for one expert, as ranges of all its dimensions."""
        experts = (slice(expert, expert + 1),) if self.is_stacked else ()
        return (*experts, self.rows, self.columns)


def rank_slices(layout: CheckpointLayout, sharded: ShardedModel, rank: int) -> Iterator[MatrixSlice]:
    """List what a rank reads of every expert: gate, up and down, codes before scales."""
    whole, share, hidden = sharded.model.intermediate, sharded.intermediate, sharded.model.hidden
    experts = (sharded.model.experts,) if layout.is_stacked else ()
    held = slice(rank * share, (rank + 1) * share)
    all_hidden = slice(0, hidden)
    for half in (0, 1):
        if layout.is_fused:
            rows = slice(half * whole + held.start, half * whole + held.stop)
            yield from both_tensors(layout.w13[0], "w13", (*experts, 2 * whole, hidden), rows, all_hidden, half * share)
        else:
            yield from both_tensors(layout.w13[half], "w13", (*experts, whole, hidden), held, all_hidden, half * share)
    yield from both_tensors(layout.w2, "w2", (*experts, hidden, whole), all_hidden, held, 0)


def both_tensors(
    names: MatrixNames, output: str, shape: tuple[int, ...], rows: slice, k: slice, output_row: int
) -> Iterator[MatrixSlice]:
    """Describe codes and scales of one matrix, whose shape and part are given in elements."""
    for is_scale, pattern, per_byte in ((False, names.weight, CODES_PER_BYTE), (True, names.scale, GROUP)):
        yield MatrixSlice(
            pattern=pattern,
            is_scale=is_scale,
            shape=(*shape[:-1], shape[-1] // per_byte),
            rows=rows,
            columns=slice(k.start // per_byte, k.stop // per_byte),
            output=f"{output}_scales" if is_scale else output,
            output_row=output_row,
        )
