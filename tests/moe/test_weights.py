"""Packing of FP4 weights: word layouts, nibble orders, round trips."""

import pytest
import torch

from planfreeze.errors import InvalidWeights, UnknownArch, UnsupportedGeometry
from planfreeze.kernels.moe.weights import pack_w2, pack_w13, unpack_w2, unpack_w13
from planfreeze.target import ARCHS


def random_codes(experts: int, rows: int, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + k)
    return torch.randint(0, 256, (experts, rows, k // 2), generator=generator).to(torch.uint8)


def word_address(row: int, k: int, *, group_rows: int, row_tile: int, width: int) -> int:
    """Word that holds K ``k .. k+7`` of a row, inside one expert of ``width`` elements a row."""
    words = width // 8
    group, tile, inside = row // group_rows, row % group_rows // row_tile, row % group_rows % row_tile
    height = min(row_tile, group_rows - row_tile * tile)
    m, nt, q = inside // 32, inside // 8 % 4, inside % 8
    j, c = k % 128 // 32, k % 32 // 8
    start = group * group_rows * words + tile * row_tile * words + k // 128 * height * 16
    return start + j * (height // 32) * 128 + m * 128 + 4 * (4 * q + c) + nt


def hopper_byte(code: int) -> int:
    """Bits of a stored byte, highest first: o.s e.e1 e.s o.e1 o.e0 o.m e.e0 e.m."""
    even, odd = code & 15, code >> 4
    order = [odd >> 3, even >> 2, even >> 3, odd >> 2, odd >> 1, odd, even >> 1, even]
    return sum((bit & 1) << 7 - i for i, bit in enumerate(order))


PLANES = [
    ("w13", "sm_120a", 128, 2 * 192, 256),
    ("w13", "sm_90a", 64, 2 * 192, 256),
    ("w2", "sm_120a", 128, 256, 192),
    ("w2", "sm_90a", 128, 256, 192),
]


@pytest.mark.parametrize(("plane", "arch", "row_tile", "rows", "k"), PLANES)
def test_every_word_is_where_the_layout_says(plane, arch, row_tile, rows, k):
    codes = random_codes(2, rows, k)
    packed = (pack_w13 if plane == "w13" else pack_w2)(codes, arch).view(2, -1, 4).tolist()
    group_rows = rows // 2 if plane == "w13" else rows
    seen = set()
    logical = codes.tolist()
    for row in range(rows):
        for first in range(0, k, 8):
            address = word_address(row, first, group_rows=group_rows, row_tile=row_tile, width=k)
            seen.add(address)
            expected = logical[1][row][first // 2 : first // 2 + 4]
            if arch == "sm_90a":
                expected = [hopper_byte(code) for code in expected]
            assert packed[1][address] == expected, (row, first)
    assert seen == set(range(rows * k // 8))


def test_hopper_bytes_decode_to_e4m3_with_two_masks():
    codes = torch.arange(256).to(torch.uint8)
    tile = codes.repeat(2 * 64 * 128 // 256).view(1, 128, 128)
    stored = unpack_order(pack_w13(tile, "sm_90a"))
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    odd = (stored & 0x9C).view(torch.float8_e4m3fn).float()
    even = (((stored << 2) & 0x8C) | ((stored >> 2) & 0x10)).view(torch.float8_e4m3fn).float()
    assert (even * 64 == values[(codes & 15).long()]).all()
    assert (odd * 64 == values[(codes >> 4).long()]).all()


def unpack_order(packed: torch.Tensor) -> torch.Tensor:
    """Return the stored byte of every logical code 0..255, from row 0 of a packed tile."""
    words = packed.view(-1, 4)
    addresses = [word_address(0, k, group_rows=64, row_tile=64, width=256) for k in range(0, 256, 8)]
    first = words[addresses].flatten()
    addresses = [word_address(1, k, group_rows=64, row_tile=64, width=256) for k in range(0, 256, 8)]
    return torch.cat((first, words[addresses].flatten()))


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(("hidden", "intermediate"), [(512, 320), (256, 64), (256, 128), (5120, 576)])
def test_round_trip(arch, hidden, intermediate):
    w13, w2 = random_codes(2, 2 * intermediate, hidden), random_codes(2, hidden, intermediate)
    for codes, packed, unpack in (
        (w13, pack_w13(w13, arch), unpack_w13),
        (w2, pack_w2(w2, arch), unpack_w2),
    ):
        assert packed.shape == (2, codes[0].numel()) and packed.is_contiguous()
        assert unpack(packed, arch, hidden=hidden, intermediate=intermediate).equal(codes)


@pytest.mark.parametrize("arch", list(ARCHS))
def test_gate_first_sources_give_the_same_plane(arch):
    codes = random_codes(2, 384, 256)
    gate_first = torch.cat((codes[:, 192:], codes[:, :192]), dim=1)
    assert pack_w13(gate_first, arch, source_order="gate_up").equal(pack_w13(codes, arch))
    assert not pack_w13(gate_first, arch).equal(pack_w13(codes, arch))


def test_source_is_left_as_it_was_and_may_be_strided():
    codes = random_codes(2, 384, 512)
    view = codes[:, :, :128]
    kept = codes.clone()
    assert pack_w13(view, "sm_90a").equal(pack_w13(view.contiguous(), "sm_90a"))
    assert codes.equal(kept)


def test_planes_of_two_archs_differ():
    codes = random_codes(1, 384, 256)
    assert not pack_w13(codes, "sm_90a").equal(pack_w13(codes, "sm_120a"))


def test_refusals_name_what_is_wrong():
    codes = random_codes(1, 384, 256)
    with pytest.raises(InvalidWeights, match="int16"):
        pack_w13(codes.to(torch.int16), "sm_90a")
    with pytest.raises(InvalidWeights, match=r"uint8 \[experts, rows, K/2\]"):
        pack_w2(codes[0], "sm_90a")
    with pytest.raises(InvalidWeights, match="w13"):
        pack_w13(codes, "sm_90a", source_order="w13")
    with pytest.raises(InvalidWeights, match="words"):
        unpack_w2(codes.view(1, -1), "sm_90a", hidden=256, intermediate=192)
    with pytest.raises(UnsupportedGeometry, match="96"):
        pack_w13(random_codes(1, 192, 256), "sm_90a")
    with pytest.raises(UnsupportedGeometry, match="hidden = 384"):
        pack_w2(random_codes(1, 384, 64), "sm_90a")
    with pytest.raises(UnknownArch):
        pack_w13(codes, "sm_90")
