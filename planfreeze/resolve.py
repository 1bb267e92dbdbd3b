"""Resolving: from a frozen plan and a store to proven programs, without a compiler, a GPU or a write."""

import re
import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.digest import is_digest
from planfreeze.cache.readable import ReadableStore
from planfreeze.family import Definition, load_family
from planfreeze.frozen_plans import FrozenPlan, PlanEntry
from planfreeze.inspection import inspect_cubin
from planfreeze.payload import Payload
from planfreeze.plan_names import build_arguments, recording_arguments
from planfreeze.record import ProgramRecord
from planfreeze.sources import check_sources
from planfreeze.target import ARCHS, Target, target

__all__ = [
    "PlanReference",
    "PlannedProgram",
    "Resolution",
    "ResolvedProgram",
    "check_kernels",
    "find_plan",
    "find_plans",
    "make_command",
    "planned_programs",
    "program_name",
    "resolve_plan",
    "resolve_program",
]

PLAN_NAME = r"(?P<model>.+?)(-tp[0-9]+)?-(?P<arch>sm_[0-9]+a?)"


class PlannedProgram(Struct, frozen=True, kw_only=True):
    """An entry of a frozen plan with what the installed family says of it."""

    entry: PlanEntry
    payload: Payload
    definition: Definition
    target: Target


class ResolvedProgram(Struct, frozen=True, kw_only=True):
    """A planned program whose record, blobs, architecture and parameters were all checked."""

    name: str
    planned: PlannedProgram
    record: ProgramRecord
    cubin: bytes
    companions: tuple[tuple[str, bytes], ...] = ()

    @property
    def payload(self) -> Payload:
        """The payload the program was made for."""
        return self.planned.payload


class Resolution(Struct, frozen=True, kw_only=True):
    """What resolving a plan found: programs, one line for each that is missing or damaged, and what builds them."""

    plan: FrozenPlan
    store: str
    command: str
    programs: tuple[ResolvedProgram, ...]
    missing: tuple[str, ...]
    damaged: tuple[str, ...]

    @property
    def total(self) -> int:
        """Programs that were asked for."""
        return len(self.programs) + len(self.missing) + len(self.damaged)

    def check(self) -> tuple[ResolvedProgram, ...]:
        """Return the programs when they are the whole plan.

        Raises
        ------
        DamagedPrograms, MissingPrograms
            Every such program is listed.
        """
        facts = (self.store, self.command)
        if self.damaged:
            raise errors.DamagedPrograms(self.plan.name, self.total, self.damaged, *facts)
        if self.missing:
            raise errors.MissingPrograms(self.plan.name, self.total, self.missing, *facts)
        return self.programs


def program_name(payload: Payload) -> str:
    """Return a program as people read it: ``topk_sum(hidden=5120, top_k=6)``."""
    fields = ", ".join(f"{name}={value}" for name, value in payload.spell_fields().items())
    return f"{payload.family_name}({fields})"


class PlanReference(Struct, frozen=True):
    """How a frozen plan is asked for: by name, by root digest, or by a name pinned to a root digest.

    Parameters
    ----------
    name : str, optional
        Reference name in the store; with a root, the name the plan must have.
    root : str, optional
        Root digest. It proves every byte of the plan, so that the store need not be trusted.
    """

    name: str | None
    root: str | None

    @classmethod
    def parse(cls, text: str) -> "PlanReference":
        """Read ``NAME``, ``ROOT``, ``NAME@sha256:ROOT`` or ``@sha256:ROOT``.

        Raises
        ------
        InvalidPlanReference
            The text is empty, or what follows ``@sha256:`` is no digest.
        """
        name, pin, root = text.partition("@sha256:")
        if not text or (pin and not is_digest(root)):
            raise errors.InvalidPlanReference(text)
        if not pin and is_digest(text):
            return cls(None, text)
        return cls(name or None, root or None)

    def __str__(self) -> str:
        return (self.name or "") + (f"@sha256:{self.root}" if self.root else "")


def find_plan(store: ReadableStore, reference: PlanReference, *, command: str | None = None) -> FrozenPlan:
    """Read a frozen plan. Without a root digest the store has to be trusted, and the name may move to another plan.

    Parameters
    ----------
    command : str, optional
        What builds the plan, for the error; None makes one from the name.

    Raises
    ------
    PlanMissing
        The store has no such plan.
    UntrustedStore
        No root digest is given and others can write to the store.
    EmptyPlan
        The plan holds no program.
    DamagedEntry, DamagedPlan
        Its bytes are not what its root digest says, or no plan.
    """
    root = reference.root
    if root is None:
        store.check_trust()
        root = store.get_ref(reference.name or "")
    if root is None:
        command = command or make_command(store, reference)
        known = tuple(store.list_refs())
        raise errors.PlanMissing(
            str(reference), str(store.path), command, known, misspelled_plan(reference.name, known)
        )
    try:
        plan = FrozenPlan.decode(store.get_plan(root))
    except errors.MissingEntry as error:
        command = command or make_command(store, reference)
        known, stands_for = tuple(store.list_refs()), store.get_ref(reference.name) if reference.name else None
        raise errors.PlanMissing(str(reference), str(store.path), command, known, stands_for=stands_for) from error
    if reference.name not in (None, plan.name):
        reason = f"the plan of this root digest is {plan.name}. {command or make_command(store, reference)}"
        raise errors.PlanMissing(str(reference), str(store.path), reason)
    if not plan.entries:
        raise errors.EmptyPlan(str(reference))
    return plan


