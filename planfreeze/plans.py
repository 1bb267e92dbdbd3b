"""Plans: the payloads of a model on a target. Frozen plans: the same with every digest, a deployment's lock file."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import msgpack

from planfreeze.errors import DamagedPlan, InvalidModel, PlanTooNew
from planfreeze.family import Family, family_of
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.sources import Sources
from planfreeze.target import Target

__all__ = ["PLAN_FORMAT", "FrozenPlan", "Plan", "PlanEntry", "PlanFamily", "make_plan"]

PLAN_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A target and the payloads that a model asks for at its capacities."""

    model: str
    tp: int
    target: Target
    payloads: tuple[Payload, ...]

    @property
    def name(self) -> str:
        """Name of the reference in a store: ``ds41-tp4-sm_90a``."""
        return plan_name(self.model, self.tp, self.target.arch)

    @property
    def programs(self) -> tuple[tuple[Family, Payload], ...]:
        """Family and payload of every program."""
        return tuple((family_of(payload), payload) for payload in self.payloads)


def plan_name(model: str, tp: int, arch: str) -> str:
    """Return the reference name of a model's plan."""
    return f"{model}-tp{tp}-{arch}"


def build_command(model: str, tp: int, arch: str) -> str:
    """Return the command that builds a model's plan."""
    return f"planfreeze build --model {model} --tp {tp} --arch {arch}"


def build_arguments(name: str) -> tuple[str, ...] | None:
    """Return the build's arguments for a plan's reference name, or None when it is not one."""
    found = re.fullmatch(r"(?P<model>.+)-tp(?P<tp>[0-9]+)-(?P<arch>sm_[0-9]+a)", name)
    return found and ("--model", found["model"], "--tp", found["tp"], "--arch", found["arch"])


def make_plan(model: Model, *, tp: int, target: Target, options: PlanOptions) -> Plan:
    """List every program a model can ask for, from geometry alone.

    Raises
    ------
    InvalidModel
        The model's enumerator cannot be imported.
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    """
    module, _, attribute = model.programs.partition(":")
    try:
        enumerate_programs = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidModel(model.name, f"programs = {model.programs!r} cannot be imported: {error}") from error
    payloads = enumerate_programs(model, tp=tp, target=target, options=options)
    return Plan(model=model.name, tp=tp, target=target, payloads=payloads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFamily:
    """A family as it was when the plan was built, with the text its programs were compiled from."""

    reference: str
    version: int
    sources: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One program of a frozen plan: payload fields, the key of its inputs, the digests of its record and cubin."""

    family: str
    fields: tuple[tuple[str, Any], ...]
    key: str
    record: str
    blob: str


@dataclass(frozen=True, kw_only=True)
class FrozenPlan:
    """A plan with key, record digest and blob digest of every program, and one root digest over all."""

    model: str
    tp: int
    arch: str
    families: tuple[PlanFamily, ...]
    entries: tuple[PlanEntry, ...]

    @property
    def name(self) -> str:
        """Name of the reference in a store."""
        return plan_name(self.model, self.tp, self.arch)

    @property
    def build_command(self) -> str:
        """The command that builds this plan again."""
        return build_command(self.model, self.tp, self.arch)

    @cached_property
    def root(self) -> str:
        """The sha256 of the plan's canonical bytes."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        encoded: bytes = msgpack.packb(
            [
                "planfreeze plan",
                PLAN_FORMAT,
                self.model,
                self.tp,
                self.arch,
                [[f.reference, f.version, f.sources.modules] for f in self.families],
                [[e.family, e.fields, e.key, e.record, e.blob] for e in self.entries],
            ]
        )
        return encoded

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
            magic, plan_format, *rest = msgpack.unpackb(data, use_list=False)
            if magic != "planfreeze plan" or type(plan_format) is not int:
                raise DamagedPlan("it is not a frozen plan")
            if plan_format > PLAN_FORMAT:
                raise PlanTooNew(plan_format, PLAN_FORMAT)
            model, tp, arch, families, entries = rest
            plan = cls(
                model=model,
                tp=tp,
                arch=arch,
                families=tuple(
                    PlanFamily(reference=reference, version=version, sources=Sources(modules))
                    for reference, version, modules in families
                ),
                entries=tuple(
                    PlanEntry(family=family, fields=fields, key=key, record=record, blob=blob)
                    for family, fields, key, record, blob in entries
                ),
            )
            is_canonical = plan.encode() == data and has_declared_types(plan)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise DamagedPlan(str(error)) from error
        if not is_canonical:
            raise DamagedPlan("it is not in canonical form")
        return plan


def has_declared_types(plan: FrozenPlan) -> bool:
    """Tell whether every part of a plan is text or a count where it should be; payloads judge their own fields."""
    modules = [module for family in plan.families for module in family.sources.modules]
    names = [name for entry in plan.entries for name, _ in entry.fields]
    texts = [plan.model, plan.arch, *(family.reference for family in plan.families), *names]
    texts += [text for name, digest in modules for text in (name, digest)]
    texts += [text for entry in plan.entries for text in (entry.family, entry.key, entry.record, entry.blob)]
    counts = [plan.tp, *(family.version for family in plan.families)]
    return all(type(text) is str for text in texts) and all(type(count) is int for count in counts)


def freeze_families(programs: Iterable[tuple[Family, Sources]]) -> tuple[PlanFamily, ...]:
    """Merge the sources of each family's programs, in order of reference."""
    merged: dict[str, tuple[int, dict[str, str]]] = {}
    for family, sources in programs:
        merged.setdefault(family.reference, (family.version, {}))[1].update(sources.modules)
    return tuple(
        PlanFamily(reference=reference, version=version, sources=Sources(tuple(sorted(modules.items()))))
        for reference, (version, modules) in sorted(merged.items())
    )
