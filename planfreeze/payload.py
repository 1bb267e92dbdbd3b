"""Payloads: frozen values that name one variant of a kernel family."""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache, wraps
from types import MemberDescriptorType
from typing import Any, ClassVar, Self, dataclass_transform, get_origin

import msgspec
from msgspec import Struct, StructMeta

from planfreeze import errors

__all__ = ["Field", "Payload", "PayloadMeta", "check_field", "spell_differences"]

FIELD_TYPES: dict[str, type] = {"int": int, "bool": bool, "str": str, "tuple": tuple}
FORM = {"frozen": True, "kw_only": True, "eq": False}
Field = int | bool | str | tuple["Field", ...]


class PayloadMeta(StructMeta):
    """Makes classes of payloads, which all have one form.

    Raises
    ------
    DecoratedPayload
        The class is decorated as a dataclass.
    InvalidPayload
        It has an attribute that is called like the digest, or a value or property in the place of a field: what a
        payload was made with would not be what it is told by.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "PayloadMeta":
        if "__post_init__" in namespace and bases != (Struct,):
            namespace = namespace | {"__post_init__": completed(namespace["__post_init__"])}
        made = super().__new__(mcls, name, bases, namespace, **(options | FORM))
        if any("digest" in vars(base) for base in made.__mro__):
            raise errors.InvalidPayload(name, "digest is no name for a field: every payload has a digest of its own")
        for field in made.__struct_fields__:
            found = next(vars(base)[field] for base in made.__mro__ if field in vars(base))
            if not isinstance(found, MemberDescriptorType):
                raise errors.InvalidPayload(
                    name, f"{field} is a field of its base and hidden here: declare it with its type"
                )
        return made

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "__dataclass_params__":  # the first thing that the decorator sets
            raise errors.DecoratedPayload(f"{cls.__module__}.{cls.__qualname__}", cls.__name__)
        if name in ("digest", *cls.__struct_fields__):
            raise AttributeError(f"{name} of {cls.__name__} is what its payloads are told by")
        super().__setattr__(name, value)


def completed(post_init: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a class's own ``__post_init__`` with that of all payloads behind it, unless it has called that itself."""

    @wraps(post_init)
    def checked(self: Any) -> None:
        post_init(self)
        if "digest" not in self.__dict__:
            Payload.__post_init__(self)

    return checked


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(msgspec.field,))
class Payload(Struct, metaclass=PayloadMeta, frozen=True, kw_only=True, eq=False, dict=True):
    """Base of all payloads: plain fields, one canonical encoding, one digest.

    A subclass sets ``family_name`` and declares fields: ``class SumPayload(Payload):``. It is frozen, its fields are
    given by name alone. They hold geometry and flags: int, bool, str, or tuples of them. ``True`` and ``1`` are
    different values. Two payloads are equal when their digests are. ``__post_init__`` may refuse values; call that of
    the base first where it relies on their types.

    Raises
    ------
    InvalidPayload
        A field holds another type (a float, a tensor, None), or does not have its declared type.

    Notes
    -----
    A field at its declared default is left out of the encoding: a later flag that is off changes no digest.
    """

    family_name: ClassVar[str]
    # Each payload has the sha256 of its encoding in its dictionary: no field, and found as fast as one, as every launch
    # that looks a program up asks for it.
    digest: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in declared_kinds(type(self)).items():
            value = getattr(self, name)
            check_field(self.family_name, name, value)
            if kind is not None and type(value) is not kind:
                raise errors.InvalidPayload(
                    self.family_name,
                    f"{name} = {value!r} is a {type(value).__name__}, not the {kind.__name__} it is declared as",
                )
        self.__dict__["digest"] = hashlib.sha256(self.encode()).hexdigest()

    def to_fields(self) -> dict[str, Field]:
        """Return all fields by name, defaults included."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def spell_fields(self) -> dict[str, str]:
        """Return what tells the variant from others, by name, as people read it."""
        return {name: str(value) for name, value in self.to_fields().items()}

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the fields, in declared order."""
        return cls.__struct_fields__

    def encode(self) -> bytes:
        """Return the canonical bytes: msgpack of [family name, [[field, value], ...]] sorted by field name."""
        defaults = declared_defaults(type(self))
        stated = [
            [name, value]
            for name, value in sorted(self.to_fields().items())
            if not (name in defaults and is_default(value, defaults[name]))
        ]
        return msgspec.msgpack.encode([self.family_name, stated])

    @classmethod
    def from_fields(cls, values: dict[str, Field]) -> Self:
        """Make the payload from fields by name, as a plan stores them.

        Raises
        ------
        InvalidPayload
            A field is unknown, missing, or of another type.
        """
        known, defaults = cls.__struct_fields__, declared_defaults(cls)
        for name in values:
            if name not in known:
                raise errors.InvalidPayload(cls.family_name, f"{name} is not a field; known: {', '.join(known)}")
        for name in known:
            if name not in values and name not in defaults:
                raise errors.InvalidPayload(cls.family_name, f"{name} is missing")
        return cls(**{name: freeze_lists(value) for name, value in values.items()})

    def __copy__(self) -> Self:
        return self  # a structure's own copy has its fields alone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self.digest == other.digest

    def __ne__(self, other: object) -> bool:
        return not self == other  # a structure has one of its own

    def __hash__(self) -> int:
        return hash(self.digest)


def check_field(family: str, name: str, value: object) -> None:
    """Refuse a value whose exact type is not int, bool, str or a tuple of them."""
    if type(value) is tuple:
        for item in value:
            check_field(family, name, item)
    elif type(value) not in FIELD_TYPES.values():
        raise errors.InvalidPayload(
            family,
            f"{name} = {value!r} is a {type(value).__name__}; payload fields are int, bool, str or tuples of them",
        )
    elif type(value) is int and not -(2**63) <= value < 2**64:
        raise errors.InvalidPayload(family, f"{name} = {value} does not fit 64 bits")
    elif type(value) is str and not is_text(value):
        raise errors.InvalidPayload(family, f"{name} = {value!r} is no text that UTF-8 can hold")


@cache
def declared_kinds(payload: type[Payload]) -> Mapping[str, type | None]:
    """Return the type that each field of a class is declared with, None for what says nothing of a payload's types."""
    declared: dict[str, object] = {}
    for base in reversed(payload.__mro__):
        declared |= getattr(base, "__annotations__", {})
    return {name: plain_kind(declared[name]) for name in payload.__struct_fields__}


@cache
def declared_defaults(payload: type[Payload]) -> Mapping[str, Field]:
    """Return the defaults of the fields of a class that have one."""
    names, defaults = payload.__struct_fields__, payload.__struct_defaults__
    stated = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    return {name: default for name, default in stated if type(default) in FIELD_TYPES.values()}


def plain_kind(annotation: object) -> type | None:
    """Return the type of payload fields that an annotation is, as an object or as text."""
    if isinstance(annotation, str):
        return FIELD_TYPES.get(annotation.partition("[")[0])
    return next((kind for kind in FIELD_TYPES.values() if kind is (get_origin(annotation) or annotation)), None)


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
