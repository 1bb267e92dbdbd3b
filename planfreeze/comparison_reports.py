"""Reports of comparisons, as text for people and as JSON for programs."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from planfreeze.comparison import STATES

if TYPE_CHECKING:
    from planfreeze.comparison import Comparison, ProgramChange, Side
    from planfreeze.facts import ProgramFacts

__all__ = ["comparison_json", "comparison_text", "summarize"]


def comparison_json(comparison: "Comparison") -> dict[str, Any]:
    """Return what became of every program."""
    return {
        "before": side_json(comparison.before),
        "after": side_json(comparison.after),
        "counts": {state: comparison.count(state) for state in STATES},
        "causes": list(comparison.causes),
        "programs": [change_json(change) for change in comparison.programs],
        "summary": summarize(comparison),
    }


def side_json(side: "Side") -> dict[str, Any]:
    """Return what one side is."""
    return {"store": str(side.store.path), "plans": [{"name": plan.name, "root": plan.root} for plan in side.plans]}


def change_json(change: "ProgramChange") -> dict[str, Any]:
    """Return what became of a program."""
    opcodes = change.opcodes
    return {
        "family": change.facts.family_name,
        "payload": dict(change.facts.fields),
        "arch": change.facts.record.arch,
        "state": change.state,
        "before": digests(change.before),
        "after": digests(change.after),
        "why": dict(change.reasons),
        "measures": {name: list(pair) for name, pair in change.measures.items()},
        "opcodes": None if opcodes is None else {name: list(pair) for name, pair in opcodes.items()},
    }


def digests(facts: "ProgramFacts | None") -> dict[str, str] | None:
    """Return key and cubin of a program."""
    return None if facts is None else {"key": facts.key, "blob": facts.record.blob}


def comparison_text(comparison: "Comparison") -> None:
    """Print every program that is not the same, those of other keys alone by their reasons, and a line over all."""
    rekeyed: dict[tuple[tuple[str, str], ...], list[ProgramChange]] = {}
    for change in comparison.programs:
        if change.state == "same":
            continue
        if change.state == "rekeyed":
            rekeyed.setdefault(change.reasons, []).append(change)
            continue
        sys.stdout.write(f"{change.state}: {spell_program(change)}\n{spell_reasons(change.reasons)}")
        if change.measures:
            sys.stdout.write(f"  {spell_pairs(change.measures)}\n")
        if change.opcodes:
            sys.stdout.write(f"  instructions: {spell_pairs(change.opcodes)}\n")
    for reasons, changes in rekeyed.items():
        sys.stdout.write(f"rekeyed: {len(changes)} programs\n{spell_reasons(reasons)}")
        sys.stdout.write("".join(f"  - {spell_program(change)}\n" for change in changes))
    if comparison.count("changed") and not comparison.is_disassembled:
        sys.stdout.write("instructions are not counted: there is no nvdisasm (pip install nvidia-cuda-nvdisasm)\n")
    sys.stdout.write(f"{summarize(comparison)}\n")


def spell_program(change: "ProgramChange") -> str:
    """Return a program with its architecture."""
    return f"{change.facts.name} ({change.facts.record.arch})"


def spell_reasons(reasons: Iterable[tuple[str, str]]) -> str:
    """Return a line for each part of a key that differs."""
    return "".join(f"  {label}: {how}\n" for label, how in reasons)


def spell_pairs(pairs: Mapping[str, tuple[Any, Any]]) -> str:
    """Return values before and after."""
    known = {name: tuple("unknown" if value is None else value for value in pair) for name, pair in pairs.items()}
    return ", ".join(f"{name} {was} -> {is_now}" for name, (was, is_now) in known.items())


def summarize(comparison: "Comparison") -> str:
    """Return one line over all: what changed how many programs, and what became of the others."""
    counts = {state: comparison.count(state) for state in STATES}
    both = counts["same"] + counts["rekeyed"] + counts["changed"]
    causes = " and ".join(label for label in comparison.causes if label != "unknown")
    if comparison.is_empty:
        return f"all {both} programs are the same"
    changed = f"{causes} changed {counts['changed']} of {both} programs" if causes else ""
    parts = [
        changed or f"{counts['changed']} of {both} programs changed",
        f"{counts['rekeyed']} have the same code under another key" if counts["rekeyed"] else "",
        f"{counts['added']} added" if counts["added"] else "",
        f"{counts['removed']} removed" if counts["removed"] else "",
    ]
    return "; ".join(filter(None, parts))
