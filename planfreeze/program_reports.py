"""Reports of single programs, as text for people and as JSON for programs."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planfreeze.reports import print_table, variant

if TYPE_CHECKING:
    from planfreeze.explanations import Explanation
    from planfreeze.facts import ProgramFacts

__all__ = ["explanation_json", "explanation_text", "facts_json", "facts_table", "facts_text", "programs_json"]

UNKNOWN = "unknown"


def programs_json(programs: Sequence["ProgramFacts"], codes: Mapping[str, str]) -> dict[str, Any]:
    """Return programs with their machine code, by key, where it was asked for."""
    return {"programs": [{**facts_json(facts), "sass": codes.get(facts.key)} for facts in programs]}


def facts_json(facts: "ProgramFacts") -> dict[str, Any]:
    """Return the facts of a program; null stands for what is not known."""
    spills, note = facts.spills, facts.note
    return {
        "family": facts.family_name,
        "payload": dict(facts.fields),
        "digest": facts.payload_digest,
        "arch": facts.record.arch,
        "key": facts.key,
        "labels": dict(note.labels),
        "record": facts.record_digest,
        "blob": facts.record.blob,
        "symbol": facts.record.symbol,
        "bytes": facts.size_bytes,
        "registers": facts.record.registers,
        "stack_bytes": facts.record.stack_bytes,
        "static_shared_bytes": facts.static_shared_bytes,
        "dynamic_shared_bytes": facts.dynamic_shared_bytes,
        "reserved_shared_bytes": facts.reserved_shared_bytes,
        "block": list(facts.record.launch.block),
        "cluster": list(facts.record.launch.cluster),
        "threads": facts.threads,
        "resident_ctas": facts.resident_ctas,
        "occupancy": facts.occupancy,
        "spill_store_bytes": None if spills is None else spills.store_bytes,
        "spill_load_bytes": None if spills is None else spills.load_bytes,
        "tools": facts.tools,
        "provenance": {
            "toolchain": note.toolchain or None,
            "python": note.python or None,
            "environment": dict(note.environment),
            "started_s": note.started_s or None,
            "seconds": note.seconds or None,
            "worker": note.worker or None,
            "build": note.build or None,
            "slot": note.slot if note.build else None,
        },
    }


def facts_table(programs: Sequence["ProgramFacts"]) -> None:
    """Print programs, one a line."""
    rows = [
        (
            facts.family_name,
            facts.variant,
            facts.record.arch,
            str(facts.record.registers),
            str(facts.record.static_shared_bytes + facts.dynamic_shared_bytes),
            UNKNOWN if facts.resident_ctas is None else str(facts.resident_ctas),
            UNKNOWN if facts.spills is None else str(facts.spills.store_bytes + facts.spills.load_bytes),
            str(facts.size_bytes),
            facts.key[:12],
        )
        for facts in programs
    ]
    heads = ("family", "variant", "arch", "registers", "shared bytes", "CTAs per SM", "spill bytes", "bytes", "key")
    print_table("", heads, rows)


def facts_text(programs: Sequence["ProgramFacts"], codes: Mapping[str, str]) -> None:
    """Print all that is known of programs, and their machine code where it was asked for."""
    for number, facts in enumerate(programs):
        sys.stdout.write(f"\n{facts.name}\n" if number else f"{facts.name}\n")
        print_table("", ("fact", "value"), list(spell_facts(facts).items()))
        if facts.key in codes:
            sys.stdout.write(f"\n{codes[facts.key].rstrip()}\n")


def spell_facts(facts: "ProgramFacts") -> dict[str, str]:
    """Return the facts of a program for people."""
    note = facts.note
    made = [note.toolchain.rpartition(" ")[0], f"CUDA tools {facts.tools}" if facts.tools else ""]
    made += [f"Python {note.python}" if note.python else "", f"{note.seconds} s" if note.seconds else ""]
    return {
        "arch": facts.record.arch,
        "symbol": facts.record.symbol,
        "payload": facts.payload_digest,
        "key": facts.key,
        "cubin": f"{facts.record.blob}, {facts.size_bytes} bytes",
        "registers": str(facts.record.registers),
        "stack": f"{facts.record.stack_bytes} bytes",
        "spills": spell_spills(facts),
        "shared memory": f"{facts.static_shared_bytes} bytes static, {facts.dynamic_shared_bytes} dynamic, "
        f"{facts.reserved_shared_bytes} reserved by the system",
        "block": "each launch's own" if facts.threads is None else spell_block(facts),
        "resident CTAs": spell_residence(facts),
        "made by": ", ".join(filter(None, made)) or UNKNOWN,
        **{f"key: {label}": value for label, value in note.labels.items()},
        **({} if note.labels else {"key labels": "not kept here: packs have no notes, nor have older builds"}),
    }


def spell_spills(facts: "ProgramFacts") -> str:
    """Return what a program spills, or why that is not known."""
    if facts.spills is None:
        return f"{UNKNOWN}: no assembler's log says what the stack is for"
    return f"{facts.spills.store_bytes} bytes stored, {facts.spills.load_bytes} loaded"


def spell_block(facts: "ProgramFacts") -> str:
    """Return threads, block and cluster of a program."""
    launch = facts.record.launch
    cluster = "" if launch.cluster == (1, 1, 1) else f", clusters of {launch.cluster}"
    return f"{facts.threads} threads, {launch.block}{cluster}"


def spell_residence(facts: "ProgramFacts") -> str:
    """Return how many blocks an SM keeps resident."""
    if facts.resident_ctas is None or facts.occupancy is None:
        return UNKNOWN
    return f"{facts.resident_ctas} per SM, {facts.occupancy:.0%} of its warps"


def explanation_json(explained: Sequence["Explanation"]) -> dict[str, Any]:
    """Return explanations."""
    return {
        "programs": [
            {
                "family": found.payload.family_name,
                "payload": found.payload.to_fields(),
                "digest": found.payload.digest,
                "target": found.arch,
                "key": found.key,
                "labels": dict(found.labels),
                "stored": found.is_stored,
                "nearest": found.nearest,
            }
            for found in explained
        ]
    }


def explanation_text(explained: Sequence["Explanation"]) -> None:
    """Print explanations."""
    for found in explained:
        title = f"{found.payload.family_name}({variant(found.payload.spell_fields())}) for {found.arch}"
        print_table(title, ("label", "value"), found.labels)
        state = "stored" if found.is_stored else f"not stored. {found.nearest}"
        sys.stdout.write(f"payload {found.payload.digest}\nkey {found.key or 'unknown'}\n{state}\n")
