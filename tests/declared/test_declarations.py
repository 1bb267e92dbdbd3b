"""Declared families: which variants there are, which one a call takes, and what is refused before compiling."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from planfreeze import family as families
from planfreeze.constants import spell_field
from planfreeze.declarations import (
    cute_family,
    derived,
    dtype,
    flag,
    integer,
    named,
    real,
    tensor,
    triton_family,
)
from planfreeze.declared import DeclaredFamily
from planfreeze.errors import FamilyTooLarge, InvalidArgument, InvalidDeclaration, InvalidPayload
from planfreeze.explanations import describe_nearest
from planfreeze.family import load_family
from planfreeze.key import encode_definition, source_roots
from planfreeze.target import target

SM_90A = target("sm_90a")
INT_MAX = 2**31 - 1


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families that tests declare are forgotten after each."""
    monkeypatch.setattr(families, "registry", dict(families.registry))


def grid_of_one(scalars: Any, constants: Any) -> tuple[int]:
    return (1,)


def declare(*arguments: Any, name: str = "sample", **declared: Any) -> DeclaredFamily:
    return triton_family(kernel="no.such:kernel", arguments=arguments, name=name, **declared)(grid_of_one)


def address(value: int, kind: str = "f32") -> SimpleNamespace:
    return SimpleNamespace(data_ptr=lambda: value, dtype=kind)


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


@pytest.mark.parametrize("mark", ["do_not_specialize", "do_not_specialize_on_alignment"])
def test_a_constant_cannot_be_marked_not_to_be_specialised(mark: str) -> None:
    with pytest.raises(InvalidDeclaration, match="block: it is marked not to be specialized and is no argument"):
        declare(integer("n", 1, 2), constants={"block": 64}, **{mark: ("block",)})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: declare(integer("n", 1, 2), constants={"n": 1}), "n: it is declared twice"),
        (lambda: declare(integer("n", 1, 2), constants={"num_warps": 1}), "num_warps: it is declared twice"),
        (lambda: declare(configurations=({"a": 1}, {"b": 1})), "do not all state the same"),
        (lambda: declare(constants={"b": derived("n", abs)}), "derived from n, which is no integer argument"),
        (lambda: integer("n", 5, 4), "5 to 4 is no range"),
        (lambda: integer("n", 1, 2**64), "is no range within"),
        (lambda: integer("n", 0, 2**31, dtype="i32"), "is no range within -2147483648 to 2147483647"),
        (lambda: integer("n", 17, 31, multiple_of=16), "no multiple of 16"),
        (lambda: integer("n", 1, 2, dtype="i128"), "'i128' is none of"),
        (lambda: integer("n", 1, 2, multiple_of=0), "step is not positive"),
        (lambda: tensor("x", "float"), "'float' is none of"),
        (lambda: tensor("x", "f32", alignment=12), "alignment = 12 is no power of two"),
        (lambda: real("x", "f16"), "neither f32 nor f64"),
        (lambda: declare(integer("not a name", 1, 2)), "no name of a parameter"),
    ],
)
def test_declarations_that_contradict_themselves(make: Any, reason: str) -> None:
    with pytest.raises(InvalidDeclaration, match=reason):
        make()


def test_a_family_has_to_be_declared_where_it_can_be_found_again() -> None:
    with pytest.raises(InvalidDeclaration, match="no function at the top level"):

        @triton_family(kernel="no.such:kernel", arguments=())
        def inner(scalars: Any, constants: Any) -> tuple[int]:
            return (1,)


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


def test_a_payload_says_what_the_compiler_is_given() -> None:
    family = declare(
        tensor("x", ("f32", "bf16"), alignment=4),
        integer("one", 1, 1),
        integer("n", 2, 4096),
        integer("wide", -5, 2**40),
        real("factor"),
        flag("is_even"),
        tensor("bias", "f32", optional=True),
        constants={"act": named("my.act:relu"), "scale": 0.5, "kind": dtype("fp16")},
        options={"maxnreg": (None, 128)},
        num_warps=8,
    )
    call = (address(20, "torch.bfloat16"), 1, 32, 2**35 + 16, 0.25, True, None)
    payload, passed = family.select(*call, maxnreg=128)
    assert passed == (call[0], 32, 2**35 + 16, 0.25, True)
    definition = family.define(payload, SM_90A)
    found = [(a.name, a.dtype, a.alignment, a.multiple_of) for a in definition.arguments]
    assert found == [
        *[("x", "bf16", 4, 1), ("n", "i32", 1, 16), ("wide", "i64", 1, 16)],
        *[("factor", "f32", 1, 1), ("is_even", "bool", 1, 1)],
    ]
    source = definition.source
    constants = {name: spell_field(value) for name, value in source.constants}
    assert constants == {"one": "1", "bias": "None", "act": "my.act:relu", "scale": "0.5", "kind": "fp16"}
    assert (source.num_warps, source.num_stages, source.divisible) == (8, 3, ("n", "wide"))
    assert source.options == (("maxnreg", 128),)
    assert type(payload).from_fields(payload.to_fields()) == payload


