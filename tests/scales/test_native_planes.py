"""Native planes: where every scale goes, rotation, the clamp, staged tiles, and what is refused."""

import pytest
import torch
from torch import Tensor

from planfreeze.errors import InvalidScales
from planfreeze.kernels.scales.geometry import ScaleGeometry, slot_of_row
from planfreeze.kernels.scales.native import logical_scales, native_plane, plane_of_tiles, staged_tiles

SHAPES = [(64, 2, 64), (64, 6, 64), (128, 4, 128), (384, 6, 192), (640, 10, 320), (1152, 12, 576), (256, 18, 256)]


def random_scales(geometry: ScaleGeometry, experts: int, high: int = 248) -> Tensor:
    shape = (experts, geometry.rows, geometry.columns)
    return torch.randint(0, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


@pytest.fixture(params=SHAPES, ids=str)
def geometry(request: pytest.FixtureRequest) -> ScaleGeometry:
    rows, columns, group_rows = request.param
    return ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)


@pytest.mark.parametrize("turn", [0, 1])
def test_every_scale_lies_at_its_offset(geometry: ScaleGeometry, turn: int) -> None:
    rotation = geometry.group_rows * turn % geometry.rows
    scales = random_scales(geometry, experts=2)
    plane = native_plane(geometry, scales, rotation=rotation)
    offsets = torch.tensor(
        [[geometry.offset(row, column) for column in range(geometry.columns)] for row in range(geometry.rows)]
    )
    rows = (torch.arange(geometry.rows) + rotation) % geometry.rows
    assert plane.shape == (2, geometry.rows * geometry.columns)
    assert torch.equal(plane[:, offsets], scales[:, rows])


def test_reading_back_inverts_building(geometry: ScaleGeometry) -> None:
    scales = random_scales(geometry, experts=3)
    for rotation in (0, 1, geometry.rows - 1):
        plane = native_plane(geometry, scales, rotation=rotation)
        assert torch.equal(logical_scales(geometry, plane, rotation=rotation), scales)


def test_bytes_above_247_are_clamped_and_the_source_is_kept() -> None:
    geometry = ScaleGeometry(rows=64, columns=4, group_rows=64)
    scales = torch.arange(256, dtype=torch.uint8).view(1, 64, 4)
    plane = native_plane(geometry, scales)
    assert plane.view(-1).tolist() == [*range(248), *[247] * 8]
    assert scales.view(-1).tolist() == list(range(256))


def test_strided_scales_give_the_same_plane(geometry: ScaleGeometry) -> None:
    scales = random_scales(geometry, experts=2)
    strided = scales.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    assert torch.equal(native_plane(geometry, strided), native_plane(geometry, scales))


def test_a_plane_larger_than_one_chunk_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = ScaleGeometry(rows=384, columns=6, group_rows=192)
    scales = random_scales(geometry, experts=5)
    whole = native_plane(geometry, scales, rotation=192)
    monkeypatch.setattr("planfreeze.kernels.scales.native.CHUNK_BYTES", 2 * geometry.native_bytes(1))
    assert torch.equal(native_plane(geometry, scales, rotation=192), whole)


def test_staged_tiles_hold_words_in_slot_order(geometry: ScaleGeometry) -> None:
    scales = random_scales(geometry, experts=2)
    expected = torch.zeros(2, geometry.row_blocks, geometry.k_tiles, 128, 4, dtype=torch.uint8)
    for row in range(geometry.rows):
        group, group_row = divmod(row, geometry.group_rows)
        block, slot = group * geometry.row_tiles + group_row // 128, slot_of_row(group_row % 128)
        for column in range(geometry.columns):
            expected[:, block, column // 4, slot, column % 4] = scales[:, row, column]
    staged = staged_tiles(geometry, native_plane(geometry, scales))
    assert torch.equal(staged.view(expected.shape), expected)


def test_padding_of_staged_tiles_never_reaches_the_plane(geometry: ScaleGeometry) -> None:
    plane = native_plane(geometry, random_scales(geometry, experts=2))
    staged = torch.where(staged_tiles(geometry, torch.ones_like(plane)) == 1, staged_tiles(geometry, plane), 255)
    written = torch.zeros_like(plane)
    plane_of_tiles(geometry, staged, written)
    assert torch.equal(written, plane)


GEOMETRY = ScaleGeometry(rows=128, columns=6, group_rows=64)


@pytest.mark.parametrize(
    ("scales", "reason"),
    [
        (torch.zeros(2, 128, 6), r"scales are torch.float32"),
        (torch.zeros(2, 128, 6, dtype=torch.int8), r"scales are torch.int8"),
        (torch.zeros(2, 128, 4, dtype=torch.uint8), r"shape \(2, 128, 4\), not \(experts, 128, 6\)"),
        (torch.zeros(128, 6, dtype=torch.uint8), r"shape \(128, 6\)"),
        (torch.zeros(0, 128, 6, dtype=torch.uint8), r"shape \(0, 128, 6\)"),
    ],
)
def test_scales_of_another_form_are_refused(scales: Tensor, reason: str) -> None:
    with pytest.raises(InvalidScales, match=reason):
        native_plane(GEOMETRY, scales)


@pytest.mark.parametrize("rotation", [-1, 128])
def test_a_rotation_outside_of_the_rows_is_refused(rotation: int) -> None:
    with pytest.raises(InvalidScales, match=f"rotation = {rotation}"):
        native_plane(GEOMETRY, torch.zeros(1, 128, 6, dtype=torch.uint8), rotation=rotation)


@pytest.mark.parametrize(
    ("plane", "reason"),
    [
        (torch.zeros(2, 768), r"the plane is torch.float32"),
        (torch.zeros(2, 767, dtype=torch.uint8), r"shape \(2, 767\), not \(experts, 768\)"),
        (torch.zeros(1536, dtype=torch.uint8), r"shape \(1536,\)"),
        (torch.zeros(0, 768, dtype=torch.uint8), r"shape \(0, 768\)"),
        (torch.zeros(768, 2, dtype=torch.uint8).T, r"not contiguous"),
        (torch.zeros(4, 768, dtype=torch.uint8)[::2], r"not contiguous"),
    ],
)
def test_planes_of_another_form_are_refused(plane: Tensor, reason: str) -> None:
    for read in (logical_scales, staged_tiles):
        with pytest.raises(InvalidScales, match=reason):
            read(GEOMETRY, plane)
