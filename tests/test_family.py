"""Families: registered once by name, found again by reference."""

from typing import ClassVar

import pytest
from msgspec.structs import replace

from planfreeze.errors import DuplicateFamily, UnknownFamily
from planfreeze.family import Argument, Family, LaunchInfo, family, family_of, load_family, pointer, scalar
from planfreeze.payload import Payload


def define(payload, target):
    """A definition that no test asks for."""
    raise AssertionError


def payload_named(name):
    class Named(Payload):
        family_name: ClassVar[str] = name
        size: int

    return Named


def test_decorated_function_becomes_a_family_named_by_its_place():
    made = family(payload_named("placed"), version=3)(define)
    assert (made.name, made.version, made.define) == ("placed", 3, define)
    assert made.reference == f"{__name__}:define"
    assert family_of(made.payload(size=1)) is made


def test_family_is_found_by_its_reference(toys):
    assert load_family("toys.families:add") is toys.families.add
    assert isinstance(toys.families.add, Family)


def test_function_registered_again_replaces_itself():
    kind = payload_named("again")
    family(kind, version=1)(define)
    newer = family(kind, version=2)(define)
    assert family_of(kind(size=1)) is newer


def test_second_family_of_one_name_is_refused_by_both_references(toys):
    with pytest.raises(DuplicateFamily, match=r"toys\.families:add are both families named toys_add") as raised:
        family(payload_named("toys_add"), version=1)(define)
    assert raised.value.exit_code == 2
    assert family_of(toys.families.AddPayload(block=8)) is toys.families.add


def test_payload_without_a_family_is_refused_by_name():
    with pytest.raises(UnknownFamily, match="orphan"):
        family_of(payload_named("orphan")(size=1))


@pytest.mark.parametrize(
    "reference",
    [
        "",
        ":",
        "toys",
        "toys.families",
        "toys.families:",
        "toys.families:AddPayload",
        "toys.families:no",
        "a b:c",
        ".:c",
    ],
)
def test_reference_that_leads_to_no_family_is_refused(toys, reference):
    with pytest.raises(UnknownFamily) as raised:
        load_family(reference)
    assert raised.value.exit_code == 3 and reference in str(raised.value)
    assert "PYTHONPATH" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def (", "SyntaxError: "),
        ("unknown", "NameError: name 'unknown' is not defined"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_reason(tmp_path, monkeypatch, text, reason):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_families.py").write_text(text)
    with pytest.raises(UnknownFamily) as raised:
        load_family("broken_families:some")
    assert f"its module cannot be imported ({reason}" in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "size_bytes"),
    [
        (pointer("x", "u8", len), 8),
        (scalar("n"), 4),
        (scalar("n", "i64"), 8),
        (Argument(name="n", dtype="i16", is_pointer=False, alignment=1), 2),
    ],
)
def test_argument_knows_its_size_in_the_parameter_list(argument, size_bytes):
    assert argument.size_bytes == size_bytes


def test_launch_facts_come_back_from_their_fields():
    launch = LaunchInfo(block=(64, 2, 1), cluster=(2, 1, 1), shared_bytes=512, carveout_percent=50, is_cooperative=True)
    stated = [[name, list(value) if isinstance(value, tuple) else value] for name, value in launch.to_fields()]
    assert LaunchInfo.from_fields(stated) == launch
    assert [name for name, _ in stated] == list(LaunchInfo.__struct_fields__)
    assert LaunchInfo.from_fields(replace(launch, carveout_percent=None).to_fields()).carveout_percent is None
