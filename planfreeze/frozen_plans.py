"""Frozen plans: plans with every digest, a deployment's lock file."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from planfreeze.decoding import decode_msgpack
from planfreeze.errors import DamagedPlan, PlanTooNew
from planfreeze.family import Family
from planfreeze.plan_names import build_command, plan_name
from planfreeze.sources import Sources

if TYPE_CHECKING:
    from planfreeze.choices import Choice

__all__ = ["PLAN_FORMAT", "FrozenPlan", "PlanEntry", "PlanFamily", "freeze_families"]

PLAN_FORMAT = 1
MAX_FIELD_DEPTH = 64  # deeper than any payload, and far from what Python can nest


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
                "planfreeze plan",
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
            magic, plan_format, *rest = decode_msgpack(data)
            if magic != "planfreeze plan" or type(plan_format) is not int:
                raise DamagedPlan("it is not a frozen plan")
            if plan_format > PLAN_FORMAT:
                raise PlanTooNew(plan_format, PLAN_FORMAT)
            model, tp, arch, options, families, entries, *chosen = rest
            plan = cls(
                model=model,
                tp=tp,
                arch=arch,
                options=options,
                families=tuple(
                    PlanFamily(reference=reference, sources=Sources(modules)) for reference, modules in families
                ),
                entries=tuple(
                    PlanEntry(family=family, fields=fields, key=key, record=record, blob=blob)
                    for family, fields, key, record, blob in entries
                ),
                choices=read_choices(chosen[0]) if chosen else (),
            )
            is_canonical = plan.encode() == data and has_declared_types(plan)
        except (ValueError, TypeError) as error:
            raise DamagedPlan(str(error)) from error
        if not is_canonical:
            raise DamagedPlan("it is not in canonical form")
        return plan


def read_choices(stated: Iterable[tuple[Any, Any, Any, Any]]) -> tuple["Choice", ...]:
    """Make choices of what a plan states of them."""
    from planfreeze.choices import Choice  # most plans hold none

    return tuple(Choice(kernel=kernel, space=space, key=key, config=config) for kernel, space, key, config in stated)


def has_declared_types(plan: FrozenPlan) -> bool:
    """Tell whether every part of a plan is text, a count or a payload's field where it should be."""
    modules = [module for family in plan.families for module in family.sources.modules]
    names = [name for entry in plan.entries for name, _ in entry.fields]
    texts = [plan.model, plan.arch, *plan.options, *(family.reference for family in plan.families), *names]
    texts += [text for name, digest in modules for text in (name, digest)]
    texts += [text for entry in plan.entries for text in (entry.family, entry.key, entry.record, entry.blob)]
    texts += [text for choice in plan.choices for text in (choice.kernel, choice.space, *dict(choice.config))]
    fields = [value for entry in plan.entries for _, value in entry.fields]
    fields += [value for choice in plan.choices for value in (choice.key, *dict(choice.config).values())]
    are_texts = all(type(text) is str for text in texts) and len(plan.options) % 2 == 0
    return are_texts and all(is_field(value, MAX_FIELD_DEPTH) for value in fields) and type(plan.tp) is int


def is_field(value: object, depth: int) -> bool:
    """Tell whether a payload can have a value in a field, tuples in tuples up to a depth."""
    if type(value) is tuple:
        return depth > 0 and all(is_field(item, depth - 1) for item in value)
    return type(value) in (int, bool, str)


def freeze_families(programs: Iterable[tuple[Family, Sources]]) -> tuple[PlanFamily, ...]:
    """Merge the sources of each family's programs, in order of reference."""
    merged: dict[str, dict[str, str]] = {}
    for family, sources in programs:
        merged.setdefault(family.reference, {}).update(sources.modules)
    return tuple(
        PlanFamily(reference=reference, sources=Sources(tuple(sorted(modules.items()))))
        for reference, modules in sorted(merged.items())
    )
