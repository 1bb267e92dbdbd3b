"""Sharding, backends, arms and scale modes."""

import pytest
from msgspec.structs import replace

from planfreeze.errors import (
    InvalidGeometry,
    InvalidRanks,
    UnavailableArm,
    UnevenShards,
    UnknownArch,
    UntiledModel,
    UntiledShards,
)
from planfreeze.kernels.moe.rules import (
    Backend,
    ScaleMode,
    ShardedModel,
    choose_arms,
    choose_backend,
    choose_scale_mode,
    choose_tile_m,
    has_kernels,
    inline_limit,
    is_compact,
    is_prepared_inline,
    shard,
)
from planfreeze.models import Arm, Model, PlanOptions, load_model

DS41 = load_model("ds41")
KIMI = load_model("kimi_k3")
UNCOMPRESSED = replace(DS41, name="uncompressed", weight_format="mxfp4")


def options(*, limit: int | None = 1536, is_on: bool = True, arms: tuple[Arm, ...] | None = None) -> PlanOptions:
    return PlanOptions(inline_limit=limit, is_csf_inline=is_on, arms=arms)


@pytest.mark.parametrize(
    ("columns", "compact"), [(64, True), (192, True), (320, True), (576, True), (256, False), (288, False)]
)
def test_compact_means_64_rows_in_the_last_tile(columns: int, compact: bool) -> None:
    assert is_compact(columns) is compact


@pytest.mark.parametrize(
    ("model", "tp", "columns", "compact"),
    [
        (DS41, 1, 2304, False),
        (DS41, 2, 1152, False),
        (DS41, 3, 768, False),
        (DS41, 4, 576, True),
        (DS41, 36, 64, True),
        (KIMI, 12, 256, False),
        (KIMI, 16, 192, True),
    ],
)
def test_a_rank_holds_an_equal_share(model: Model, tp: int, columns: int, compact: bool) -> None:
    sharded = shard(model, tp)
    assert (sharded.intermediate, sharded.is_compact) == (columns, compact)


@pytest.mark.parametrize("tp", [0, -4, 4.0, "4", True, None])
def test_ranks_are_a_whole_number(tp: object) -> None:
    with pytest.raises(InvalidRanks, match="is not a whole number >= 1"):
        shard(DS41, tp)  # type: ignore[arg-type]


def test_a_share_with_a_remainder_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(UnevenShards) as caught:
        shard(DS41, 5)
    assert "2304 = 5 * 460 + 4 columns" in str(caught.value)
    assert "--tp with one of: 1, 2, 3, 4, 6, 9, 12, 18, 36" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_share_of_broken_tiles_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(UntiledShards) as caught:
        shard(DS41, 8)
    assert "2304 / 8 = 288 columns per rank, and 288 = 4 * 64 + 32" in str(caught.value)
    assert caught.value.working == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("model", [DS41, KIMI])
def test_the_ranks_an_error_lists_are_those_that_work(model: Model) -> None:
    with pytest.raises(InvalidGeometry) as caught:
        shard(model, 5)
    works = []
    for tp in range(1, model.intermediate + 1):
        try:
            shard(model, tp)
        except InvalidGeometry:
            continue
        works.append(tp)
    assert isinstance(caught.value, UnevenShards)
    assert list(caught.value.working) == works


def test_a_model_that_no_number_of_ranks_suits_says_so() -> None:
    with pytest.raises(UntiledShards, match="No tensor-parallel size works"):
        shard(replace(DS41, intermediate=100), 1)


def test_the_working_ranks_of_a_huge_model_are_found_quickly() -> None:
    with pytest.raises(UnevenShards) as caught:
        shard(replace(DS41, intermediate=2**30), 3)
    assert caught.value.working == tuple(2**i for i in range(25))


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"hidden": 5000}, "hidden = 5000"), ({"hidden": 128}, "hidden = 128"), ({"top_k": 33}, "top_k = 33")],
)
def test_sizes_that_sharding_does_not_change_are_refused(change: dict[str, int], reason: str) -> None:
    with pytest.raises(UntiledModel, match=f"ds41: {reason} is not"):
        shard(replace(DS41, **change), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "capacity", "backend"),
    [
        (DS41, 4, 1, Backend.MICRO),
        (DS41, 4, 8, Backend.MICRO),
        (DS41, 4, 9, Backend.DYNAMIC),
        (KIMI, 16, 8, Backend.MICRO),
        (KIMI, 12, 8, Backend.DYNAMIC),
        (DS41, 1, 1, Backend.DYNAMIC),
    ],
)
def test_up_to_eight_tokens_of_a_compact_model_are_micro(
    model: Model, tp: int, capacity: int, backend: Backend
) -> None:
    assert choose_backend(shard(model, tp), capacity) is backend


@pytest.mark.parametrize(
    ("sharded", "is_on", "prepared"),
    [
        (shard(DS41, 4), True, True),
        (shard(DS41, 4), False, False),
        (shard(DS41, 2), True, False),
        (shard(UNCOMPRESSED, 4), True, False),
    ],
)
def test_experts_are_inline_when_compressed_and_compact_and_switched_on(
    sharded: ShardedModel, is_on: bool, prepared: bool
) -> None:
    assert is_prepared_inline(sharded, options(is_on=is_on)) is prepared


