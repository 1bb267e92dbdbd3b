"""Inline storage as a value: decoding a range, verification, and storage that is refused."""

import pytest
import torch
from torch import Tensor

from planfreeze.errors import InvalidScales, ScalesDiffer
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import InlineScales, decode, encode, verify
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.synthetic import synthetic_scales

EXAMPLE = ScaleGeometry(rows=64, columns=6, group_rows=64)
GEOMETRY = ScaleGeometry(rows=128, columns=6, group_rows=64)
MIXED = ScaleGeometry(rows=448, columns=10, group_rows=448)


def synthetic_plane(geometry: ScaleGeometry, experts: int) -> Tensor:
    return native_plane(geometry, synthetic_scales(geometry, experts, torch.Generator().manual_seed(11)))


def headers(inline: InlineScales) -> Tensor:
    return inline.parts()[0].view(torch.int32).view(-1, 24)[:, 16]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 1), (-1, 2), (0, 4), (3, None)])
def test_a_range_without_experts_is_refused(first: int, last: int | None) -> None:
    inline = encode(GEOMETRY, synthetic_plane(GEOMETRY, 3))
    with pytest.raises(InvalidScales, match=r"are not a range of 0\.\.2"):
        decode(inline, first=first, last=last)


def test_verify_names_the_first_wrong_byte() -> None:
    plane = synthetic_plane(MIXED, 3)
    inline = encode(MIXED, plane)
    changed = plane.clone()
    changed[2, 77] ^= 1
    changed[2, 400] ^= 1
    with pytest.raises(ScalesDiffer) as caught:
        verify(inline, changed)
    assert (caught.value.expert, caught.value.offset) == (2, 77)
    assert (caught.value.native, caught.value.decoded) == (int(changed[2, 77]), int(plane[2, 77]))


def test_verify_notices_each_damaged_part() -> None:
    plane = synthetic_plane(MIXED, 3)
    good = encode(MIXED, plane)
    light, heavy = int((headers(good) > 0).nonzero()[0]), int((headers(good) < 0).nonzero()[0])
    for place in (96 * light, 96 * light + 70, MIXED.tile_bytes(3), MIXED.inline_bytes(3), 96 * heavy + 67):
        damaged = good.storage.clone()
        damaged[place] ^= 0x80
        inline = InlineScales(geometry=MIXED, experts=3, storage=damaged, raw_tiles=good.raw_tiles)
        with pytest.raises(ScalesDiffer):
            verify(inline, plane)


@pytest.mark.parametrize("header", [8, 0x7FFFFFFF, -1, -(2**31) + 1000])
def test_a_header_out_of_range_is_refused(header: int) -> None:
    inline = encode(MIXED, synthetic_plane(MIXED, 3))
    inline.parts()[0].view(torch.int32).view(-1, 24)[5, 16] = header
    with pytest.raises(InvalidScales, match=f"tile 5 has the header {header & 0xFFFFFFFF:#010x}"):
        decode(inline)


def test_encoding_never_returns_storage_that_decodes_to_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "planfreeze.kernels.scales.inline.pack_bits", lambda bits: torch.zeros(len(bits), 64, dtype=torch.uint8)
    )
    with pytest.raises(ScalesDiffer, match="Encode the plane again"):
        encode(MIXED, synthetic_plane(MIXED, 1))


def test_verify_refuses_another_number_of_experts() -> None:
    plane = synthetic_plane(GEOMETRY, 3)
    inline = encode(GEOMETRY, plane)
    with pytest.raises(InvalidScales, match="the plane has 2 experts, the storage 3"):
        verify(inline, plane[:2])


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (torch.zeros(320, dtype=torch.int8), "the storage is torch.int8"),
        (torch.zeros(319, dtype=torch.uint8), r"shape \(319,\), not \(320,\)"),
        (torch.zeros(1, 320, dtype=torch.uint8), r"shape \(1, 320\)"),
        (torch.zeros(640, dtype=torch.uint8)[::2], "not contiguous"),
        (torch.zeros(328, dtype=torch.uint8)[8:], "no multiple of 16"),
    ],
)
def test_storage_of_another_form_is_refused(storage: Tensor, reason: str) -> None:
    with pytest.raises(InvalidScales, match=reason):
        InlineScales(geometry=EXAMPLE, experts=1, storage=storage, raw_tiles=0)


def test_the_three_parts_cover_the_storage() -> None:
    inline = encode(GEOMETRY, synthetic_plane(GEOMETRY, 3))
    tiles, bases, raw = inline.parts()
    start = inline.storage.data_ptr()
    assert tiles.data_ptr() == start
    assert bases.data_ptr() == start + 3 * GEOMETRY.tiles * 96
    assert raw.data_ptr() == bases.data_ptr() + 3 * GEOMETRY.row_blocks * 128
    assert len(raw) == 512 * inline.raw_tiles
