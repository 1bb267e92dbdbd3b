"""Frozen plans: plans with every digest, a deployment's lock file."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.msgpack import Decoder

from planfreeze import errors
from planfreeze.family import Family
from planfreeze.plan_names import build_command, plan_name
from planfreeze.sources import Sources

if TYPE_CHECKING:
    from planfreeze.choices import Choice

__all__ = ["PLAN_FORMAT", "FrozenPlan", "PlanEntry", "PlanFamily", "freeze_families"]

MAGIC = "planfreeze plan"
PLAN_FORMAT = 1
MAX_FIELD_DEPTH = 64  # deeper than any payload, and far from what Python can nest


class Head(Struct, array_like=True):
    """What a plan of any format begins with."""

    magic: str
    plan_format: int


class Parts(Head, array_like=True, forbid_unknown_fields=True):
    """The parts of a plan of this format; the last is left out where it is empty."""

    model: str
    tp: int
    arch: str
    options: tuple[str, ...]
    families: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    entries: tuple[tuple[str, tuple[tuple[str, Any], ...], str, str, str], ...]
    choices: tuple[tuple[str, str, list[Any], tuple[tuple[str, Any], ...]], ...] = ()


HEAD, PARTS = Decoder(Head), Decoder(Parts)


class PlanFamily(Struct, frozen=True, kw_only=True):
    """A family of the plan, with the text its programs were compiled from."""

    reference: str
    sources: Sources


class PlanEntry(Struct, frozen=True, kw_only=True):
    """One program of a frozen plan: payload fields, the key of its inputs, the digests of its record and cubin."""

    family: str
    fields: tuple[tuple[str, Any], ...]
    key: str
    record: str
    blob: str


class FrozenPlan(Struct, frozen=True, kw_only=True):
    """A plan with key, record digest and blob digest of every program, and one root digest over all."""

    model: str
    tp: int
    arch: str
    families: tuple[PlanFamily, ...]
    entries: tuple[PlanEntry, ...]
    options: tuple[str, ...] = ()
    choices: tuple["Choice", ...] = ()

    @property
    def name(self) -> str:
        """Name of the reference in a store."""
        return plan_name(self.model, self.tp, self.arch)

    @property
    def build_command(self) -> str:
        """The command that builds this plan again."""
        return build_command(self.model, self.tp, self.arch, self.options)

    @property
    def root(self) -> str:
        """The sha256 of the plan's canonical bytes."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return msgspec.msgpack.encode(
            [
                MAGIC,
                PLAN_FORMAT,
                self.model,
                self.tp,
                self.arch,
                self.options,
                [[f.reference, f.sources.modules] for f in self.families],
                [[e.family, e.fields, e.key, e.record, e.blob] for e in self.entries],
                # Left out where there are none, so that a plan without choices keeps its root.
                *([[c.kernel, c.space, c.key, c.config] for c in self.choices] for _ in self.choices[:1]),
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> "FrozenPlan":
        """Read a frozen plan back.

        Raises
        ------
        DamagedPlan
            The bytes are no frozen plan.
        PlanTooNew
            They are one of a later format.
        """
        try:
            head = HEAD.decode(data)
            if head.magic != MAGIC:
                raise errors.DamagedPlan("it is not a frozen plan")
            if head.plan_format > PLAN_FORMAT:
                raise errors.PlanTooNew(head.plan_format, PLAN_FORMAT)
            parts = PARTS.decode(data)
            plan = cls(
                model=parts.model,
                tp=parts.tp,
                arch=parts.arch,
                options=parts.options,
                families=tuple(
                    PlanFamily(reference=reference, sources=Sources(modules)) for reference, modules in parts.families
                ),
                entries=tuple(
                    PlanEntry(family=family, fields=read_fields(fields), key=key, record=record, blob=blob)
                    for family, fields, key, record, blob in parts.entries
                ),
                choices=read_choices(parts.choices) if parts.choices else (),
            )
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise errors.DamagedPlan(str(error)) from error
        if plan.encode() != data or len(plan.options) % 2:
            raise errors.DamagedPlan("it is not in canonical form")
        return plan


def read_choices(stated: Iterable[tuple[str, str, list[Any], tuple[tuple[str, Any], ...]]]) -> tuple["Choice", ...]:
    """Make choices of what a plan states of them."""
    from planfreeze.choices import Choice  # most plans hold none

    return tuple(
        Choice(kernel=kernel, space=space, key=read_field(key), config=read_fields(config))
        for kernel, space, key, config in stated
    )


def read_fields(stated: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return fields by name as payloads hold them."""
    return tuple((name, read_field(value)) for name, value in stated)


def read_field(value: Any, depth: int = MAX_FIELD_DEPTH) -> Any:
    """Return a field as a payload holds it, tuples in tuples up to a depth.

    Raises
    ------
    ValueError
        No payload can have it.
    """
    if type(value) is list and depth > 0:
        return tuple(read_field(item, depth - 1) for item in value)
    if type(value) not in (int, bool, str):
        raise ValueError(f"a field holds a {type(value).__name__}")
    return value


def freeze_families(programs: Iterable[tuple[Family, Sources]]) -> tuple[PlanFamily, ...]:
    """Merge the sources of each family's programs, in order of reference."""
    merged: dict[str, dict[str, str]] = {}
    for family, sources in programs:
        merged.setdefault(family.reference, {}).update(sources.modules)
    return tuple(
        PlanFamily(reference=reference, sources=Sources(tuple(sorted(modules.items()))))
        for reference, modules in sorted(merged.items())
    )
