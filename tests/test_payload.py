"""Payloads: one canonical encoding, exact types, digests that last."""

import copy
import enum
import itertools
import pickle
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from planfreeze.errors import InvalidPayload
from planfreeze.payload import Payload


class Golden(Payload):
    family_name: ClassVar[str] = "golden"
    rows: int
    name: str
    tiles: tuple[int, ...]
    is_wide: bool = False


class GoldenLater(Payload):
    """The same family after a flag was added that is off by default."""

    family_name: ClassVar[str] = "golden"
    rows: int
    name: str
    tiles: tuple[int, ...]
    is_wide: bool = False
    is_fast: bool = False


class Loose(Payload):
    """A field that may hold any of the types."""

    family_name: ClassVar[str] = "loose"
    value: int | bool | str | tuple[Any, ...]
    mode: Literal["a", "b"] = "a"


class Defaulted(Payload):
    family_name: ClassVar[str] = "defaulted"
    value: int | bool | tuple[Any, ...] = 1
    pair: tuple[Any, ...] = (0, (False,))


class Other(Payload):
    family_name: ClassVar[str] = "other"
    value: int


class Color(enum.IntEnum):
    RED = 1


GOLDEN = {"rows": 5120, "name": "ab", "tiles": (1, 200)}
# 92: family name and fields; a6 golden; 93: three fields by name, "is_wide" left out.
GOLDEN_BYTES = bytes.fromhex(
    "92 a6 676f6c64656e 93"
    "92 a4 6e616d65 a2 6162"  # name = "ab"
    "92 a4 726f7773 cd1400"  # rows = 5120
    "92 a5 74696c6573 92 01 cc c8"  # tiles = (1, 200)
)
GOLDEN_DIGEST = "55442d277e75240b9575f8aa54e3a54de2baded39e9eb04709c00e2511ac49c4"


def test_encoding_and_digest_are_golden():
    payload = Golden(**GOLDEN)
    assert payload.encode() == GOLDEN_BYTES
    assert payload.digest == GOLDEN_DIGEST


def test_field_at_its_default_is_left_out_however_it_is_given():
    assert Golden(**GOLDEN, is_wide=False) == Golden(**GOLDEN)
    assert Golden(**GOLDEN, is_wide=True).digest != GOLDEN_DIGEST


def test_new_flag_that_is_off_changes_no_digest():
    assert GoldenLater(**GOLDEN).digest == Golden(**GOLDEN).digest
    assert GoldenLater(**GOLDEN, is_wide=True).digest == Golden(**GOLDEN, is_wide=True).digest
    assert GoldenLater(**GOLDEN, is_fast=True).digest != Golden(**GOLDEN).digest


def test_value_that_merely_equals_the_default_is_stated():
    assert Defaulted(value=True) != Defaulted() == Defaulted(value=1)
    for pair in ((False, (False,)), (0, (0,)), (False, (0,))):
        assert Defaulted(pair=pair) != Defaulted() == Defaulted(pair=(0, (False,)))


DIFFERENT = [
    *(1, True, "1", "True", (1,), (True,), ("1",), ((1,),), (1, 1), "(1,)"),
    *(
        0,
        False,
        "0",
        "",
        (),
        ((),),
        "None",
        -1,
        2**63,
        -(2**63),
        2**64 - 1,
        "a",
        "A",
        "é",
        "e\u0301",
        "a,b",
        ("a", "b"),
        ("a,b",),
    ),
]


def test_values_of_other_type_or_content_differ_in_encoding_and_as_dictionary_keys():
    for a, b in itertools.permutations(DIFFERENT, 2):
        first, second = Loose(value=a), Loose(value=b)
        assert first.encode() != second.encode(), (a, b)
        assert first != second, (a, b)
        assert {first: "there"}.get(second) is None, (a, b)
    assert len({Loose(value=value): value for value in DIFFERENT}) == len(DIFFERENT)


