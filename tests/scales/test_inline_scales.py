"""Encoding: exact bytes, bases and ties, records, raw tiles, sizes, and what is no native plane."""

import struct
from collections import Counter

import pytest
import torch
from torch import Tensor

from planfreeze.errors import InvalidScales
from planfreeze.kernels.scales.geometry import ScaleGeometry, row_of_slot, slot_of_row
from planfreeze.kernels.scales.inline import InlineScales, decode, encode
from planfreeze.kernels.scales.native import logical_scales, native_plane, staged_tiles
from planfreeze.kernels.scales.synthetic import synthetic_scales

CASES = [
    (1152, 160, 576, 576),
    (1152, 160, 576, 0),
    (5120, 18, 5120, 0),
    (384, 112, 192, 192),
    (3584, 6, 3584, 0),
]
EXAMPLE = ScaleGeometry(rows=64, columns=6, group_rows=64)


def synthetic_plane(geometry: ScaleGeometry, experts: int, rotation: int = 0) -> Tensor:
    scales = synthetic_scales(geometry, experts, torch.Generator().manual_seed(11))
    return native_plane(geometry, scales, rotation=rotation)


def headers(inline: InlineScales) -> Tensor:
    return inline.parts()[0].view(torch.int32).view(-1, 24)[:, 16]


def example_plane() -> Tensor:
    scales = torch.full((1, 64, 6), 100, dtype=torch.uint8)
    scales[0, 9] = torch.tensor([120, 121, 120, 121, 121, 119], dtype=torch.uint8)
    return native_plane(EXAMPLE, scales)


