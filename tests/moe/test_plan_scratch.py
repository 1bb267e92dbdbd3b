"""Scratch of runtime plans: rows of whole tiles, the size of every buffer, and where they lie in a workspace."""

import pytest

from planfreeze.kernels.moe.scratch import Counts, ScratchSizes
from planfreeze.models import Arm, Model

from .plans import DS41, KIMI, plan


@pytest.mark.parametrize(
    ("capacity", "m_tiles", "rows"),
    [
        (64, 407, 6512),
        (128, 431, 6896),
        (512, 575, 9200),
        (1536, 959, 15344),
        (2048, 1151, 18416),
        (4096, 1919, 30704),
    ],
)
def test_rows_of_grouped_routes_are_whole_tiles_of_the_worst_routing(capacity: int, m_tiles: int, rows: int) -> None:
    (planned,) = plan(arch="sm_120a", capacities=(capacity,)).capacities
    assert planned.counts == Counts(rows=rows, m_tiles=m_tiles)


ROUTES_8 = 48 * 2 * 576 * 4
W13_PLANE, W2_PLANE = 384 * 1152 * 160, 384 * 5120 * 18


@pytest.mark.parametrize(
    ("model", "tp", "arch", "capacity", "arm", "sizes"),
    [
        # 48 routes of 576 columns, stored 640 wide behind 5 planes of 4 scales: f32 on sm_90a, bytes on sm_120a. The
        # first projection is summed in four parts on sm_90a.
        (
            DS41,
            4,
            "sm_90a",
            8,
            "inline",
            (40960, 5120, 4 * ROUTES_8, *[0] * 5, 48 * 640 + 5 * 48 * 16, 491520, 0, 0, 0),
        ),
        (DS41, 4, "sm_120a", 8, "inline", (40960, 1280, ROUTES_8, *[0] * 5, 48 * 640 + 5 * 48 * 4, 491520, 0, 0, 0)),
        (KIMI, 16, "sm_120a", 1, "inline", (3584, 112, 16 * 1536, *[0] * 5, 16 * 256 + 2 * 16 * 4, 114688, 0, 0, 0)),
        # 407 tiles of 16 rows; a map and a weight for each row, three words for each tile, and for all.
        (
            DS41,
            4,
            "sm_120a",
            64,
            "inline",
            (327680, 10240, 0, 26048, 26048, 1628, 1628, 1640, 6512 * 660, 3932160, 0, 0, 0),
        ),
        # 48 + 383 tiles of 8 rows.
        (
            DS41,
            4,
            "sm_90a",
            64,
            "native",
            (327680, 40960, 0, 13792, 13792, 1724, 1724, 1736, 3448 * 720, 3932160, 0, 0, 0),
        ),
        (
            DS41,
            4,
            "sm_120a",
            2048,
            "inline",
            (
                *(2048 * 5120, 2048 * 160, 0, 73664, 73664, 4604, 4604, 4616, 18416 * 660, 125829120, 0),
                *(W13_PLANE, W2_PLANE),
            ),
        ),
        (
            DS41,
            4,
            "sm_90a",
            8,
            "expand",
            (
                *(40960, 5120, 4 * ROUTES_8, *[0] * 5, 48 * 640 + 5 * 48 * 16, 491520, 384),
                *(W13_PLANE, W2_PLANE),
            ),
        ),
    ],
)
def test_scratch_is_sized_by_capacity_backend_and_scale_mode(
    model: Model, tp: int, arch: str, capacity: int, arm: Arm, sizes: tuple[int, ...]
) -> None:
    scratch = plan(model, tp=tp, arch=arch, capacities=(capacity,), arms=(arm,)).scratch
    assert tuple(size for _, size in scratch.items()) == sizes


def test_a_plan_needs_the_most_that_one_of_its_capacities_needs_of_every_buffer() -> None:
    assert plan(capacities=(1, 8)).scratch == plan(capacities=(8,)).scratch
    made = plan(capacities=(8, 64, 2048))
    for name, size in made.scratch.items():
        assert size == max(getattr(planned.scratch, name) for planned in made.capacities)
    assert made.scratch.projections == plan(capacities=(8,)).scratch.projections > 0
    assert made.scratch.w13_plane == W13_PLANE


def test_plans_that_expand_nothing_have_no_planes() -> None:
    for made in (plan(capacities=(8, 64, 1536)), plan(capacities=(8, 4096), arms=("native",))):
        assert (made.scratch.w13_plane, made.scratch.w2_plane, made.scratch.presence) == (0, 0, 0)


def test_the_buffers_of_a_workspace_are_aligned_and_disjoint() -> None:
    names = [name for name, _ in plan().scratch.items()]
    empty = dict.fromkeys(names, 0)
    scratch = ScratchSizes(**(empty | {"a8": 256, "a_scale": 8, "projections": 300, "route_output": 512}))
    assert {name: place for name, place in scratch.places().items() if getattr(scratch, name)} == {
        "a8": (0, 256),
        "a_scale": (256, 264),
        "projections": (512, 812),
        "route_output": (1024, 1536),
    }
    assert scratch.workspace == 1536
