"""Payloads: frozen values that name one variant of a kernel family."""

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import ClassVar, Self, get_origin

import msgpack

from planfreeze.errors import InvalidPayload

__all__ = ["Field", "Payload", "check_field", "spell_differences"]

FIELD_TYPES: dict[str, type] = {"int": int, "bool": bool, "str": str, "tuple": tuple}
Field = int | bool | str | tuple["Field", ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payload:
    """Base of all payloads: plain fields, one canonical encoding, one digest.

    Subclasses are dataclasses of the same form (``frozen``, ``slots``, ``kw_only``, ``eq=False``) and set
    ``family_name``. Fields hold geometry and flags: int, bool, str, or tuples of them. ``True`` and ``1`` are
    different values. Two payloads are equal when their digests are.

    Raises
    ------
    InvalidPayload
        A field holds another type (a float, a tensor, None), or does not have its declared type.

    Notes
    -----
    A field at its declared default is left out of the encoding: a later flag that is off changes no digest.
    """

    family_name: ClassVar[str]
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for declared in fields(self):
            if declared.init:
                value = getattr(self, declared.name)
                check_field(self.family_name, declared.name, value)
                check_declared(self.family_name, declared.name, value, declared.type)
        object.__setattr__(self, "digest", hashlib.sha256(self.encode()).hexdigest())

    def to_fields(self) -> dict[str, Field]:
        """Return all fields by name, defaults included."""
        return {name: getattr(self, name) for name in self.field_names()}

    def spell_fields(self) -> dict[str, str]:
        """Return what tells the variant from others, by name, as people read it."""
        return {name: str(value) for name, value in self.to_fields().items()}

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the fields, in declared order."""
        return tuple(f.name for f in fields(cls) if f.init)

    def encode(self) -> bytes:
        """Return the canonical bytes: msgpack of [family name, [[field, value], ...]] sorted by field name."""
        defaults = {f.name: f.default for f in fields(self) if f.init}
        stated = [
            [name, value] for name, value in sorted(self.to_fields().items()) if not is_default(value, defaults[name])
        ]
        encoded: bytes = msgpack.packb([self.family_name, stated], use_bin_type=True)
        return encoded

    @classmethod
    def from_fields(cls, values: dict[str, Field]) -> Self:
        """Make the payload from fields by name, as a plan stores them.

        Raises
        ------
        InvalidPayload
            A field is unknown, missing, or of another type.
        """
        known = {f.name: f for f in fields(cls) if f.init}
        for name in values:
            if name not in known:
                raise InvalidPayload(cls.family_name, f"{name} is not a field; known: {', '.join(known)}")
        for name, declared in known.items():
            if name not in values and declared.default is MISSING:
                raise InvalidPayload(cls.family_name, f"{name} is missing")
        return cls(**{name: freeze_lists(value) for name, value in values.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def check_field(family: str, name: str, value: object) -> None:
    """Refuse a value whose exact type is not int, bool, str or a tuple of them."""
    if type(value) is tuple:
        for item in value:
            check_field(family, name, item)
    elif type(value) not in FIELD_TYPES.values():
        raise InvalidPayload(
            family,
            f"{name} = {value!r} is a {type(value).__name__}; payload fields are int, bool, str or tuples of them",
        )
    elif type(value) is int and not -(2**63) <= value < 2**64:
        raise InvalidPayload(family, f"{name} = {value} does not fit 64 bits")
    elif type(value) is str and not is_text(value):
        raise InvalidPayload(family, f"{name} = {value!r} is no text that UTF-8 can hold")


def check_declared(family: str, name: str, value: Field, annotation: object) -> None:
    """Refuse a value of another type than its field is declared with; ``True`` is no int."""
    if isinstance(annotation, str):
        annotation = FIELD_TYPES.get(annotation.partition("[")[0])
    expected = get_origin(annotation) or annotation
    if isinstance(expected, type) and expected in FIELD_TYPES.values() and type(value) is not expected:
        raise InvalidPayload(
            family, f"{name} = {value!r} is a {type(value).__name__}, not the {expected.__name__} it is declared as"
        )


def is_text(value: str) -> bool:
    """Tell whether a string has no lone surrogates, as undecodable command-line arguments do."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def is_default(value: Field, default: object) -> bool:
    """Tell whether a field holds its default, types included (``1`` is not ``True``)."""
    return type(value) is type(default) and value == default and repr(value) == repr(default)


def freeze_lists(value: object) -> Field:
    """Turn lists from a decoder back into tuples."""
    if isinstance(value, list):
        return tuple(freeze_lists(item) for item in value)
    return value  # type: ignore[return-value]  # check_field judges it


def spell_differences(there: Mapping[str, str], asked: Mapping[str, str], *, absent: str = "none") -> tuple[str, ...]:
    """Return each fact of two variants that differs, as "name: there -> asked".

    Parameters
    ----------
    there, asked : mapping of str to str
        Facts by name, as people read them.
    absent : str
        What stands for a fact that only the other has.
    """
    return tuple(
        f"{name}: {there.get(name, absent)} -> {asked.get(name, absent)}"
        for name in dict.fromkeys((*there, *asked))
        if there.get(name) != asked.get(name)
    )