def misspelled_plan(name: str | None, known: Iterable[str]) -> str | None:
    """Return the name that was meant; none where the asked one is right, and only for other ranks or another arch."""
    from planfreeze.spellings import nearest_spelling  # for the message alone

    near = nearest_spelling(name or "", known)
    asked = re.fullmatch(PLAN_NAME, name or "")
    there = re.fullmatch(PLAN_NAME, near or "")
    is_other = asked and there and asked["model"] == there["model"] and asked["arch"] in ARCHS
    return None if is_other else near


def make_command(store: ReadableStore, reference: PlanReference) -> str:
    """Return what builds a plan, by its name alone. Looks through what is installed, which takes milliseconds."""
    arguments = build_arguments(reference.name or "") or recording_arguments(reference.name or "")
    return shlex.join(["planfreeze", "build", *arguments, "--store", str(store.path)])


def find_plans(store: ReadableStore, references: Sequence[str] | None) -> tuple[FrozenPlan, ...]:
    """Read the frozen plans that were asked for; None asks for every plan with a name.

    Raises
    ------
    InvalidPlanReference, PlanMissing, UntrustedStore, EmptyPlan, DamagedEntry, DamagedPlan
        As :func:`find_plan`; EmptyPlan also when there is no name.
    """
    texts = store.list_refs() if references is None else references
    if not texts:
        raise errors.EmptyPlan(str(store.path))
    return tuple(find_plan(store, PlanReference.parse(text)) for text in texts)


def check_kernels(plan: FrozenPlan) -> None:
    """Check that the kernels installed here are the text that the plan was built from.

    Raises
    ------
    KernelsDiffer
        Names the families that differ.
    """
    checked = zip(plan.families, check_sources([family.sources for family in plan.families]), strict=True)
    differing = tuple(f"{family.reference} ({', '.join(modules)})" for family, modules in checked if modules)
    if differing:
        raise errors.KernelsDiffer(plan.name, differing, plan.build_command)


def planned_programs(plan: FrozenPlan) -> tuple[PlannedProgram, ...]:
    """Return the programs of a frozen plan as the families installed here define them. Reads no store.

    Raises
    ------
    UnknownFamily, UnknownArch, InvalidPayload
        A family, the architecture or a payload of the plan is not known here.
    """
    made_for = target(plan.arch)
    programs = []
    for entry in plan.entries:
        family = load_family(entry.family)
        payload = family.payload.from_fields(dict(entry.fields))
        definition = family.define(payload, made_for)
        programs.append(PlannedProgram(entry=entry, payload=payload, definition=definition, target=made_for))
    return tuple(programs)


def resolve_plan(plan: FrozenPlan, store: ReadableStore, planned: Sequence[PlannedProgram] | None = None) -> Resolution:
    """Read, hash and check every program of a frozen plan.

    Parameters
    ----------
    planned : sequence of PlannedProgram, optional
        Its programs, where :func:`planned_programs` was asked before.

    Raises
    ------
    UnknownFamily, UnknownArch, InvalidPayload
        As :func:`planned_programs`.
    """
    programs: list[ResolvedProgram] = []
    missing: list[str] = []
    damaged: list[str] = []
    for program in planned_programs(plan) if planned is None else planned:
        try:
            programs.append(resolve_program(program, store))
        except errors.MissingEntry:
            missing.append(program_name(program.payload))
        except (
            errors.DamagedEntry,
            errors.DamagedRecord,
            errors.InvalidCubin,
            errors.UnexpectedCubin,
            errors.WrongArch,
        ) as error:
            damaged.append(f"{program_name(program.payload)}: {error}")
    return Resolution(
        plan=plan,
        store=str(store.path),
        command=f"{plan.build_command} --store {shlex.quote(str(store.path))}",
        programs=tuple(programs),
        missing=tuple(missing),
        damaged=tuple(damaged),
    )


def resolve_program(planned: PlannedProgram, store: ReadableStore) -> ResolvedProgram:
    """Follow one entry of a plan: record digest, blob digests, cubin, architecture, parameters.

    Raises
    ------
    MissingEntry
        Its record or cubin is not in the store.
    DamagedEntry, DamagedRecord, InvalidCubin, WrongArch, UnexpectedCubin
        It is there and not what the plan says.
    """
    name, entry = program_name(planned.payload), planned.entry
    record = ProgramRecord.decode(store.get_record(entry.key, entry.record))
    cubin = store.get_blob(entry.blob)
    if record.blob != entry.blob or record.payload != planned.payload.encode():
        raise errors.UnexpectedCubin(name, "its record is another program's")
    kernel = inspect_cubin(name, cubin, planned.definition, record.launch, planned.target)
    if (kernel.symbol, kernel.parameter_sizes) != (record.symbol, record.parameter_bytes):
        raise errors.UnexpectedCubin(name, "its record describes another kernel")
    companions = tuple((file, store.get_blob(digest)) for file, digest in record.companions)
    return ResolvedProgram(name=name, planned=planned, record=record, cubin=cubin, companions=companions)
