"""Explaining a payload: its key, whether it is stored, and the nearest payload that is."""

import pkgutil
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.declared import DeclaredFamily
from planfreeze.decoding import decode_msgpack
from planfreeze.entry_points import FAMILIES, find_entry_point, list_entry_points
from planfreeze.family import Family, load_family
from planfreeze.key import dialect_of, make_key, source_roots, spell_labels
from planfreeze.payload import Field, Payload, spell_differences
from planfreeze.record import ProgramRecord
from planfreeze.sources import read_sources
from planfreeze.spellings import nearest_spelling
from planfreeze.target import Target
from planfreeze.toolchain import find_toolchain

__all__ = [
    "Explanation",
    "Nearest",
    "describe_nearest",
    "explain",
    "family_names",
    "find_family",
    "find_nearest",
    "stored_payloads",
]


class Nearest(Struct, frozen=True):
    """The payload of the same family that differs in fewest fields, and those fields as (name, asked, there)."""

    payload: Payload
    differing: tuple[tuple[str, Field, Field], ...]


def find_nearest(payload: Payload, others: Iterable[Payload]) -> Nearest | None:
    """Return the nearest other payload of the same family; None when there is none."""
    candidates = [
        Nearest(other, differing_fields(payload, other))
        for other in others
        if other.family_name == payload.family_name and other != payload
    ]
    asked = payload.spell_fields()

    def distance(near: Nearest) -> tuple[int, str]:  # of two that are as near, the same one in every store
        return len(spell_differences(near.payload.spell_fields(), asked)), near.payload.digest

    return min(candidates, key=distance, default=None)


def differing_fields(asked: Payload, there: Payload) -> tuple[tuple[str, Field, Field], ...]:
    """Return the fields that differ, as (name, asked, there)."""
    others = there.to_fields()
    return tuple(
        (name, value, others[name])
        for name, value in asked.to_fields().items()
        if type(value) is not type(others[name]) or value != others[name]
    )


def describe_nearest(payload: Payload, others: Iterable[Payload], command: str) -> str:
    """Say what is nearest to a payload that is not there, and how to build it."""
    near = find_nearest(payload, others)
    if near is None:
        return f"No program of {payload.family_name} is there. Run: {command}"
    fields = "; ".join(spell_differences(near.payload.spell_fields(), payload.spell_fields()))
    return f"The nearest program of {payload.family_name} differs in {fields}. Run: {command}"


def stored_payloads(store: ReadableStore, kind: type[Payload], arch: str) -> tuple[Payload, ...]:
    """Return the payloads of one family that a store has programs of for an architecture.

    Reads every record: for people who ask, not for serving. Damaged records and those of another version of the
    family are passed over.
    """
    found: list[Payload] = []
    for entry in store.entries("record"):
        try:
            record = ProgramRecord.decode(store.get_record(entry.name))
            family_name, stated = decode_msgpack(record.payload)
        except (errors.MissingEntry, errors.DamagedEntry, errors.DamagedRecord, ValueError, TypeError):
            continue
        if family_name == kind.family_name and record.arch == arch:
            found += read_payload(kind, stated)
    return tuple(found)


def read_payload(kind: type[Payload], stated: Iterable[tuple[str, Field]]) -> list[Payload]:
    """Return the payload that a record states; none when the class now has other fields or other limits."""
    try:
        return [kind.from_fields(dict(stated))]
    except (errors.PlanfreezeError, ValueError, TypeError):
        return []


class Explanation(Struct, frozen=True, kw_only=True):
    """What is known of one payload for one architecture.

    Parameters
    ----------
    key : str
        Digest of the key; empty where the compiler whose fingerprint it holds is not installed.
    labels : tuple of (str, str)
        The key's labels, with their bytes as text where they are text and else as a sha256.
    nearest : str
        What is nearest to it in the store, and how to build it; empty when it is stored.
    """

    payload: Payload
    arch: str
    key: str
    labels: tuple[tuple[str, str], ...]
    is_stored: bool
    nearest: str


