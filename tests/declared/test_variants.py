"""Variants of declared families: which ones there are, which one a call takes, and when they are too many."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from planfreeze.declarations import cute_family, derived, integer, tensor
from planfreeze.declared import DeclaredFamily
from planfreeze.errors import FamilyTooLarge, InvalidArgument, InvalidPayload
from planfreeze.explanations import describe_nearest

from .declaring import SM_90A, address, declare, grid_of_one

pytestmark = pytest.mark.usefixtures("registry")

INT_MAX = 2**31 - 1


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def reached(family: DeclaredFamily, calls: Iterator[dict[str, Any]]) -> set[Any]:
    return {family.specialize(**call) for call in calls}


def test_every_value_of_every_range_takes_a_planned_variant_and_every_variant_is_taken() -> None:
    family = declare(integer("n", 1, 4096), integer("stride", 8, 64, multiple_of=8), tensor("x", "f32", alignment=4))
    calls = (
        {"n": n, "stride": stride, "x": address(place)}
        for n, stride, place in itertools.product(range(1, 4097), range(8, 65, 8), (16, 4))
    )
    assert reached(family, calls) == set(family.payloads())
    assert len(family.payloads()) == 3 * 2 * 2


def test_an_argument_that_is_not_specialised_has_one_class() -> None:
    plain, marked = declare(integer("n", 1, 4096)), declare(integer("n", 1, 4096), do_not_specialize=("n",))
    assert (len(plain.payloads()), len(marked.payloads())) == (3, 1)
    unaligned = declare(integer("n", 1, 4096), do_not_specialize_on_alignment=("n",))
    assert [payload.to_fields()["n"] for payload in unaligned.payloads()] == ["one", "i32"]


def test_a_derived_constant_is_planned_for_exactly_the_values_that_calls_reach() -> None:
    family = declare(
        integer("n", 1, 5000),
        constants={"block": derived("n", lambda n: next_power_of_two(min(n, 1024)))},
    )
    assert reached(family, ({"n": n} for n in range(1, 5001))) == set(family.payloads())
    # 1; 2, 4, 8 and 16 by values that are no multiples of 16; 16 to 1024 by multiples; 32 to 1024 by the others.
    assert len(family.payloads()) == 1 + 4 + 7 + 6
    with pytest.raises(InvalidArgument, match="block = 7 is not the 8 it is derived as"):
        family.specialize(5, block=7)


def test_a_constant_per_live_count_is_refused_by_the_argument_before_anything_compiles() -> None:
    with pytest.raises(FamilyTooLarge, match="stride is computed from it and takes more than 1024") as found:
        declare(integer("rows", 1, 8192), constants={"stride": derived("rows", lambda rows: rows * 7)}).payloads()
    assert found.value.argument == "rows"
    with pytest.raises(FamilyTooLarge, match=r"because of rows: .* 2147483647 values are more than 1048576"):
        declare(integer("rows", 1, INT_MAX), constants={"stride": derived("rows", lambda rows: 1)}).payloads()


def test_a_family_of_too_many_combinations_names_what_contributes_most_and_what_shrinks_it() -> None:
    arguments = [integer(f"n{i}", 1, 4096) for i in range(5)]
    with pytest.raises(FamilyTooLarge) as caught:
        declare(*arguments, constants={"block": (1, 2, 4, 8, 16)}).payloads()
    assert caught.value.argument == "block"
    assert "it comes in 5 ways and the family in 1215; 1024 are the most" in str(caught.value)
    assert "do_not_specialize='n0' leaves 1 of every 3 variants" in str(caught.value)


def test_advice_says_what_not_specialising_really_saves() -> None:
    arguments = (integer("n", 1, 4096), integer("m", 2, 15), tensor("x", "f32", alignment=4), tensor("y", "f32"))
    family = declare(*arguments)
    assert [text.split("=")[1].split(" ")[0] for text in family.advice()] == ["'n'", "'x'"]
    for name, (fewer, now) in {"n": (1, 3), "x": (1, 2)}.items():
        assert len(declare(*arguments, do_not_specialize=(name,)).payloads()) * now == len(family.payloads()) * fewer


def test_a_call_that_was_made_before_is_told_apart_by_type_all_the_same() -> None:
    family = declare(integer("n", 2, 15), constants={"c": (True, 1, 1.0, 0.0, -0.0, (1,), (True,))})
    calls = (True, 1, 1.0, 0.0, -0.0)
    for _ in range(2):
        assert len({family.specialize(3, c=value).digest for value in calls}) == len(calls)
    assert family.specialize(3, c=1) is family.specialize(3, c=1)
    assert family.specialize(3, c=1) == type(family.specialize(3, c=1)).from_fields({"n": "i32", "c": 1})


def test_configurations_go_together_and_the_others_are_combined() -> None:
    family = declare(
        integer("n", 2, 15),
        constants={"even": (True, False)},
        configurations=({"block": 64, "num_warps": 4}, {"block": 128, "num_warps": 8}),
    )
    variants = [(p.block, p.num_warps, p.even) for p in family.payloads()]  # type: ignore[attr-defined]
    assert sorted(variants) == [(64, 4, False), (64, 4, True), (128, 8, False), (128, 8, True)]
    assert family.specialize(3, even=True, block=128) == family.specialize(3, even=True, num_warps=8)
    with pytest.raises(InvalidArgument, match="argument block, num_warps is missing: 2 configurations fit the rest"):
        family.specialize(3, even=True)
    with pytest.raises(InvalidArgument, match="argument even is missing: it is one of True, False"):
        family.specialize(3, block=64)
    unlisted = family.specialize(3, even=True, block=64, num_warps=8)
    assert unlisted not in family.payloads()
    assert "block: 128 -> 64" in describe_nearest(unlisted, family.payloads(), "build") or "num_warps: 4 -> 8" in (
        describe_nearest(unlisted, family.payloads(), "build")
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda f: f.specialize(0, address(16)), "n = 0 is not among the"),
        (lambda f: f.specialize(4097, address(16)), "n = 4097"),
        (lambda f: f.specialize(True, address(16)), "n is a bool, not an int"),
        (lambda f: f.specialize(1, 16), "x is a int, not a tensor"),
        (lambda f: f.specialize(1, None), "x is a NoneType, not a tensor"),
        (lambda f: f.specialize(1, address(16, "torch.float64")), "x has dtype torch.float64; declared are f32"),
        (lambda f: f.specialize(1, address(18)), "x at 0x12 is not aligned to the 4 bytes"),
        (lambda f: f.specialize(1), "x is missing"),
        (lambda f: f.specialize(1, address(16), 3), "number 3 is one too many"),
        (lambda f: f.specialize(1, address(16), n=1), "n is given twice"),
        (lambda f: f.specialize(1, address(16), m=1), "m is unknown"),
    ],
)
def test_calls_that_no_variant_takes(call: Any, reason: str) -> None:
    family = declare(integer("n", 1, 4096), tensor("x", "f32", alignment=4))
    with pytest.raises(InvalidArgument, match=reason):
        call(family)


def test_a_payload_with_a_class_its_argument_does_not_have_is_refused() -> None:
    family = declare(integer("n", 2, 15))
    payload = family.payload.from_fields({"n": "i64"})
    with pytest.raises(InvalidPayload, match="n = 'i64' is none of i32"):
        family.define(payload, SM_90A)


def test_a_cute_family_is_told_apart_by_what_is_declared_alone() -> None:
    family = cute_family(
        kernel="no.such:kernel",
        arguments=(tensor("x", ("f32", "f16"), alignment=4), integer("n", 1, 4096), integer("wide", 0, 2**31)),
        constants={"tile": (16, 32)},
        name="cute_sample",
    )(grid_of_one)
    assert len(family.payloads()) == 4
    for value, place in itertools.product((1, 2, 16), (4, 16)):
        payload, passed = family.select(address(place), value, 1, tile=16)
        assert payload == family.payloads()[0]
        assert len(passed) == 3
    arguments = family.define(family.payloads()[0], SM_90A).arguments
    assert [(a.dtype, a.alignment) for a in arguments] == [("f32", 4), ("i32", 1), ("i64", 1)]
