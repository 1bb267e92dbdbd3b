"""Kernels of family ``launch_sum``: one small block."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

__all__ = ["sum_5", "sum_19"]


@triton.jit
def sum_5(source_0, source_1, source_2, out, count, offset: tl.constexpr, block: tl.constexpr):
    """Add three tensors and a constant. One program, ``block`` elements at most."""
    places = tl.arange(0, block)
    inside = places < count
    total = tl.load(source_0 + places, mask=inside) + tl.load(source_1 + places, mask=inside)
    total += tl.load(source_2 + places, mask=inside)
    tl.store(out + places, total + offset, mask=inside)


@triton.jit
def sum_19(
    source_0,
    source_1,
    source_2,
    source_3,
    source_4,
    source_5,
    source_6,
    source_7,
    source_8,
    source_9,
    source_10,
    source_11,
    source_12,
    source_13,
    source_14,
    source_15,
    source_16,
    out,
    count,
    offset: tl.constexpr,
    block: tl.constexpr,
):
    """Add seventeen tensors and a constant. One program, ``block`` elements at most."""
    places = tl.arange(0, block)
    inside = places < count
    total = tl.load(source_0 + places, mask=inside)
    total += tl.load(source_1 + places, mask=inside)
    total += tl.load(source_2 + places, mask=inside)
    total += tl.load(source_3 + places, mask=inside)
    total += tl.load(source_4 + places, mask=inside)
    total += tl.load(source_5 + places, mask=inside)
    total += tl.load(source_6 + places, mask=inside)
    total += tl.load(source_7 + places, mask=inside)
    total += tl.load(source_8 + places, mask=inside)
    total += tl.load(source_9 + places, mask=inside)
    total += tl.load(source_10 + places, mask=inside)
    total += tl.load(source_11 + places, mask=inside)
    total += tl.load(source_12 + places, mask=inside)
    total += tl.load(source_13 + places, mask=inside)
    total += tl.load(source_14 + places, mask=inside)
    total += tl.load(source_15 + places, mask=inside)
    total += tl.load(source_16 + places, mask=inside)
    tl.store(out + places, total + offset, mask=inside)
