"""Plans: the payloads of a model on a target. Frozen plans: the same with every digest, a deployment's lock file."""

import hashlib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any

import msgpack

from planfreeze.decoding import decode_msgpack
from planfreeze.errors import DamagedPlan, EmptyPlan, InvalidModel, PlanfreezeError, PlanTooNew
from planfreeze.family import Family, family_of
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.sources import Sources
from planfreeze.target import Target

__all__ = ["PLAN_FORMAT", "FrozenPlan", "Plan", "PlanEntry", "PlanFamily", "make_plan"]

PLAN_FORMAT = 1
MAX_FIELD_DEPTH = 16  # deeper than any payload, and far from what Python can nest


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A target and the payloads that a model asks for at its capacities.

    Parameters
    ----------
    options : tuple of str
        Arguments of the command line that differ from its defaults, such as ``("--capacity", "8,64")``.
    """

    model: str
    tp: int
    target: Target
    payloads: tuple[Payload, ...]
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the reference in a store: ``ds41-tp4-sm_90a``."""
        return plan_name(self.model, self.tp, self.target.arch)

    @property
    def build_command(self) -> str:
        """The command that builds this plan."""
        return build_command(self.model, self.tp, self.target.arch, self.options)

    @property
    def programs(self) -> tuple[tuple[Family, Payload], ...]:
        """Family and payload of every program."""
        return tuple((family_of(payload), payload) for payload in self.payloads)


def plan_name(model: str, tp: int, arch: str) -> str:
    """Return the reference name of a model's plan."""
    return f"{model}-tp{tp}-{arch}"


def build_command(model: str, tp: int, arch: str, options: tuple[str, ...]) -> str:
    """Return the command that builds a model's plan; a later ``--model`` among the options is the one that counts."""
    stated = dict(zip(options[::2], options[1::2], strict=True))
    arguments = {"--model": model, "--tp": str(tp), "--arch": arch} | stated
    return shlex.join(["planfreeze", "build", *(part for pair in arguments.items() for part in pair)])


def build_arguments(name: str) -> tuple[str, ...] | None:
    """Return the build's arguments for a plan's reference name, or None when it is not one."""
    found = re.fullmatch(r"(?P<model>.+)-tp(?P<tp>[0-9]+)-(?P<arch>sm_[0-9]+a)", name)
    return found and ("--model", found["model"], "--tp", found["tp"], "--arch", found["arch"])


def make_plan(model: Model, *, tp: int, target: Target, options: PlanOptions, source: str | None = None) -> Plan:
    """List every program a model can ask for, from geometry alone.

    Parameters
    ----------
    source : str, optional
        What the model was loaded from, if that is not its name; of a path the plan keeps the last part.

    Raises
    ------
    InvalidModel
        The model's enumerator cannot be imported, or lists something else than payloads.
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    EmptyPlan
        The enumerator lists no program.
    """
    module, _, attribute = model.programs.partition(":")
    try:
        enumerate_programs = getattr(import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise InvalidModel(model.name, f"programs = {model.programs!r} cannot be imported: {error}") from error
    try:
        payloads = tuple(dict.fromkeys(enumerate_programs(model, tp=tp, target=target, options=options)))
    except PlanfreezeError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise InvalidModel(model.name, f"programs = {model.programs!r} raised {error!r}") from error
    if not all(isinstance(payload, Payload) for payload in payloads):
        raise InvalidModel(model.name, f"programs = {model.programs!r} lists something that is no payload")
    stated = options.to_arguments()
    if source is not None and source != model.name:
        stated = ("--model", PurePath(source).name, *stated)
    plan = Plan(model=model.name, tp=tp, target=target, payloads=payloads, options=stated)
    if not payloads:
        raise EmptyPlan(plan.name)
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFamily:
    """A family of the plan, with the text its programs were compiled from."""

    reference: str
    sources: Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One program of a frozen plan: payload fields, the key of its inputs, the digests of its record and cubin."""

    family: str
    fields: tuple[tuple[str, Any], ...]
    key: str
    record: str
    blob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPlan:
    """A plan with key, record digest and blob digest of every program, and one root digest over all."""

    model: str
    tp: int
    arch: str
    families: tuple[PlanFamily, ...]
    entries: tuple[PlanEntry, ...]
    options: tuple[str, ...] = ()

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
        encoded: bytes = msgpack.packb(
            [
                "planfreeze plan",
                PLAN_FORMAT,
                self.model,
                self.tp,
                self.arch,
                self.options,
                [[f.reference, f.sources.modules] for f in self.families],
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
            magic, plan_format, *rest = decode_msgpack(data)
            if magic != "planfreeze plan" or type(plan_format) is not int:
                raise DamagedPlan("it is not a frozen plan")
            if plan_format > PLAN_FORMAT:
                raise PlanTooNew(plan_format, PLAN_FORMAT)
            model, tp, arch, options, families, entries = rest
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
            )
            is_canonical = plan.encode() == data and has_declared_types(plan)
        except (ValueError, TypeError) as error:
            raise DamagedPlan(str(error)) from error
        if not is_canonical:
            raise DamagedPlan("it is not in canonical form")
        return plan


def has_declared_types(plan: FrozenPlan) -> bool:
    """Tell whether every part of a plan is text, a count or a payload's field where it should be."""
    modules = [module for family in plan.families for module in family.sources.modules]
    names = [name for entry in plan.entries for name, _ in entry.fields]
    texts = [plan.model, plan.arch, *plan.options, *(family.reference for family in plan.families), *names]
    texts += [text for name, digest in modules for text in (name, digest)]
    texts += [text for entry in plan.entries for text in (entry.family, entry.key, entry.record, entry.blob)]
    are_texts = all(type(text) is str for text in texts) and len(plan.options) % 2 == 0
    are_fields = all(is_field(value, MAX_FIELD_DEPTH) for entry in plan.entries for _, value in entry.fields)
    return are_texts and are_fields and type(plan.tp) is int


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