def test_payloads_of_two_families_differ():
    assert Loose(value=1) != Other(value=1)
    assert Loose(value=1) != (1,)


def test_equal_fields_make_equal_payloads_and_one_dictionary_key():
    assert Golden(**GOLDEN) == Golden(**GOLDEN)
    assert {Golden(**GOLDEN): "first", Golden(**GOLDEN): "second"} == {Golden(**GOLDEN): "second"}


REFUSED = {
    "a float": 1.0,
    "not a number": float("nan"),
    "None": None,
    "a tensor": torch.zeros(2),
    "a list": [1, 2],
    "a dictionary": {},
    "bytes": b"1",
    "numpy's int": np.int64(1),
    "numpy's bool": np.bool_(True),
    "an enum": Color.RED,
    "a type": torch.bfloat16,
    "an int that is too large": 2**64,
    "an int that is too small": -(2**63) - 1,
    "text with a lone surrogate": "\udcff",
    "a list in a tuple": (1, [2]),
    "None in a tuple": ("a", (None,)),
    "a large int in a tuple": ((2**64,),),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_field_is_refused_by_name(what):
    with pytest.raises(InvalidPayload, match=r"^payload of loose: value = ") as raised:
        Loose(value=REFUSED[what])
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("value", [-(2**63), 2**64 - 1])
def test_ints_of_64_bits_are_taken(value):
    assert Loose.from_fields(Loose(value=value).to_fields()).value == value


@pytest.mark.parametrize(("name", "value"), [("rows", True), ("rows", "8"), ("is_wide", 1), ("name", 1), ("tiles", 1)])
def test_field_of_another_type_than_declared_is_refused_by_name(name, value):
    with pytest.raises(InvalidPayload, match=f"{name} = {value!r} is a {type(value).__name__}, not the "):
        Golden(**GOLDEN | {name: value})


def test_unknown_field_is_refused_and_the_known_ones_are_named():
    with pytest.raises(InvalidPayload, match="row is not a field; known: rows, name, tiles, is_wide"):
        Golden.from_fields(GOLDEN | {"row": 1})


@pytest.mark.parametrize("name", ["rows", "name", "tiles"])
def test_missing_field_is_refused_by_name(name):
    stated = {other: value for other, value in GOLDEN.items() if other != name}
    with pytest.raises(InvalidPayload, match=f"{name} is missing"):
        Golden.from_fields(stated)


def test_fields_come_back_from_a_decoder_that_gives_lists():
    payload = Loose(value=((1, "a"), (), (True,)))
    assert Loose.from_fields({"value": [[1, "a"], [], [True]]}) == payload
    assert Loose.from_fields(payload.to_fields()) == payload


def test_payload_cannot_be_changed():
    with pytest.raises(AttributeError):
        Golden(**GOLDEN).rows = 1


DIGESTS = """
import sys
from toys.families import AddPayload, CopyPayload
stored = {payload: payload.digest for payload in (AddPayload(block=64), AddPayload(warps=2, block=8), CopyPayload())}
assert all(stored[type(p).from_fields(p.to_fields())] == p.digest for p in list(stored))
print(*stored.values())
"""


def test_digests_are_the_same_in_every_process_and_under_every_hash_seed(interpreter, toys):
    here = [toys.families.AddPayload(block=64), toys.families.AddPayload(block=8, warps=2), toys.families.CopyPayload()]
    for seed in ("0", "1", "random"):
        assert interpreter.run(DIGESTS, PYTHONHASHSEED=seed).split() == [payload.digest for payload in here]


def test_a_payload_stays_what_it_is_in_a_copy_and_in_another_process():
    payload = Golden(**GOLDEN)
    for other in (copy.copy(payload), pickle.loads(pickle.dumps(payload)), replace(payload)):
        assert other == payload and other.digest == payload.digest and other.to_fields() == payload.to_fields()
    with pytest.raises(InvalidPayload, match="rows"):
        replace(payload, rows=True)
