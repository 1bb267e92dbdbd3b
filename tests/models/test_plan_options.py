"""What a plan can be asked for."""

import pytest

from planfreeze.errors import (
    InvalidCapacity,
    InvalidInlineLimit,
    PlanfreezeError,
    UnknownArm,
    UnknownIdType,
)
from planfreeze.models import PlanOptions, load_model, parse_options


def test_options_that_ask_for_the_same_are_equal() -> None:
    asked = parse_options(inline_limit=1536, capacities="64, 8,64", arms="native,inline", id_types="int64,int32")
    assert asked == PlanOptions(
        inline_limit=1536, capacities=(8, 64), arms=("inline", "native"), id_types=("int32", "int64")
    )
    assert asked.capacities == (8, 64)
    assert asked.arms == ("inline", "native")
    assert asked.id_types == ("int32", "int64")


def test_all_names_every_arm() -> None:
    assert parse_options(inline_limit=0, arms="all").arms == ("inline", "expand", "native")


def test_what_is_not_asked_for_is_the_models() -> None:
    model, options = load_model("ds41"), parse_options(inline_limit=1536)
    assert options.capacities_for(model) == model.capacities
    assert options.id_types_for(model) == ("int32", "int64")
    assert options.arms is None
    narrowed = parse_options(inline_limit=1536, capacities="4", id_types="int64")
    assert narrowed.capacities_for(model) == (4,)
    assert narrowed.id_types_for(model) == ("int64",)


@pytest.mark.parametrize("text", ["0", "-8", "eight", "8.0", "", "8,", "1_000", "+8", "٨", "2147483648", "9" * 5000])
def test_text_that_is_no_capacity_is_refused(text: str) -> None:
    with pytest.raises(InvalidCapacity) as caught:
        parse_options(inline_limit=1536, capacities=text)
    assert caught.value.exit_code == 2
    assert "is not a capacity" in str(caught.value)


@pytest.mark.parametrize("capacities", [(0,), (8, -1), (True,), (8.0,), ("8",), (2**31,), ()])
def test_a_value_that_is_no_capacity_is_refused(capacities: tuple[object, ...]) -> None:
    with pytest.raises(InvalidCapacity):
        PlanOptions(inline_limit=1536, capacities=capacities)  # type: ignore[arg-type]


def test_the_largest_capacity_is_a_32_bit_count() -> None:
    assert parse_options(inline_limit=0, capacities="2147483647").capacities == (2**31 - 1,)


@pytest.mark.parametrize("limit", [-1, True, 1536.0, "1536"])
def test_a_limit_that_is_no_count_is_refused(limit: object) -> None:
    with pytest.raises(InvalidInlineLimit):
        PlanOptions(inline_limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "text", "error", "hint"),
    [
        ("arms", "inlined", UnknownArm, "Did you mean inline?"),
        ("arms", "", UnknownArm, "inline, expand, native, all"),
        ("arms", "native,all", UnknownArm, "inline, expand, native, all"),
        ("id_types", "int23", UnknownIdType, "Did you mean int32?"),
        ("id_types", "int32,,int64", UnknownIdType, "int32, int64"),
    ],
)
def test_an_unknown_name_is_refused(option: str, text: str, error: type[PlanfreezeError], hint: str) -> None:
    with pytest.raises(error) as caught:
        parse_options(inline_limit=1536, **{option: text})  # type: ignore[arg-type]
    assert hint in str(caught.value)
    assert caught.value.exit_code == 2


def test_no_arms_and_no_id_types_are_refused() -> None:
    with pytest.raises(UnknownArm):
        PlanOptions(inline_limit=1536, arms=())
    with pytest.raises(UnknownIdType):
        PlanOptions(inline_limit=1536, id_types=())
