"""Layouts of checkpoints: the names under which tensors of MXFP4 experts are stored.

A layout is data: patterns with ``{layer}`` and ``{expert}``. A pattern without ``{expert}`` names a stacked tensor,
whose first dimension is the expert. The first projection is stored as two matrices, or as one that holds the rows of
both, half after half. Weights are ``[rows, K/2]``, two codes a byte, the even K in the low nibble; scales are
``[rows, K/32]`` E8M0 bytes.
"""

import re
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import get_args

from msgspec import Struct

from planfreeze import errors
from planfreeze.kernels.moe.weights import SourceOrder

__all__ = [
    "KNOWN_LAYOUTS",
    "CheckpointLayout",
    "MatrixNames",
    "detect_layout",
    "find_experts",
    "find_names",
]

FIELDS = ("layer", "expert")
SHOWN_NAMES = 3


class MatrixNames(Struct, frozen=True, kw_only=True):
    """Patterns of one weight matrix.

    Parameters
    ----------
    weight : str
        Pattern of the tensor of FP4 codes.
    scale : str
        Pattern of the tensor of E8M0 scales.
    """

    weight: str
    scale: str


def pattern_fields(layout: str, pattern: str) -> list[str]:
    try:
        return [field for _, field, *_ in Formatter().parse(pattern) if field is not None]
    except ValueError as error:
        raise errors.InvalidLayout(layout, f"{pattern} is no pattern: {error}") from error


