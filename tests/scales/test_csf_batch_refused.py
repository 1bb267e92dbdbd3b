"""What is no CSF batch: changed bits, contradictions, other tensors, other planes."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.errors import InvalidScales, ScalesDiffer
from planfreeze.kernels.scales.csf_batch import CsfBatch, decode, encode, verify
from planfreeze.kernels.scales.geometry import ScaleGeometry

from .csf_planes import exceptions_of, make_plane

SMALL = ScaleGeometry(rows=128, columns=72, group_rows=64)


@pytest.fixture
def plane() -> Tensor:
    """Planes of two regions an expert."""
    return make_plane(128, 72, 64)


def changed(batch: CsfBatch, name: str, change: Callable[[Tensor], object]) -> CsfBatch:
    """Return the batch with one tensor changed in a copy."""
    part = getattr(batch, name)
    copy = part.view(torch.int32).clone() if part.dtype == torch.uint32 else part.clone()
    change(copy)
    return replace(batch, **{name: copy.view(part.dtype)})


def test_every_changed_bit_is_found(plane: Tensor) -> None:
    batch = encode(SMALL, plane)

    def flip_selector(selectors: Tensor) -> None:
        # An exception stands over its selector, so the bit has to be one of a scale that has none.
        exceptions = {word & 0xFFFFFF for word in exceptions_of(batch)[: int(batch.task_offsets[0, -1])]}
        offset = next(place for place in range(SMALL.native_bytes(1)) if place not in exceptions)
        selectors[0, offset // 8] ^= 1 << offset % 8

    for name, change in (
        ("selectors", flip_selector),
        ("bases", lambda bases: bases[2, 70].add_(1)),
        ("exceptions", lambda words: words[3].add_(1 << 24)),
    ):
        with pytest.raises(ScalesDiffer, match=r"the CSF batch decodes to .* pydoc planfreeze.kernels.scales"):
            verify(changed(batch, name, change), plane)


BROKEN: list[tuple[str, Callable[[Tensor], object], str]] = [
    ("task_offsets", lambda offsets: offsets[0, 1].fill_(0), "do not rise inside their regions"),
    ("task_offsets", lambda offsets: offsets[0, 1].fill_(10**6), "adjacent regions"),
    ("task_offsets", lambda offsets: offsets[1, 0].add_(1), "adjacent regions"),
    ("task_offsets", lambda offsets: offsets[0, 0].add_(1), "adjacent regions"),
    ("task_offsets", lambda offsets: offsets[-1, -1].sub_(1), "there are"),
    ("exceptions", lambda words: words[:2].copy_(words[:2].flip(0)), "do not rise inside their regions"),
    ("exceptions", lambda words: words[-1].fill_(5 << 24 | 128 * 72), "do not rise inside their regions"),
    ("exceptions", lambda words: words[0].bitwise_or_(-(2**24)), "an exception of experts 0..2 is 255, above 247"),
    ("bases", lambda bases: bases[1, 5].fill_(248), "a base of experts 0..2 is 248, above 247"),
    ("bases", lambda bases: bases[1, 5].fill_(247), "a base of 247 in experts 0..2 has a selector set"),
]


@pytest.mark.parametrize(("name", "change", "reason"), BROKEN)
def test_a_broken_batch_is_not_decoded(
    plane: Tensor, name: str, change: Callable[[Tensor], object], reason: str
) -> None:
    broken = changed(encode(SMALL, plane), name, change)
    with pytest.raises(InvalidScales, match=reason):
        decode(broken)
    with pytest.raises(InvalidScales, match=reason):
        verify(broken, plane)


def test_a_base_of_247_without_selectors_decodes() -> None:
    geometry = ScaleGeometry(rows=64, columns=2, group_rows=64)
    batch = CsfBatch(
        geometry=geometry,
        experts=1,
        bases=torch.full((1, 64), 247, dtype=torch.uint8),
        selectors=torch.zeros(1, 16, dtype=torch.uint8),
        exceptions=torch.tensor([3 | 247 << 24], dtype=torch.int64).to(torch.int32).view(torch.uint32),
        task_offsets=torch.tensor([[0, 1]]),
    )
    assert decode(batch).unique().tolist() == [247]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "bases",
            lambda part: part[:, 1:],
            r"bases are torch.uint8 of shape \(3, 127\), not torch.uint8 of \(3, 128\)",
        ),
        ("selectors", lambda part: part.to(torch.int16), "selectors are torch.int16"),
        ("selectors", lambda part: torch.cat((part, part), 1)[:, ::2], r"selectors have strides \(2304, 2\)"),
        ("exceptions", lambda part: part.view(torch.int32), "exceptions are torch.int32"),
        ("task_offsets", lambda part: part[:2], r"task_offsets are torch.int64 of shape \(2, 3\)"),
        ("task_offsets", lambda part: part.to("meta"), "task_offsets are on meta, the bases on cpu"),
    ],
)
def test_other_tensors_are_no_batch(plane: Tensor, name: str, change: Callable[[Tensor], Tensor], reason: str) -> None:
    batch = encode(SMALL, plane)
    with pytest.raises(InvalidScales, match=reason):
        replace(batch, **{name: change(getattr(batch, name))})


def test_other_planes_and_ranges_are_refused(plane: Tensor) -> None:
    batch = encode(SMALL, plane)
    with pytest.raises(InvalidScales, match="the plane has 2 experts, the batch 3"):
        verify(batch, plane[:2])
    with pytest.raises(InvalidScales, match=r"experts 2..1 are not a range of 0..2"):
        decode(batch, first=2, last=2)
    with pytest.raises(InvalidScales, match="shape"):
        encode(SMALL, plane[:, 1:].contiguous())
    large = ScaleGeometry(rows=2**16, columns=256, group_rows=64)
    with pytest.raises(InvalidScales, match="16777216 scales, not below 2"):
        encode(large, torch.zeros(1, 2**24, dtype=torch.uint8))