@pytest.mark.parametrize(("rows", "columns", "group_rows", "rotation"), CASES)
def test_encoding_keeps_every_byte(rows: int, columns: int, group_rows: int, rotation: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = synthetic_plane(geometry, 3, rotation)
    source = logical_scales(geometry, plane, rotation=rotation)
    inline = encode(geometry, plane)
    assert torch.equal(decode(inline), plane)
    assert torch.equal(decode(inline, first=1, last=3), plane[1:3])
    assert source[:, 0].unique().tolist() == [247]
    assert source[:, 1].unique().tolist() == [0]
    assert source[:, 2, :2].tolist() == [[247, 0]] * 3
    assert inline.raw_tiles == int((headers(inline) < 0).sum()) >= 1
    assert int(((headers(inline) >= 1) & (headers(inline) <= 7)).sum()) >= 1


@pytest.mark.parametrize(
    ("rows", "columns", "group_rows"), [(64, 2, 64), (64, 6, 64), (384, 6, 192), (320, 14, 320), (448, 10, 448)]
)
def test_storage_is_what_a_scalar_encoder_writes(rows: int, columns: int, group_rows: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = synthetic_plane(geometry, 2)
    inline = encode(geometry, plane)
    assert inline.storage.numpy().tobytes() == scalar_encoding(geometry, plane.tolist())
    assert inline.raw_tiles >= 1


def scalar_encoding(geometry: ScaleGeometry, planes: list[list[int]]) -> bytes:
    """Encode one scale after the other, straight from the definition of the format."""
    blocks, bases, raw_tiles = bytearray(), bytearray(), bytearray()
    for plane in planes:
        for block in range(geometry.row_blocks):
            first_row = block // geometry.row_tiles * geometry.group_rows + block % geometry.row_tiles * 128
            end_row = (block // geometry.row_tiles + 1) * geometry.group_rows
            rows = {slot_of_row(r): first_row + r for r in range(min(128, end_row - first_row))}
            base = {}
            for slot, row in rows.items():
                counts = Counter(plane[geometry.offset(row, column)] for column in range(geometry.columns))
                base[slot] = max(range(255), key=lambda b, counts=counts: (counts[b] + counts[b + 1], -b))
            bases += bytes(base.get(slot, 0) for slot in range(128))
            for first_column in range(0, geometry.columns, 4):
                nibbles, words, records = [0] * 128, [0] * 128, []
                for slot, row in sorted(rows.items()):
                    for column in range(min(4, geometry.columns - first_column)):
                        byte = plane[geometry.offset(row, first_column + column)]
                        words[slot] |= byte << 8 * column
                        nibbles[slot] |= (byte == base[slot] + 1) << column
                        if byte not in (base[slot], base[slot] + 1):
                            records.append(slot | column << 8 | byte << 16)
                header = len(records)
                if header > 7:
                    header, nibbles, records = 0x80000000 + len(raw_tiles) // 512, [0] * 128, []
                    raw_tiles += struct.pack("<128I", *words)
                blocks += bytes(nibbles[s] | nibbles[s + 1] << 4 for s in range(0, 128, 2))
                blocks += struct.pack("<8I", header, *records, *[0] * (7 - len(records)))
    return bytes(blocks + bases + raw_tiles)


def test_worked_example() -> None:
    plane = example_plane()
    assert plane[0, 36:40].tolist() == [120, 121, 120, 121]
    assert plane[0, 274:276].tolist() == [121, 119]
    inline = encode(EXAMPLE, plane)
    blocks, bases, raw = (part.numpy().tobytes() for part in inline.parts())
    expected_bases = bytes(120 if slot == 5 else 99 for slot in range(64)) + bytes(64)
    tile_0 = b"\xff\xff\xaf\xff" + b"\xff" * 28 + bytes(32) + bytes(32)
    tile_1 = b"\x33\x33\x13\x33" + b"\x33" * 28 + bytes(32) + struct.pack("<2I", 1, 0x00770105) + bytes(24)
    assert blocks == tile_0 + tile_1
    assert bases == expected_bases
    assert raw == b""
    assert inline.storage.numel() == 320
    assert decode(inline).tolist() == plane.tolist()


def thread_words(block: bytes, bases: bytes, raw: bytes, slot0: int) -> list[int]:
    """Rebuild the words of slots slot0 .. slot0+3 as one thread of a kernel does, in 32-bit arithmetic."""
    header, *records = struct.unpack_from("<8I", block, 64)
    if header >> 31:
        return list(struct.unpack_from("<4I", raw, (header & 0x7FFFFFFF) * 512 + 4 * slot0))
    selectors = struct.unpack_from("<I", block, 4 * (slot0 >> 3))[0] >> 4 * (slot0 & 4)
    base = struct.unpack_from("<I", bases, slot0)[0]
    words = [
        ((base >> 8 * nt) & 0xFF) * 0x01010101 + (((selectors >> 4 * nt) & 15) * 0x00204081 & 0x01010101)
        for nt in range(4)
    ]
    for record in records[:header]:
        nt, column, byte = (record & 127) - slot0, record >> 8 & 3, record >> 16 & 255
        if 0 <= nt < 4:
            words[nt] = words[nt] & ~(0xFF << 8 * column) | byte << 8 * column
    return words


def test_worked_example_rebuilt_by_one_thread() -> None:
    inline = encode(EXAMPLE, example_plane())
    blocks, bases, raw = (part.numpy().tobytes() for part in inline.parts())
    assert thread_words(blocks[:96], bases, raw, 4) == [0x64646464, 0x79787978, 0x64646464, 0x64646464]
    garbage = thread_words(blocks[96:], bases, raw, 4)
    assert garbage == [0x63636464, 0x78787779, 0x63636464, 0x63636464]
    assert [word & 0xFFFF for word in garbage] == [0x6464, 0x7779, 0x6464, 0x6464]


@pytest.mark.parametrize(("rows", "columns", "group_rows"), [(448, 10, 448), (384, 10, 192), (320, 8, 320)])
def test_thread_words_are_the_staged_native_words(rows: int, columns: int, group_rows: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = synthetic_plane(geometry, 2)
    inline = encode(geometry, plane)
    blocks, bases, raw = (part.numpy().tobytes() for part in inline.parts())
    expected = staged_tiles(geometry, plane).view(torch.int32).view(-1, 128)
    for tile in range(2 * geometry.tiles):
        row_block, k_tile = divmod(tile, geometry.k_tiles)
        is_tail = geometry.has_column_tail and k_tile == geometry.k_tiles - 1
        block, base_block = blocks[96 * tile :][:96], bases[128 * row_block :][:128]
        words = [word for slot0 in range(0, 128, 4) for word in thread_words(block, base_block, raw, slot0)]
        kept = [word & 0xFFFF if is_tail else word for word in words]
        assert kept == [word & 0xFFFFFFFF for word in expected[tile].tolist()]
        if is_tail and int(headers(inline)[tile]) >= 0:
            assert kept != words, "a light tail tile holds bases above its two columns"
    assert bool((headers(inline) > 0).any())
    assert inline.raw_tiles > 0


@pytest.mark.parametrize(
    ("row", "base"),
    [
        ([100] * 6, 99),
        ([0] * 6, 0),
        ([1] * 6, 0),
        ([247] * 6, 246),
        ([120, 121, 120, 121, 121, 119], 120),
        ([10, 10, 10, 200, 200, 200], 9),
        ([200, 200, 200, 10, 10, 10], 9),
        ([5, 6, 7, 5, 6, 7], 5),
        ([0, 0, 247, 247, 247, 0], 0),
        ([50, 51, 51, 52, 90, 7], 50),
        ([51, 52, 52, 53, 53, 53], 52),
    ],
)
def test_base_is_the_lowest_that_covers_most(row: list[int], base: int) -> None:
    scales = torch.tensor(row, dtype=torch.uint8).expand(1, 64, 6)
    inline = encode(EXAMPLE, native_plane(EXAMPLE, scales))
    assert inline.parts()[1].tolist() == [base] * 64 + [0] * 64


@pytest.mark.parametrize(("exceptions", "is_raw"), [(0, False), (1, False), (7, False), (8, True), (30, True)])
def test_the_eighth_exception_makes_a_tile_raw(exceptions: int, is_raw: bool) -> None:
    geometry = ScaleGeometry(rows=128, columns=8, group_rows=128)
    scales = torch.full((1, 128, 8), 50, dtype=torch.uint8)
    scales[0, 10 : 10 + exceptions, 6] = 200
    inline = encode(geometry, native_plane(geometry, scales))
    assert headers(inline).tolist() == [0, -(2**31) if is_raw else exceptions]
    assert inline.raw_tiles == is_raw
    slots = sorted(slot_of_row(row) for row in range(10, 10 + exceptions))
    records = [] if is_raw else [slot | 2 << 8 | 200 << 16 for slot in slots]
    words = inline.parts()[0].view(torch.int32).view(-1, 24)
    assert words[1, 17:].tolist() == records + [0] * (7 - len(records))
    if is_raw:
        assert words[1, :16].tolist() == [0] * 16
        rows = [row_of_slot(slot) for slot in range(128)]
        expected = [50 + 150 * (column == 2 and 10 <= row < 10 + exceptions) for row in rows for column in range(4)]
        assert inline.parts()[2].tolist() == expected


@pytest.mark.parametrize("chunk_bytes", [1, 300_000])
def test_chunks_do_not_change_the_storage(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    geometry = ScaleGeometry(rows=384, columns=10, group_rows=192)
    plane = synthetic_plane(geometry, 5)
    whole = encode(geometry, plane)
    monkeypatch.setattr("planfreeze.kernels.scales.native.CHUNK_BYTES", chunk_bytes)
    parts = encode(geometry, plane)
    assert torch.equal(parts.storage, whole.storage)
    assert torch.equal(decode(parts), plane)


def test_a_ds41_layer_has_the_announced_size() -> None:
    w13 = ScaleGeometry(rows=1152, columns=160, group_rows=576)
    w2 = ScaleGeometry(rows=5120, columns=18, group_rows=5120)
    inline = [encode(geometry, synthetic_plane(geometry, 2)) for geometry in (w13, w2)]
    raw_tiles = sum(part.raw_tiles for part in inline)
    assert 192 * sum(part.storage.numel() - 512 * part.raw_tiles for part in inline) == 24_576_000
    assert sum(part.storage.numel() for part in inline) == 24_576_000 // 192 + 512 * raw_tiles


GEOMETRY = ScaleGeometry(rows=128, columns=6, group_rows=64)


@pytest.mark.parametrize(
    ("plane", "reason"),
    [
        (torch.zeros(2, 768), "the plane is torch.float32, not torch.uint8"),
        (torch.zeros(2, 768, dtype=torch.int8), "the plane is torch.int8, not torch.uint8"),
        (torch.zeros(2, 769, dtype=torch.uint8), r"shape \(2, 769\), not \(experts, 768\)"),
        (torch.zeros(768, 2, dtype=torch.uint8).T, "not contiguous"),
        (
            torch.full((2, 768), 247, dtype=torch.uint8).index_fill_(1, torch.tensor(5), 248),
            "byte 5 of expert 0 is 248",
        ),
    ],
)
def test_what_is_no_native_plane_is_refused(plane: Tensor, reason: str) -> None:
    with pytest.raises(InvalidScales, match=reason):
        encode(GEOMETRY, plane)