def test_names_that_payloads_have_themselves_get_an_underscore() -> None:
    family = declare(integer("digest", 2, 3), constants={"encode": 1, "fields": 2})
    payload = family.specialize(3)
    assert payload.to_fields()["digest_"] == "i32"
    assert dict(family.define(payload, SM_90A).source.constants) == {"encode": 1, "fields": 2}


def test_the_defaults_of_a_launch_are_not_encoded() -> None:
    one, other = declare(integer("n", 2, 3)), declare(integer("n", 2, 3), num_warps=(4, 8))
    assert b"num_warps" not in one.specialize(3).encode()
    assert other.specialize(3, num_warps=4) == one.specialize(3)
    assert other.specialize(3, num_warps=8) != one.specialize(3)


def test_the_grid_is_given_scalars_and_constants_without_a_compiler() -> None:
    seen = {}

    def rule(scalars: Any, constants: Any, resident_blocks: int) -> tuple[int, int]:
        seen.update(scalars=dict(scalars), constants=dict(constants))
        return (scalars["rows"], resident_blocks)

    rule.__qualname__ = "rule"
    family = triton_family(
        kernel="no.such:kernel",
        arguments=(integer("rows", 1, 9), integer("columns", 1, 9)),
        constants={"act": named("no_such_module:relu"), "kind": dtype("fp16"), "scale": 0.5},
    )(rule)
    definition = family.define(family.specialize(1, 5), SM_90A)
    assert definition.grid({"columns": 5}, 264) == (1, 264, 1)
    assert seen["scalars"] == {"rows": 1, "columns": 5}
    assert seen["constants"]["act"] == "no_such_module:relu" and seen["constants"]["scale"] == 0.5


def test_a_family_may_leave_the_grid_to_each_launch() -> None:
    family = triton_family(kernel="no.such:kernel", arguments=(integer("n", 2, 3),), name="leaves")(grid_left)
    with pytest.raises(InvalidArgument, match="argument grid is missing: the family leaves it to each launch"):
        family.define(family.specialize(3), SM_90A).grid({"n": 3}, 1)


def grid_left(scalars: Any, constants: Any) -> None:
    """Say nothing."""


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


def test_families_are_found_by_the_place_they_are_declared_at(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "declares_one.py").write_text(
        "from planfreeze.declarations import integer, triton_family\n"
        "@triton_family(kernel='a:b', arguments=(integer('n', 1, 2),))\n"
        "def declared_family(scalars, constants):\n    return (1,)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_family("declares_one:declared_family")
    assert isinstance(found, DeclaredFamily)
    assert len(found.payloads()) == 2


def test_modules_that_a_family_names_belong_to_its_programs() -> None:
    family = declare(integer("n", 2, 3), sources=("other.helpers",), constants={"act": named("my.act:relu")})
    roots = source_roots(family, family.define(family.payloads()[0], SM_90A))
    assert roots == (__name__, "no.such", "my.act", "other.helpers")


TENSORS = {
    "dtype": lambda: tensor("x", "f16", alignment=4),
    "alignment": lambda: tensor("x", "f32", alignment=8),
    "optional": lambda: tensor("x", "f32", alignment=4, optional=True),
}
INTEGERS = {"width": lambda: integer("n", 1, 2**40), "type": lambda: integer("n", 1, 9, dtype="i64")}


@pytest.mark.parametrize("flip", [*TENSORS, *INTEGERS])
@pytest.mark.parametrize("make", [triton_family, cute_family])
def test_whatever_changes_what_the_compiler_is_given_changes_what_is_keyed(make: Any, flip: str) -> None:
    def keyed(x: Any, n: Any) -> set[bytes]:
        families.registry.pop("flipped", None)
        family = make(kernel="no.such:kernel", arguments=(x, n), name="flipped")(grid_of_one)
        return {encode_definition(family.define(payload, SM_90A)) + payload.encode() for payload in family.payloads()}

    plain = keyed(tensor("x", "f32", alignment=4), integer("n", 1, 9))
    flipped = keyed(
        TENSORS[flip]() if flip in TENSORS else tensor("x", "f32", alignment=4),
        INTEGERS[flip]() if flip in INTEGERS else integer("n", 1, 9),
    )
    assert plain != flipped
