"""Contents of a report: what frozen plans hold, how it was built, and how much of it a recorded run used."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.constants import spell_field
from planfreeze.decoding import decode_msgpack
from planfreeze.differences import compare_plan
from planfreeze.facts import ProgramFacts, planned_facts
from planfreeze.family import load_family
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.notes import Note
from planfreeze.occupancy import count_register_warps
from planfreeze.program_reports import facts_json
from planfreeze.recordings import Recording
from planfreeze.target import target

__all__ = ["gather_report"]

RECORDED = "planfreeze.recorded."


def gather_report(
    plans: Sequence[FrozenPlan], store: ReadableStore, *, recording: Recording | None = None, recorded_in: str = ""
) -> dict[str, Any]:
    """Return all that a report shows, as JSON holds it.

    Parameters
    ----------
    plans : sequence of FrozenPlan
        At least one, all of this store or pack.
    recording : Recording, optional
        A run whose programs are compared with the plans for its architectures.
    recorded_in : str
        File of that recording, for people.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        Lists every program of a plan that is not there or not what was built.
    RecordedElsewhere
        No plan is for an architecture of the recording.
    UnknownFamily, InvalidPayload
        With a recording: a family or payload of a plan is not known here.

    Notes
    -----
    A program that several plans hold is there once. What a pack or an older store keeps no note of is null: when it
    was compiled, and what it spills where it uses local memory.
    """
    from planfreeze import __version__

    facts: dict[str, ProgramFacts] = {}
    planned_by: dict[str, list[FrozenPlan]] = {}
    for plan in plans:
        for program in planned_facts(plan, store):
            facts[program.key] = program
            planned_by.setdefault(program.key, []).append(plan)
    compared = [plan for plan in plans if recording is not None and plan.arch in recording.archs]
    if recording is not None and not compared:
        raise errors.RecordedElsewhere(recorded_in, recording.archs, tuple(dict.fromkeys(plan.arch for plan in plans)))
    launches, archs = count_launches(recording), {plan.arch for plan in compared}
    programs = []
    for key, program in facts.items():
        group, fields = name_variant(program)
        programs.append(
            {
                **facts_json(program),
                "group": group,
                "fields": fields,
                "plans": [plan.name for plan in planned_by[key]],
                "launches": launches.get(program.payload_digest, 0) if program.record.arch in archs else None,
            }
        )
    return {
        "version": __version__,
        "store": str(store.path),
        "plans": [plan_json(plan, facts) for plan in plans],
        "targets": {plan.arch: target_json(plan.arch) for plan in plans},
        "programs": programs,
        "builds": find_builds(program.note for program in facts.values()),
        "coverage": recording
        and {
            "recording": Path(recorded_in).name,
            "plans": [coverage_json(plan, facts, recording) for plan in compared],
        },
    }


def count_launches(recording: Recording | None) -> dict[str, int]:
    """Return how often a run launched each program, by the digest of its payload."""
    return {program.payload.digest: program.launches for program in recording.programs} if recording else {}


def plan_json(plan: FrozenPlan, facts: Mapping[str, ProgramFacts]) -> dict[str, Any]:
    """Return a plan with the size of its cubins, each counted once."""
    sizes = {entry.blob: facts[entry.key].size_bytes for entry in plan.entries}
    return {
        "name": plan.name,
        "root": plan.root,
        "arch": plan.arch,
        "programs": len(plan.entries),
        "bytes": sum(sizes.values()),
    }


def target_json(arch: str) -> dict[str, Any]:
    """Return what an SM of a target has, and how many warps its registers are enough for, by registers of a thread."""
    facts = target(arch)
    return {
        "max_warps": facts.max_warps,
        "max_blocks": facts.max_blocks,
        "max_registers": facts.max_registers,
        "sm_shared_bytes": facts.sm_shared_bytes,
        "register_warps": [[registers, count_register_warps(registers, facts)] for registers in range(8, 257, 8)],
    }


def name_variant(program: ProgramFacts) -> tuple[str, dict[str, str]]:
    """Return what a program is grouped by, and its fields as people read them.

    That is its family; of recorded programs, which have one family for all kernels of a compiler, the kernel.
    """
    if not program.record.family.startswith(RECORDED):
        family, _ = decode_msgpack(program.record.payload)
        return str(family), {name: spell_field(value) for name, value in program.fields}
    payload = load_family(program.record.family).payload.from_fields(dict(program.fields))
    kernel = str(program.fields[0][1])  # the first field of all of them
    return kernel, {name: text for name, text in payload.spell_fields().items() if text != kernel}


def find_builds(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """Return the builds that programs come from, the first one first: how long, and how much of the time was used."""
    noted = sorted((note for note in notes if note.build), key=lambda note: note.build)
    builds = []
    for build, group in groupby(noted, key=lambda note: note.build):
        made = list(group)
        started_s = min(note.started_s for note in made)
        seconds = max(note.started_s + note.seconds for note in made) - started_s
        slots = len({note.slot for note in made})
        builds.append(
            {
                "build": build,
                "started_s": started_s,
                "seconds": round(seconds, 3),
                "slots": slots,
                "programs": len(made),
                "busy": round(min(1.0, sum(note.seconds for note in made) / (slots * seconds)), 4) if seconds else None,
            }
        )
    return sorted(builds, key=lambda build: float(build["started_s"]))


def coverage_json(plan: FrozenPlan, facts: Mapping[str, ProgramFacts], recording: Recording) -> dict[str, Any]:
    """Return how much of a plan a run used, and what it used besides."""
    difference, launches = compare_plan(plan, recording), count_launches(recording)
    return {
        "plan": plan.name,
        "planned": len(plan.entries),
        "used": sum(facts[entry.key].payload_digest in launches for entry in plan.entries),
        "unused": list(difference.unused),
        "unplanned": [{"program": program, "nearest": nearest} for program, nearest in difference.unplanned],
    }
