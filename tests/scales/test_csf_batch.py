"""CSF batches: exact bytes against a scalar encoder, regions, the clamp, and sizes."""

from collections import Counter

import pytest
import torch

from planfreeze.errors import InvalidScales
from planfreeze.kernels.scales import csf_batch, inline
from planfreeze.kernels.scales.csf_batch import decode, encode, tasks_per_expert
from planfreeze.kernels.scales.geometry import ScaleGeometry, slot_of_row
from planfreeze.kernels.scales.native import native_plane

from .csf_planes import LAYERS, exceptions_of, make_plane


def scalar_batch(geometry: ScaleGeometry, planes: list[list[int]]) -> tuple[list, list, list, list]:
    """Compress one scale after the other, straight from the definition of the format."""
    size = geometry.native_bytes(1)
    all_bases, all_selectors, exceptions, all_offsets = [], [], [], []
    for plane in planes:
        row_of = [0] * size
        for row in range(geometry.rows):
            for column in range(geometry.columns):
                row_of[geometry.offset(row, column)] = row
        counts = [Counter() for _ in range(geometry.rows)]
        for offset, byte in enumerate(plane):
            counts[row_of[offset]][byte] += 1
        bases = [max(range(255), key=lambda b, row=row: (row[b] + row[b + 1], -b)) for row in counts]
        selectors, offsets = bytearray(size // 8), []
        for offset, byte in enumerate(plane):
            if offset % 8192 == 0:
                offsets.append(len(exceptions))
            base = bases[row_of[offset]]
            selectors[offset // 8] |= (byte == base + 1) << offset % 8
            if byte not in (base, base + 1):
                exceptions.append(offset | byte << 24)
        all_bases.append(bases)
        all_selectors.append(list(selectors))
        all_offsets.append([*offsets, len(exceptions)])
    return all_bases, all_selectors, exceptions, all_offsets


@pytest.mark.parametrize(
    ("rows", "columns", "group_rows"),
    [(64, 2, 64), (64, 6, 64), (384, 6, 192), (320, 14, 320), (512, 40, 256), (256, 64, 256)],
)
def test_a_batch_is_what_a_scalar_encoder_writes(rows: int, columns: int, group_rows: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = make_plane(rows, columns, group_rows, experts=2)
    batch = encode(geometry, plane)
    bases, selectors, exceptions, task_offsets = scalar_batch(geometry, plane.tolist())
    assert batch.bases.tolist() == bases
    assert batch.selectors.tolist() == selectors
    assert exceptions_of(batch) == exceptions
    assert batch.task_offsets.tolist() == task_offsets
    assert exceptions


@pytest.mark.parametrize(("rows", "columns", "group_rows", "rotation"), LAYERS)
def test_encoding_keeps_every_byte(rows: int, columns: int, group_rows: int, rotation: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = make_plane(rows, columns, group_rows, rotation)
    batch = encode(geometry, plane)
    assert torch.equal(decode(batch), plane)
    assert torch.equal(decode(batch, first=1, last=3), plane[1:3])
    assert torch.equal(decode(batch, first=2), plane[2:])
    assert batch.task_offsets[0, 0] == 0
    assert batch.task_offsets[-1, -1] == len(batch.exceptions) > 0


def test_bases_are_those_of_inline_storage() -> None:
    geometry = ScaleGeometry(rows=384, columns=10, group_rows=192)
    plane = make_plane(384, 10, 192)
    by_slot = inline.encode(geometry, plane).parts()[1].view(3, 2, 2, 128)
    bases = encode(geometry, plane).bases
    for row in range(384):
        group, inside = divmod(row, 192)
        assert torch.equal(bases[:, row], by_slot[:, group, inside // 128, slot_of_row(inside % 128)])


ROWS_OF = {
    "a few neighbours": lambda low, shape: low + torch.randint(0, 4, shape),
    "many neighbours": lambda low, shape: low + torch.randint(0, 9, shape),
    "mostly one": lambda low, shape: low + torch.randint(0, 5, shape) * (torch.rand(shape) < 0.4),
    "two clusters": lambda low, shape: low + torch.randint(0, 2, shape) + 3 * torch.randint(0, 2, shape),
    "anything": lambda low, shape: torch.randint(0, 248, shape),
}
"""Rows around a lowest byte, up to 8 above it."""


@pytest.mark.parametrize("columns", [2, 4, 6, 18, 2048])
@pytest.mark.parametrize("kind", ROWS_OF)
def test_every_base_is_the_lowest_that_covers_most(kind: str, columns: int) -> None:
    geometry = ScaleGeometry(rows=192, columns=columns, group_rows=192)
    torch.manual_seed(columns)
    experts = 1 if columns > 100 else 8
    # Among the lowest bytes are both ends of the range.
    low = torch.randint(0, 240, (experts, 192, 1)) * (torch.rand(experts, 192, 1) < 0.8)
    low[:, ::7] = 239
    source = ROWS_OF[kind](low, (experts, 192, columns)).to(torch.uint8)
    rows = 256 * torch.arange(experts * 192).view(experts, 192, 1)
    counts = torch.bincount((rows + source).flatten(), minlength=experts * 192 * 256).view(experts, 192, 256)
    expected = (counts[..., :-1] + counts[..., 1:]).argmax(2)
    plane = native_plane(geometry, source)
    assert torch.equal(encode(geometry, plane).bases.long(), expected)
    assert torch.equal(inline.decode(inline.encode(geometry, plane)), plane)


def test_scales_are_counted_past_255_in_a_column() -> None:
    geometry = ScaleGeometry(rows=64, columns=2048, group_rows=64)
    # Of each column of the 512 tiles 255 are 100, so that is the guess. More are 101 than 99, 640 to 388; were the
    # 256 of the last column lost, there would be fewer.
    tiles = torch.empty(512, 4, dtype=torch.uint8)
    order = torch.tensor([0, 256, 511, *range(1, 256), *range(257, 511)])
    for column, above in enumerate((128, 128, 128, 256)):
        tiles[order, column] = torch.tensor([100] * 255 + [101] * above + [99] * (257 - above), dtype=torch.uint8)
    plane = native_plane(geometry, tiles.flatten().expand(1, 64, 2048))
    assert encode(geometry, plane).bases.unique().tolist() == [100]


def test_every_region_lists_its_own_exceptions() -> None:
    geometry = ScaleGeometry(rows=1152, columns=160, group_rows=576)
    assert tasks_per_expert(geometry) == 23
    assert tasks_per_expert(ScaleGeometry(rows=5120, columns=18, group_rows=5120)) == 12
    batch = encode(geometry, make_plane(1152, 160, 576))
    words = exceptions_of(batch)
    for expert in range(3):
        for task, (start, end) in enumerate(
            zip(batch.task_offsets[expert, :-1].tolist(), batch.task_offsets[expert, 1:].tolist(), strict=True)
        ):
            assert {(word & 0xFFFFFF) // 8192 for word in words[start:end]} == {task}


def test_nothing_decodes_to_more_than_247() -> None:
    geometry = ScaleGeometry(rows=128, columns=8, group_rows=128)
    source = torch.tensor([246, 247, 248, 254], dtype=torch.uint8).repeat(2).expand(1, 128, 8).clone()
    source[0, 1] = 254
    source[0, 2] = torch.tensor([9, 9, 9, 9, 9, 9, 254, 255], dtype=torch.uint8)
    plane = native_plane(geometry, source)
    batch = encode(geometry, plane)
    assert batch.bases[0, :3].tolist() == [246, 246, 8]
    assert {word >> 24 for word in exceptions_of(batch)} == {247}
    assert int(decode(batch).max()) == 247
    with pytest.raises(InvalidScales, match=r"is 248: native planes hold 0\.\.247"):
        encode(geometry, plane + 1)


@pytest.mark.parametrize("chunk_bytes", [1, 300_000])
def test_chunks_do_not_change_the_batch(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    geometry = ScaleGeometry(rows=384, columns=10, group_rows=192)
    plane = make_plane(384, 10, 192, experts=5)
    whole = encode(geometry, plane)
    monkeypatch.setattr("planfreeze.kernels.scales.native.CHUNK_BYTES", chunk_bytes)
    parts = encode(geometry, plane)
    for name in ("bases", "selectors", "exceptions", "task_offsets"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))
    assert torch.equal(decode(parts), plane)


@pytest.mark.parametrize("shift", [1, 2])
def test_planes_may_start_at_any_byte(shift: int) -> None:
    geometry = ScaleGeometry(rows=384, columns=10, group_rows=192)
    plane = make_plane(384, 10, 192)
    shifted = torch.cat((torch.zeros(shift, dtype=torch.uint8), plane.flatten()))[shift:].view(plane.shape)
    assert shifted.storage_offset() == shift
    assert torch.equal(decode(encode(geometry, shifted)), plane)
    assert torch.equal(inline.encode(geometry, shifted).storage, inline.encode(geometry, plane).storage)


def test_planes_without_exceptions_have_none() -> None:
    geometry = ScaleGeometry(rows=128, columns=8, group_rows=64)
    plane = torch.full((2, 1024), 3, dtype=torch.uint8)
    batch = encode(geometry, plane)
    assert exceptions_of(batch) == []
    assert batch.task_offsets.tolist() == [[0, 0]] * 2
    assert batch.selectors.unique().tolist() == [255]
    assert torch.equal(decode(batch), plane)


def test_sizes_count_every_part() -> None:
    geometry = ScaleGeometry(rows=512, columns=16, group_rows=256)
    batch = encode(geometry, make_plane(512, 16, 256))
    count = len(batch.exceptions)
    assert batch.sizes == {"bases": 3 * 512, "selectors": 3 * 1024, "exceptions": 4 * count, "task_offsets": 3 * 2 * 8}
    assert batch.size_bytes == sum(batch.sizes.values())


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "group_rows", "rotation"), LAYERS)
def test_the_device_makes_the_same_batch(rows: int, columns: int, group_rows: int, rotation: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = make_plane(rows, columns, group_rows, rotation, experts=40)
    expected, batch = encode(geometry, plane), encode(geometry, plane.cuda())
    for name in ("bases", "selectors", "exceptions", "task_offsets"):
        assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name))
    assert torch.equal(decode(batch, first=1, last=3).cpu(), plane[1:3])
    assert csf_batch.tasks_per_expert(geometry) == batch.task_offsets.shape[1] - 1
