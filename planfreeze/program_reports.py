"""Reports of single programs, as text for people and as JSON for programs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planfreeze.facts import ProgramFacts

__all__ = ["facts_json"]


def facts_json(facts: "ProgramFacts") -> dict[str, Any]:
    """Return the facts of a program; null stands for what is not known."""
    spills, note = facts.spills, facts.note
    return {
        "family": facts.record.family,
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
        "spill_store_bytes": spills and spills.store_bytes,
        "spill_load_bytes": spills and spills.load_bytes,
        "tools": facts.tools,
        "provenance": {
            "toolchain": note.toolchain or None,
            "python": note.python or None,
            "environment": dict(note.environment),
            "started_s": note.started_s or None,
            "seconds": note.seconds or None,
            "worker": note.worker or None,
        },
    }
