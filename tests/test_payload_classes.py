"""Classes of payloads: one form, whatever a subclass says, and nothing between their fields and their digest."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import pytest

from planfreeze.errors import DecoratedPayload, InvalidPayload
from planfreeze.payload import Payload


@pytest.mark.parametrize(
    "decorate", [dataclass(frozen=True, slots=True, kw_only=True, eq=False), dataclass, dataclass(frozen=True)]
)
def test_a_class_that_is_decorated_as_a_dataclass_is_refused_and_told_how_it_is_written(decorate):
    with pytest.raises(DecoratedPayload, match=r"Tile is decorated as a dataclass.*: class Tile\(Payload\):"):

        @decorate
        class Tile(Payload):
            family_name: ClassVar[str] = "tile"
            rows: int


@pytest.mark.parametrize("options", [{}, {"kw_only": True}, {"frozen": True, "kw_only": True}, {"eq": True}])
def test_every_class_has_the_one_form(options):
    class Tile(Payload, **options):
        family_name: ClassVar[str] = "tile"
        is_wide: bool = False
        rows: int

    tile = Tile(rows=8)
    assert tile == Tile(rows=8, is_wide=False) and tile != Tile(rows=9)
    assert {tile: 1}[Tile(rows=8)] == 1 and tile.digest is tile.digest
    assert Tile.field_names() == ("is_wide", "rows")
    with pytest.raises(TypeError):
        Tile(8)
    with pytest.raises(AttributeError):
        tile.rows = 9


class Annotated(Payload):
    family_name: ClassVar[str] = "annotated"
    rows: "int"
    tiles: "tuple[int, ...]" = ()


class Further(Annotated):
    """Fields of a base and its own."""

    family_name: ClassVar[str] = "further"
    rows: int = 4
    is_wide: bool


def test_fields_that_are_annotated_by_text_or_inherited_have_their_declared_type():
    assert Further(is_wide=True).to_fields() == {"rows": 4, "tiles": (), "is_wide": True}
    for wrong in ({"rows": True}, {"rows": 1, "tiles": 1}):
        with pytest.raises(InvalidPayload, match="it is declared as"):
            Annotated(**wrong)
    with pytest.raises(InvalidPayload, match="is_wide = 1 is a int"):
        Further(is_wide=1)


def test_a_field_cannot_take_the_place_of_the_digest():
    with pytest.raises(InvalidPayload, match="payload of Tile: digest is no name for a field"):

        class Tile(Payload):
            family_name: ClassVar[str] = "tile"
            digest: str


class Tiled(Payload):
    family_name: ClassVar[str] = "tiled"
    tile: int = 16


class Mixin:
    tile = 64


@pytest.mark.parametrize(
    ("bases", "attributes"),
    [
        ((Tiled,), {"tile": 64}),
        ((Tiled,), {"tile": property(lambda self: 64)}),
        ((Tiled,), {"tile": 64, "__annotations__": {"tile": ClassVar[int]}}),
        ((Mixin, Tiled), {}),
        ((Tiled,), {"digest": property(lambda self: "")}),
    ],
)
def test_nothing_hides_a_field_or_the_digest(bases, attributes):
    with pytest.raises(InvalidPayload, match=r"is a field of its base and hidden here|digest is no name"):
        type(Payload)("Wide", bases, {"__module__": __name__, **attributes})
    for name in ("tile", "digest"):
        with pytest.raises(AttributeError, match=f"{name} of Tiled is what its payloads are told by"):
            setattr(Tiled, name, 64)
    assert Tiled(tile=8) != Tiled(tile=32)


def test_a_field_may_be_declared_anew():
    class Wide(Tiled):
        tile: int = 64

    assert (Wide().tile, Wide(tile=8).to_fields()) == (64, {"tile": 8})


def test_a_class_that_checks_more_has_its_digest_whether_it_calls_the_base_or_not():
    class Bounded(Payload):
        family_name: ClassVar[str] = "bounded"
        columns: int

        def __post_init__(self) -> None:
            if self.columns == 13:
                raise ValueError("13 columns")

    class Halved(Bounded):
        def __post_init__(self) -> None:
            super().__post_init__()
            assert self.columns % 2 == 0

    for made in (Bounded, Halved):
        assert made(columns=2).digest == hashlib.sha256(made(columns=2).encode()).hexdigest()
        assert made(columns=2) != made(columns=4)
        with pytest.raises(InvalidPayload, match="columns = 'two' is a str"):
            made(columns="two")
        with pytest.raises(ValueError, match="13 columns"):
            made(columns=13)
