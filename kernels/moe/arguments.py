"""Kernel parameters that several MoE families have in common."""

from planfreeze.family import Argument, Scalars, pointer
from planfreeze.kernels.moe.geometry import intermediate_bytes
from planfreeze.kernels.scales.geometry import ScaleGeometry

__all__ = ["id_argument", "intermediate_argument", "scale_arguments"]


def scale_arguments(geometry: ScaleGeometry, *, csf_inline: bool) -> tuple[Argument, ...]:
    """Return the weight scales of a projection: the native plane, or the three parts of inline storage.

    The number of raw tiles is data: a kernel without any may be given an empty part.
    """
    if not csf_inline:
        return (pointer("scales", "u8", lambda s: geometry.native_bytes(s["experts"])),)
    return (
        pointer("tiles", "u8", lambda s: geometry.tile_bytes(s["experts"])),
        pointer("bases", "u8", lambda s: geometry.base_bytes(s["experts"])),
        pointer("raw", "u8", lambda s: 0),
    )


def id_argument(id_bits: int) -> Argument:
    """Return the expert ids, one per pair, aligned to their own size."""
    return pointer("topk_ids", "i32" if id_bits == 32 else "i64", lambda s: s["pairs"], alignment=id_bits // 8)


def intermediate_argument(arch: str, intermediate: int) -> Argument:
    """Return the intermediate of ``rows`` rows of this many columns, payload and scales."""

    def elements(scalars: Scalars) -> int:
        # A buffer of fewer rows than there are pairs is too small: every pair has a row.
        return intermediate_bytes(arch, max(scalars["rows"], scalars["pairs"]), intermediate)

    return pointer("intermediate", "u8", elements)
