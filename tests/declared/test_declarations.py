"""Declared families: what is refused before compiling, what compilers are given, and what is keyed."""

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
from planfreeze.errors import InvalidArgument, InvalidDeclaration
from planfreeze.family import load_family
from planfreeze.key import encode_definition, source_roots

from .declaring import SM_90A, address, declare, grid_of_one

pytestmark = pytest.mark.usefixtures("registry")


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
        (lambda: declare(constants={"block": ()}), "block: it has no value, and so the family has no variant"),
        (lambda: declare(num_warps=()), "num_warps: it has no value"),
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
    assert roots == (grid_of_one.__module__, "no.such", "my.act", "other.helpers")


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