@pytest.mark.parametrize(
    ("sharded", "is_on", "arms"),
    [
        (shard(DS41, 4), True, ("inline",)),
        (shard(DS41, 4), False, ("expand",)),
        (shard(DS41, 2), True, ("expand",)),
        (shard(UNCOMPRESSED, 4), True, ("native",)),
        (shard(UNCOMPRESSED, 2), True, ("native",)),
    ],
)
def test_the_weights_ask_for_one_arm(sharded: ShardedModel, is_on: bool, arms: tuple[Arm, ...]) -> None:
    assert choose_arms(sharded, options(is_on=is_on)) == arms


@pytest.mark.parametrize(
    ("sharded", "arms"),
    [
        (shard(DS41, 4), ("inline", "expand", "native")),
        (shard(DS41, 2), ("expand", "native")),
        (shard(UNCOMPRESSED, 4), ("native",)),
    ],
)
def test_all_arms_are_those_the_model_has(sharded: ShardedModel, arms: tuple[Arm, ...]) -> None:
    assert choose_arms(sharded, options(arms=("inline", "expand", "native"))) == arms


@pytest.mark.parametrize(
    ("sharded", "is_on", "arm", "reason"),
    [
        (shard(DS41, 2), True, "inline", "1152 % 128 = 0"),
        (shard(DS41, 4), False, "inline", "PLANFREEZE_CSF_INLINE=0"),
        (shard(UNCOMPRESSED, 4), True, "inline", "weights are mxfp4"),
        (shard(UNCOMPRESSED, 4), True, "expand", "weights are mxfp4"),
    ],
)
def test_an_arm_the_model_does_not_have_is_refused(sharded: ShardedModel, is_on: bool, arm: Arm, reason: str) -> None:
    with pytest.raises(UnavailableArm, match=reason) as caught:
        choose_arms(sharded, options(is_on=is_on, arms=(arm, "native")))
    assert caught.value.arm == arm
    assert "native" in caught.value.available


@pytest.mark.parametrize(
    ("arm", "capacity", "limit", "mode"),
    [
        ("inline", 1536, 1536, ScaleMode.INLINE),
        ("inline", 1537, 1536, ScaleMode.EXPAND),
        ("inline", 8, 0, ScaleMode.INLINE),
        ("inline", 9, 0, ScaleMode.EXPAND),
        ("inline", 9, 9, ScaleMode.INLINE),
        ("expand", 8, 1536, ScaleMode.DECODE),
        ("expand", 64, 1536, ScaleMode.DECODE),
        ("expand", 4096, 1536, ScaleMode.DECODE),
        ("native", 8, 1536, ScaleMode.NATIVE),
        ("native", 4096, 1536, ScaleMode.NATIVE),
    ],
)
def test_the_limit_decides_for_grouped_kernels_of_inline_experts_alone(
    arm: Arm, capacity: int, limit: int, mode: ScaleMode
) -> None:
    assert choose_scale_mode(shard(DS41, 4), "sm_90a", capacity, arm, options(limit=limit)) is mode


@pytest.mark.parametrize(("arch", "limit"), [("sm_90a", 4096), ("sm_120a", 1536)])
def test_without_a_limit_the_one_of_the_architecture_decides(arch: str, limit: int) -> None:
    for capacity, mode in ((limit, ScaleMode.INLINE), (limit + 1, ScaleMode.EXPAND)):
        assert choose_scale_mode(shard(DS41, 4), arch, capacity, "inline", options(limit=None)) is mode
    assert inline_limit(arch, options(limit=None)) == limit and inline_limit(arch, options(limit=0)) == 0


@pytest.mark.parametrize(
    ("arch", "capacity", "tile_m"),
    [
        ("sm_90a", 1, 8),
        ("sm_90a", 64, 8),
        ("sm_90a", 128, 8),
        ("sm_90a", 129, 16),
        ("sm_90a", 896, 16),
        ("sm_90a", 897, 32),
        ("sm_90a", 4096, 32),
        ("sm_120a", 1, 16),
        ("sm_120a", 128, 16),
        ("sm_120a", 4096, 16),
    ],
)
def test_tiles_of_grouped_routes_grow_with_the_capacity_where_products_take_more_tokens(
    arch: str, capacity: int, tile_m: int
) -> None:
    assert choose_tile_m(arch, capacity) == tile_m


def test_an_unknown_architecture_has_no_tiles() -> None:
    with pytest.raises(UnknownArch):
        choose_tile_m("sm_90", 64)


@pytest.mark.parametrize(
    ("arch", "capacity", "has"),
    [
        ("sm_90a", 8, True),
        ("sm_90a", 65536, True),
        # 80 tiles of 64 weight rows for every 32 of 6 routes a token, and for 383 tiles more that are not full.
        ("sm_90a", 143_163_530, True),
        ("sm_90a", 143_163_531, False),
        ("sm_120a", 71_581_765, True),
        ("sm_120a", 71_581_766, False),
        ("sm_90a", 2**31 - 1, False),
    ],
)
def test_a_capacity_whose_tasks_32_bits_do_not_count_has_no_kernels(arch: str, capacity: int, has: bool) -> None:
    assert has_kernels(shard(DS41, 4), arch, capacity) is has


@pytest.mark.parametrize(
    ("arch", "row_tiles", "has"),
    # 48 routes; a tile of 64 up and 64 gate rows is four tasks on sm_90a and two on sm_120a.
    [("sm_90a", 11_184_809, True), ("sm_90a", 11_184_811, False), ("sm_120a", 11_184_811, True)],
)
def test_the_parts_of_a_first_projection_are_counted_too(arch: str, row_tiles: int, has: bool) -> None:
    sharded = shard(replace(DS41, intermediate=64 * row_tiles), 1)
    assert has_kernels(sharded, arch, 8) is has