def explain(
    family_name: str, stated: Sequence[str], target: Target, store: ReadableStore, *, toolchains: Path
) -> Explanation:
    """Explain the payload that a family name and NAME=VALUE fields spell.

    Raises
    ------
    UnknownFamily, InvalidPayload
        There is no such family, or its payload has no such fields.
    """
    family = find_family(family_name)
    payload = family.payload.from_fields(parse_fields(family, stated))
    definition = family.define(payload, target)
    try:
        sources = read_sources(source_roots(family, definition))
        toolchain = find_toolchain(dialect_of(definition), toolchains)
    except errors.CompilerMissing as error:
        labels: tuple[tuple[str, str], ...] = (("toolchain", str(error)),)
        key, is_stored = "", None
    else:
        made = make_key(family, payload, definition, target, sources, toolchain)
        labels = tuple(spell_labels(made).items())
        key, is_stored = made.digest, is_whole(made.digest, store)
    stored = stored_payloads(store, family.payload, target.arch)
    if is_stored is None:
        is_stored = payload in stored
    planned_by = f"--family {family_name}" if isinstance(family, DeclaredFamily) else "--model MODEL"
    command = f"planfreeze build {planned_by} --arch {target.arch} --store {shlex.quote(str(store.path))}"
    if is_stored:
        nearest = ""
    elif payload in stored:
        nearest = f"It is there as it was made from other kernel text or by another compiler. Run: {command}"
    else:
        nearest = describe_nearest(payload, stored, command)
    return Explanation(payload=payload, arch=target.arch, key=key, labels=labels, is_stored=is_stored, nearest=nearest)


def is_whole(key: str, store: ReadableStore) -> bool:
    """Tell whether a key's record and cubin are in a store, undamaged."""
    try:
        store.get_blob(ProgramRecord.decode(store.get_record(key)).blob)
    except (errors.MissingEntry, errors.DamagedEntry, errors.DamagedRecord):
        return False
    return True


def find_family(name: str) -> Family:
    """Return the family that a name or "module:attribute" names: one that ships, or one of an entry point.

    Raises
    ------
    UnknownFamily
        There is none.
    AmbiguousEntryPoint, BrokenEntryPoint
        Packages disagree about the name, or what they declare is no family.
    """
    if ":" in name:
        return load_family(name)
    shipped = [f"{module}:{name}" for module in family_modules() if module.endswith(f".{name}")]
    offered = find_entry_point(FAMILIES, name)
    if offered is None and not shipped:
        raise errors.UnknownFamily(name, nearest_spelling(name, family_names()))
    if offered is None:
        return load_family(shipped[0])
    if shipped:
        raise errors.AmbiguousEntryPoint(FAMILIES, name, (shipped[0], offered))
    try:
        return load_family(offered)
    except Exception as error:  # the package that declares it may raise anything
        raise errors.BrokenEntryPoint(FAMILIES, name, offered, str(error)) from error


def family_names() -> tuple[str, ...]:
    """Return the names of all families here, those that ship and those of installed packages, sorted."""
    shipped = (module.rpartition(".")[2] for module in family_modules())
    return tuple(sorted({*shipped, *list_entry_points(FAMILIES)}))


def family_modules() -> tuple[str, ...]:
    """Return the modules below planfreeze.kernels that hold a family: those with a kernel's module beside them."""
    import planfreeze.kernels

    names = [found.name for found in pkgutil.walk_packages(planfreeze.kernels.__path__, "planfreeze.kernels.")]
    kernels = [name for name in names if name.endswith(("_cute", "_triton"))]
    return tuple(name for name in names if any(kernel.startswith(f"{name}_") for kernel in kernels))


def parse_fields(family: Family, stated: Sequence[str]) -> dict[str, Field]:
    """Parse NAME=VALUE texts: true and false are flags, digits are ints, all else is text.

    A value that a declared family spells like this is that value, such as 0.5, None or ``module:function``.
    """
    fields: dict[str, Field] = {}
    for text in stated:
        name, equals, value = text.partition("=")
        if not equals:
            raise errors.InvalidPayload(family.name, f"{text!r} is not NAME=VALUE")
        declared = family.read_field(name, value) if isinstance(family, DeclaredFamily) else None
        fields[name] = parse_value(value) if declared is None else declared
    return fields


def parse_value(text: str) -> Field:
    """Parse one value."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    # Twenty digits hold every number that fits 64 bits; the payload judges the rest.
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else text
