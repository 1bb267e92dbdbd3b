"""Explanations: a payload's key, whether it is stored, and what is nearest to it."""

import hashlib
from typing import ClassVar

import pytest
from msgspec.structs import replace

from planfreeze import explanations
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import CompilerMissing, InvalidPayload, UnknownFamily
from planfreeze.explanations import describe_nearest, explain, find_nearest, stored_payloads
from planfreeze.payload import Payload
from planfreeze.target import target

SM_90A = target("sm_90a")


class Tile(Payload):
    family_name: ClassVar[str] = "tile"
    rows: int
    columns: int
    is_wide: bool = False
    name: str = "a"


class Other(Payload):
    family_name: ClassVar[str] = "other"
    rows: int


@pytest.fixture
def ask(built, toolchains):
    """Explain a payload of the package ``toys`` over the built store."""

    def ask_store(family, *stated, arch="sm_90a", store=built.store):
        return explain(family, stated, target(arch), store, toolchains=toolchains)

    return ask_store


def test_nearest_differs_in_fewest_fields():
    far, near = Tile(rows=1, columns=1, is_wide=True), Tile(rows=8, columns=4)
    found = find_nearest(Tile(rows=8, columns=8), [far, near, Other(rows=8)])
    assert found.payload == near
    assert found.differing == (("columns", 8, 4),)


def test_nearest_tells_types_apart():
    (difference,) = find_nearest(Tile(rows=1, columns=1), [Tile(rows=1, columns=1, name="1")]).differing
    assert difference == ("name", "a", "1")


@pytest.mark.parametrize("others", [[], [Other(rows=8)], [Tile(rows=8, columns=8)]])
def test_without_another_payload_of_the_family_nothing_is_near(others):
    assert find_nearest(Tile(rows=8, columns=8), others) is None
    text = describe_nearest(Tile(rows=8, columns=8), others, "planfreeze build")
    assert text == "No program of tile is there. Run: planfreeze build"


def test_description_names_every_differing_field_with_both_values_and_the_command():
    text = describe_nearest(Tile(rows=8, columns=8), [Tile(rows=8, columns=4, is_wide=True)], "planfreeze build --tp 4")
    expected = "The nearest program of tile differs in columns: 4 -> 8; is_wide: True -> False."
    assert text == f"{expected} Run: planfreeze build --tp 4"


def test_stored_program_is_explained_by_its_key(ask, built):
    found = ask("toys.families:add", "block=64")
    key = built.keyed[0].key
    assert (found.key, found.is_stored, found.nearest) == (key.digest, True, "")
    assert (found.payload, found.arch) == (built.plan.payloads[0], "sm_90a")
    assert [label for label, _ in found.labels] == [label for label, _ in key.parts]


def test_labels_are_text_where_they_are_and_else_a_digest(ask, built):
    parts = dict(built.keyed[0].key.parts)
    labels = dict(ask("toys.families:add", "block=64").labels)
    assert labels["arch"] == "sm_90a" and labels["family"] == "toys.families:add 1"
    assert labels["sources"] == parts["sources"].decode()
    assert labels["toolchain"] == parts["toolchain"].decode()
    for label in ("payload", "definition", "environment"):
        assert labels[label] == hashlib.sha256(parts[label]).hexdigest()
    assert labels["options"] == hashlib.sha256(b"").hexdigest(), "nothing is no text"


def test_program_that_is_not_stored_is_explained_by_its_neighbour(ask, built):
    found = ask("toys.families:add", "block=128")
    assert not found.is_stored and len(found.key) == 64
    assert found.nearest == (
        "The nearest program of toys_add differs in block: 64 -> 128. "
        f"Run: planfreeze build --model MODEL --arch sm_90a --store {built.store.path}"
    )


def test_programs_of_another_arch_are_not_near(ask):
    found = ask("toys.families:add", "block=64", arch="sm_120a")
    assert not found.is_stored
    assert found.nearest.startswith("No program of toys_add is there. Run: planfreeze build ")
    assert " --arch sm_120a " in found.nearest


def test_program_is_found_without_its_compiler(ask, built, monkeypatch):
    def miss(dialect, cache):
        raise CompilerMissing(dialect, "triton")

    monkeypatch.setattr(explanations, "find_toolchain", miss)
    stored, other = ask("toys.families:add", "block=64"), ask("toys.families:add", "block=128")
    assert (stored.key, stored.is_stored, stored.nearest) == ("", True, "")
    assert not other.is_stored and "block: 64 -> 128" in other.nearest
    ((label, text),) = stored.labels
    assert label == "toolchain" and "triton is not installed" in text


