"""Geometry of scale planes: offsets, slots, sizes, and what cannot be tiled."""

import subprocess
import sys

import pytest

from planfreeze.errors import InvalidScales
from planfreeze.kernels.scales.geometry import ScaleGeometry, row_of_slot, slot_of_row

DS41_W13 = ScaleGeometry(rows=1152, columns=160, group_rows=576)
DS41_W2 = ScaleGeometry(rows=5120, columns=18, group_rows=5120)
KIMI_W13 = ScaleGeometry(rows=384, columns=112, group_rows=192)
KIMI_W2 = ScaleGeometry(rows=3584, columns=6, group_rows=3584)
SMALL_W13 = ScaleGeometry(rows=640, columns=32, group_rows=320)
SMALL_W2 = ScaleGeometry(rows=1024, columns=10, group_rows=1024)


@pytest.mark.parametrize(
    ("geometry", "row", "column", "offset"),
    [
        (DS41_W13, 127, 3, 511),
        (DS41_W13, 128, 0, 20480),
        (DS41_W13, 512, 0, 81920),
        (DS41_W13, 1091, 7, 174351),
        (DS41_W13, 576, 0, 92160),
        (DS41_W2, 0, 16, 2048),
        (DS41_W2, 1, 16, 2050),
        (DS41_W2, 300, 17, 6745),
        (DS41_W2, 5119, 17, 92159),
        (KIMI_W13, 192, 0, 21504),
        (KIMI_W2, 200, 4, 1424),
    ],
)
def test_offset(geometry: ScaleGeometry, row: int, column: int, offset: int) -> None:
    assert geometry.offset(row, column) == offset


@pytest.mark.parametrize(
    ("rows", "columns", "group_rows"),
    [(64, 2, 64), (64, 6, 64), (128, 4, 128), (128, 10, 64), (384, 6, 192), (320, 12, 320), (768, 2, 256)],
)
def test_offsets_are_a_bijection(rows: int, columns: int, group_rows: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    offsets = {geometry.offset(row, column) for row in range(rows) for column in range(columns)}
    assert offsets == set(range(rows * columns))
    assert len(offsets) == geometry.native_bytes(1)


@pytest.mark.parametrize(
    ("row", "slot"),
    [(0, 0), (1, 4), (7, 28), (8, 1), (9, 5), (15, 29), (16, 2), (24, 3), (31, 31), (32, 32), (127, 127)],
)
def test_slot_of_row(row: int, slot: int) -> None:
    assert slot_of_row(row) == slot


def test_slots_and_rows_are_inverse() -> None:
    assert [row_of_slot(slot_of_row(row)) for row in range(128)] == list(range(128))
    assert {slot_of_row(row) for row in range(64)} == set(range(64))


@pytest.mark.parametrize(
    ("geometry", "experts", "row_blocks", "k_tiles", "tile_bytes", "base_bytes"),
    [
        (DS41_W13, 384, 10, 40, 14_745_600, 491_520),
        (DS41_W2, 384, 40, 5, 7_372_800, 1_966_080),
        (KIMI_W13, 896, 4, 28, 9_633_792, 458_752),
        (KIMI_W2, 896, 28, 2, 4_816_896, 3_211_264),
        (SMALL_W13, 8, 6, 8, 36_864, 6_144),
        (SMALL_W2, 8, 8, 3, 18_432, 8_192),
    ],
)
def test_inline_sizes(
    geometry: ScaleGeometry, experts: int, row_blocks: int, k_tiles: int, tile_bytes: int, base_bytes: int
) -> None:
    assert (geometry.row_blocks, geometry.k_tiles) == (row_blocks, k_tiles)
    assert geometry.tiles == row_blocks * k_tiles
    assert geometry.tile_bytes(experts) == tile_bytes
    assert geometry.base_bytes(experts) == base_bytes
    assert geometry.inline_bytes(experts, raw_tiles=3) == tile_bytes + base_bytes + 3 * 512


def test_a_ds41_layer_shrinks_to_under_a_quarter() -> None:
    assert DS41_W13.native_bytes(384) + DS41_W2.native_bytes(384) == 106_168_320
    assert DS41_W13.inline_bytes(384) + DS41_W2.inline_bytes(384) == 24_576_000


@pytest.mark.parametrize(
    ("geometry", "shapes"),
    [
        (DS41_W13, [(0, 4, 128, 0, 40, 4), (4, 1, 64, 0, 40, 4)]),
        (DS41_W2, [(0, 40, 128, 0, 4, 4), (0, 40, 128, 4, 1, 2)]),
        (ScaleGeometry(rows=64, columns=2, group_rows=64), [(0, 1, 64, 0, 1, 2)]),
    ],
)
def test_regions(geometry: ScaleGeometry, shapes: list[tuple[int, ...]]) -> None:
    found = [
        (r.first_row_tile, r.row_tiles, r.tile_rows, r.first_k_tile, r.k_tiles, r.tile_columns)
        for r in geometry.regions()
    ]
    assert found == shapes


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((256, 8, 96), "group_rows = 96 is not a multiple of 64"),
        ((192, 8, 128), "rows = 192 is not a multiple of group_rows = 128"),
        ((128, 7, 128), "columns = 7 is odd"),
        ((128, 0, 128), "columns = 0 is not a whole number above 0"),
        ((-128, 4, 128), "rows = -128 is not a whole number above 0"),
        ((128, 4, True), "group_rows = True is not a whole number above 0"),
    ],
)
def test_sizes_that_cannot_be_tiled_are_refused(sizes: tuple[int, int, int], reason: str) -> None:
    rows, columns, group_rows = sizes
    with pytest.raises(InvalidScales, match=reason):
        ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)


def test_the_family_and_its_geometry_load_nothing_heavy() -> None:
    program = (
        "import sys, planfreeze.kernels.scales.expand; "
        "print(sorted({'torch', 'triton', 'cutlass', 'cuda', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
