"""Widths, tiles and layouts of the MoE kernels."""

import pytest

from planfreeze.errors import UnknownArch, UnsupportedGeometry
from planfreeze.kernels.moe import geometry


@pytest.mark.parametrize(
    ("intermediate", "tiles", "width", "compact"),
    [(576, 5, 640, True), (192, 2, 256, True), (320, 3, 384, True), (256, 2, 256, False), (64, 1, 128, True)],
)
def test_tiles_of_an_intermediate(intermediate, tiles, width, compact):
    assert geometry.row_tiles(intermediate) == tiles
    assert geometry.padded_width(intermediate) == width
    assert geometry.is_compact(intermediate) is compact


def test_intermediate_holds_the_payload_then_one_scale_plane_per_tile():
    for arch, quad in (("sm_120a", 4), ("sm_90a", 16)):
        first = geometry.intermediate_scale_offset(arch, 48, 576, 0, 0)
        assert first == 48 * 640
        assert geometry.intermediate_scale_offset(arch, 48, 576, 47, 4) == first + quad * (4 * 48 + 47)
        assert geometry.intermediate_bytes(arch, 48, 576) == first + quad * 5 * 48


@pytest.mark.parametrize(("hidden", "parts"), [(5120, 4), (7168, 4), (512, 4), (768, 2), (256, 2)])
def test_parts_of_k_are_as_many_whole_steps_each(hidden, parts):
    assert geometry.projection_parts("sm_90a", hidden) == parts
    assert geometry.projection_parts("sm_120a", hidden) == 1


def test_layouts_are_permutations():
    for arch in geometry.LAYOUTS:
        found = geometry.layout(arch)
        assert sorted(found.activation_order) == list(range(32))
        assert sorted(found.weight_bits) == list(range(8))
    assert geometry.layout("sm_90a").w13_row_tile == 64
    with pytest.raises(UnknownArch):
        geometry.layout("sm_120")


def test_ceil_div():
    assert [geometry.ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_sizes_that_are_not_whole_tiles_are_refused():
    geometry.check_hidden(5120)
    geometry.check_intermediate(576)
    geometry.check_top_k(32)
    for check, value in (
        (geometry.check_hidden, 5000),
        (geometry.check_hidden, 0),
        (geometry.check_intermediate, 288),
        (geometry.check_intermediate, -64),
        (geometry.check_top_k, 0),
        (geometry.check_top_k, 33),
    ):
        with pytest.raises(UnsupportedGeometry, match=str(value)):
            check(value)