def test_stored_payloads_are_those_of_the_family_and_arch(built, toys):
    families = toys.families
    assert stored_payloads(built.store, families.AddPayload, "sm_90a") == (families.AddPayload(block=64),)
    assert stored_payloads(built.store, families.CopyPayload, "sm_90a") == (families.CopyPayload(),)
    assert stored_payloads(built.store, families.AddPayload, "sm_120a") == ()
    assert stored_payloads(built.store, Tile, "sm_90a") == ()


def test_damaged_records_are_passed_over(built, toys, tmp_path):
    store = built.copy(tmp_path / "store")
    store.put_record(digest_of(b"a"), b"no record")
    store.layout.entry("record", digest_of(b"b")).parent.mkdir(exist_ok=True)
    store.layout.entry("record", digest_of(b"b")).write_bytes(b"damaged")
    assert stored_payloads(store, toys.families.AddPayload, "sm_90a") == (toys.families.AddPayload(block=64),)


def test_records_of_another_version_of_the_family_are_passed_over(built, tmp_path):
    """Payload classes with more, fewer or other fields than the ones a record states."""

    class Narrower(Payload):
        family_name: ClassVar[str] = "toys_add"

    class Wider(Payload):
        family_name: ClassVar[str] = "toys_add"
        block: int
        depth: int

    class Retyped(Payload):
        family_name: ClassVar[str] = "toys_add"
        block: str

    class Later(Payload):
        family_name: ClassVar[str] = "toys_add"
        block: int
        depth: int = 1

    for kind in (Narrower, Wider, Retyped):
        assert stored_payloads(built.store, kind, "sm_90a") == ()
    assert stored_payloads(built.store, Later, "sm_90a") == (Later(block=64),)


def test_empty_store_has_no_payloads(toys, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    assert stored_payloads(store, toys.families.AddPayload, "sm_90a") == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("007", 7),
        ("true", True),
        ("False", False),
        ("1.0", "1.0"),
        ("", ""),
        ("a=b", "a=b"),
        ("²", "²"),
    ],
)
def test_spelled_values_are_flags_ints_or_text(text, value):
    parsed = explanations.parse_fields("tile", [f"name={text}"])
    assert parsed == {"name": value} and type(parsed["name"]) is type(value)


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (("block",), "'block' is not NAME=VALUE"),
        (("blocks=64",), "blocks is not a field; known: block, warps"),
        ((), "block is missing"),
        (("block=wide",), "block = 'wide' is a str, not the int it is declared as"),
        (("block=true",), "block = True is a bool, not the int it is declared as"),
    ],
)
def test_fields_that_spell_no_payload_are_refused(ask, stated, reason):
    with pytest.raises(InvalidPayload, match=reason):
        ask("toys.families:add", *stated)


@pytest.mark.parametrize(
    "name", ["no_such_family", "", "toys.families:no_such_family", "planfreeze.kernels.moe.geometry:x"]
)
def test_unknown_family_is_refused(ask, name):
    with pytest.raises(UnknownFamily):
        ask(name)


@pytest.mark.parametrize(
    ("mistyped", "near"),
    [
        ("topk_sums", "topk_sum"),
        ("micro_fc3", "micro_fc2"),
        ("toys.families:ad", "toys.families:add"),
        ("zzzzzz", None),
        ("toys.families:zzzzzz", None),
    ],
)
def test_a_mistyped_family_is_refused_with_the_nearest_name(ask, mistyped, near):
    with pytest.raises(UnknownFamily) as raised:
        ask(mistyped)
    assert raised.value.near == near
    assert (f"Did you mean {near}?" in str(raised.value)) == (near is not None)


@pytest.mark.parametrize(
    ("name", "stated"),
    [("topk_sum", ("hidden=256", "top_k=2")), ("expand", ("experts=1", "rows=128", "columns=4", "group_rows=128"))],
)
def test_family_that_ships_with_planfreeze_is_found_by_its_short_name(ask, name, stated):
    found = ask(name, *stated)
    assert found.payload.family_name == name and len(found.key) == 64 and not found.is_stored


def test_program_that_is_stored_under_another_key_is_said_to_be(ask, built, toys, monkeypatch):
    monkeypatch.setattr(explanations, "load_family", lambda reference: replace(toys.families.add, version=2))
    found = ask("toys.families:add", "block=64")
    assert not found.is_stored and found.key != built.keyed[0].key.digest
    assert found.nearest.startswith("It is there as it was made from other kernel text or by another compiler. Run: ")