class CheckpointLayout(Struct, frozen=True, kw_only=True):
    """Names of the expert tensors of a checkpoint.

    Parameters
    ----------
    name : str
        Name that errors show.
    w13 : tuple of MatrixNames
        The first projection: its two halves in ``source_order``, or one matrix that holds both in that order.
    w2 : MatrixNames
        The second projection.
    source_order : str
        Which half comes first, ``up_gate`` or ``gate_up``.

    Raises
    ------
    InvalidLayout
        A pattern lacks ``{layer}`` or has another field, some have ``{expert}`` and some not, two are the same, or
        the first projection is not one or two matrices.

    Notes
    -----
    Halves whose rows alternate, and tensors that hold several layers, cannot be described.
    """

    name: str
    w13: tuple[MatrixNames, ...]
    w2: MatrixNames
    source_order: SourceOrder = "up_gate"

    def __post_init__(self) -> None:
        if len(self.w13) not in (1, 2):
            raise errors.InvalidLayout(self.name, f"the first projection is {len(self.w13)} matrices, not 1 or 2")
        if self.source_order not in get_args(SourceOrder):
            raise errors.InvalidLayout(self.name, f"source_order {self.source_order!r} is not up_gate or gate_up")
        if len(set(self.patterns)) != len(self.patterns):
            raise errors.InvalidLayout(self.name, "two tensors have one pattern")
        for pattern in self.patterns:
            fields = pattern_fields(self.name, pattern)
            if sorted(fields) != sorted(FIELDS if not self.is_stacked else FIELDS[:1]):
                reason = f"{pattern} has the fields {fields}, not layer, and expert in every pattern or in none"
                raise errors.InvalidLayout(self.name, reason)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern, weight before scale."""
        return tuple(pattern for names in (*self.w13, self.w2) for pattern in (names.weight, names.scale))

    @property
    def is_stacked(self) -> bool:
        """Whether a tensor holds all experts of a layer."""
        return "{expert}" not in self.w2.weight

    @property
    def is_fused(self) -> bool:
        """Whether one matrix holds both halves of the first projection."""
        return len(self.w13) == 1


def matrix(stem: str, weight: str, scale: str) -> MatrixNames:
    return MatrixNames(weight=f"{stem}{weight}", scale=f"{stem}{scale}")


def separate(name: str, experts: str, parts: tuple[str, str, str], weight: str, scale: str) -> CheckpointLayout:
    """Describe a layout of three matrices per expert; ``parts`` are up, gate, down."""
    up, gate, down = (matrix(f"{experts}.{{expert}}.{part}", weight, scale) for part in parts)
    return CheckpointLayout(name=name, w13=(up, gate), w2=down)


def stacked(name: str, weight: str, scale: str) -> CheckpointLayout:
    """Describe a layout of two tensors per layer, the gate rows before the up rows."""
    fused, down = (matrix(f"model.layers.{{layer}}.mlp.experts.{part}", weight, scale) for part in STACKED_PARTS)
    return CheckpointLayout(name=name, w13=(fused,), w2=down, source_order="gate_up")


MLP = "model.layers.{layer}.mlp.experts"
PROJECTIONS = ("up_proj", "gate_proj", "down_proj")
# w1 is the gate, w3 the up and w2 the down projection.
NUMBERED = ("w3", "w1", "w2")
STACKED_PARTS = ("gate_up_proj", "down_proj")

KNOWN_LAYOUTS: tuple[CheckpointLayout, ...] = (
    separate("projections", MLP, PROJECTIONS, ".weight", ".weight_scale"),
    separate("projections-scales", MLP, PROJECTIONS, ".weight", ".scales"),
    separate("projections-packed", MLP, PROJECTIONS, ".weight_packed", ".weight_scale"),
    separate("block-sparse", "model.layers.{layer}.block_sparse_moe.experts", NUMBERED, ".weight", ".weight_scale"),
    separate("block-sparse-scales", "model.layers.{layer}.block_sparse_moe.experts", NUMBERED, ".weight", ".scales"),
    separate("feed-forward", "layers.{layer}.ffn.experts", NUMBERED, ".weight", ".scale"),
    stacked("stacked", ".weight", ".weight_scale"),
    stacked("stacked-parameters", "", "_scale"),
)
"""Layouts that are recognised without being told."""


def detect_layout(
    names: Iterable[str], *, path: str, layouts: tuple[CheckpointLayout, ...] = KNOWN_LAYOUTS
) -> CheckpointLayout:
    """Return the layout of a checkpoint: the one all of whose patterns occur among its tensors' names.

    Parameters
    ----------
    names : iterable of str
        Names of all tensors.
    path : str
        Path that errors name.
    layouts : tuple of CheckpointLayout
        Layouts to look for.

    Raises
    ------
    UnknownLayout
        None fits; the error lists the patterns and some of the names.
    AmbiguousLayout
        More than one fits.
    """
    held = tuple(names)
    fitting = tuple(layout for layout in layouts if all(occurs(pattern, held) for pattern in layout.patterns))
    if not fitting:
        experts = [name for name in held if "expert" in name] or held
        wanted = tuple(f"{layout.name}: {', '.join(layout.patterns)}" for layout in layouts)
        raise errors.UnknownLayout(path, wanted, tuple(sorted(experts)[:SHOWN_NAMES]))
    if len(fitting) > 1:
        raise errors.AmbiguousLayout(path, tuple(layout.name for layout in fitting))
    return fitting[0]


def find_experts(layout: CheckpointLayout, names: Iterable[str]) -> Mapping[int, tuple[int, ...]]:
    """Return the experts of each layer that have at least one tensor of a layout, layers and experts ascending.

    Of a stacked layout the names tell layers only: no expert is listed.
    """
    expressions = [expression(pattern) for pattern in layout.patterns]
    found: dict[int, set[int]] = {}
    for name in names:
        for match in (match for wanted in expressions if (match := wanted.fullmatch(name))):
            experts = found.setdefault(int(match["layer"]), set())
            if not layout.is_stacked:
                experts.add(int(match["expert"]))
    return {layer: tuple(sorted(experts)) for layer, experts in sorted(found.items())}


def find_names(layout: CheckpointLayout, layer: int, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of one layer's tensors."""
    expressions = [expression(pattern) for pattern in layout.patterns]
    matches = (match for name in names for found in expressions if (match := found.fullmatch(name)))
    return tuple(match[0] for match in matches if int(match["layer"]) == layer)


def occurs(pattern: str, names: tuple[str, ...]) -> bool:
    found = expression(pattern)
    return any(found.fullmatch(name) for name in names)


def expression(pattern: str) -> re.Pattern[str]:
    """Turn a pattern into a regular expression with a group for every field. Numbers have no leading zeros."""
    parts = Formatter().parse(pattern)
    return re.compile(
        "".join(re.escape(text) + (f"(?P<{field}>0|[1-9][0-9]*)" if field else "") for text, field, *_ in parts)
    )
