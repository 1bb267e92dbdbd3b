"""Reports on stores and packs: as tables for people and as JSON for programs."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planfreeze.reports import print_table

if TYPE_CHECKING:
    from planfreeze.collection import Census, Collected
    from planfreeze.frozen_plans import FrozenPlan
    from planfreeze.packs import Packed
    from planfreeze.repairs import Repair
    from planfreeze.verification import Problem, Verification

__all__ = [
    "census_json",
    "census_table",
    "collected_json",
    "collected_text",
    "packed_json",
    "packed_text",
    "unpacked_json",
    "unpacked_text",
    "verification_json",
    "verification_table",
]


def verification_json(
    found: "Verification", problems: Sequence["Problem"], repaired: "Repair | None"
) -> dict[str, Any]:
    """Return what verifying found, and what a repair did."""
    return {
        "checked": dict(found.checked),
        "bytes": found.size_bytes,
        "problems": [
            {
                "kind": problem.kind,
                "name": problem.name,
                "state": problem.state,
                "reason": problem.reason,
                "quarantined": str(problem.quarantined) if problem.quarantined else None,
            }
            for problem in problems
        ],
        "other_formats": [{"kind": kind, "name": name} for kind, name in found.others],
        "repaired": repaired
        and {
            "rebuilt": repaired.rebuilt,
            "references": list(repaired.restored),
            "refused": [{"what": what, "reason": reason} for what, reason in repaired.refused],
        },
    }


def verification_table(found: "Verification", problems: Sequence["Problem"], repaired: "Repair | None") -> None:
    """Print what verifying found, and what a repair did."""
    counts = ", ".join(f"{count} {kind}s" for kind, count in found.checked.items())
    sys.stdout.write(f"{counts}, {found.size_bytes} bytes: {len(problems)} problems\n")
    if found.others:
        sys.stdout.write(f"{len(found.others)} entries of another format, left alone\n")
    if problems:
        rows = [(p.kind, p.name, p.state, p.reason, p.quarantined.name if p.quarantined else "") for p in problems]
        print_table("", ("kind", "name", "state", "reason", "quarantined as"), rows)
    if repaired is not None:
        sys.stdout.write(f"rebuilt {repaired.rebuilt} programs, restored {len(repaired.restored)} references\n")
        for what, reason in repaired.refused:
            sys.stdout.write(f"not repaired: {what}: {reason}\n")


def census_json(census: "Census") -> dict[str, Any]:
    """Return the plans of a store or pack, with their sizes."""
    names: dict[str, list[str]] = {}
    for name, root in census.refs.items():
        names.setdefault(root, []).append(name)
    counts = Counter(kind for kind, _ in census.sizes)
    return {
        "plans": [
            {
                "name": holding.plan.name,
                "root": root,
                "named_by": names.get(root, []),
                "arch": holding.plan.arch,
                "programs": len(holding.plan.entries),
                "bytes": census.size_of(holding.entries),
                "whole": holding.is_whole and all(entry in census.sizes for entry in holding.entries),
            }
            for root, holding in sorted(census.holdings.items(), key=lambda pair: (pair[1].plan.name, pair[0]))
        ],
        "entries": {kind: counts[kind] for kind in ("plan", "record", "blob", "note")},
        "bytes": census.total_bytes,
        "unreachable_bytes": census.unreachable_bytes,
    }


def census_table(census: "Census") -> None:
    """Print the plans of a store or pack, with their sizes."""
    listed = census_json(census)
    rows = [
        (
            plan["name"],
            plan["root"],
            str(plan["programs"]),
            str(plan["bytes"]),
            "" if plan["named_by"] else "without a name",
            "" if plan["whole"] else "not whole",
        )
        for plan in listed["plans"]
    ]
    print_table("", ("plan", "root digest", "programs", "bytes", "", ""), rows)
    sys.stdout.write(f"{listed['bytes']} bytes, {listed['unreachable_bytes']} of them needed by no plan with a name\n")


def collected_json(collected: "Collected", *, is_dry_run: bool) -> dict[str, Any]:
    """Return what a collection removed, or would remove."""
    counts = Counter(kind for kind, _ in collected.removed)
    return {
        "dry_run": is_dry_run,
        "removed": {kind: counts[kind] for kind in ("plan", "record", "blob", "note")},
        "plans": [name for kind, name in collected.removed if kind == "plan"],
        "removed_bytes": collected.removed_bytes,
        "kept_bytes": collected.kept_bytes,
        "over_budget": collected.is_over_budget,
    }


def collected_text(collected: "Collected", *, is_dry_run: bool) -> None:
    """Print what a collection removed, or would remove."""
    counts = Counter(kind for kind, _ in collected.removed)
    listed = ", ".join(f"{counts[kind]} {kind}s" for kind in ("plan", "record", "blob", "note"))
    done = "would remove" if is_dry_run else "removed"
    sys.stdout.write(f"{done} {listed}: {collected.removed_bytes} bytes; {collected.kept_bytes} bytes stay\n")
    for kind, name in collected.removed:
        if kind == "plan":
            sys.stdout.write(f"{done} plan {name}\n")


def packed_json(packed: "Packed") -> dict[str, Any]:
    """Return what a pack holds."""
    return {
        "pack": str(packed.path),
        "plans": [{"name": plan.name, "root": plan.root} for plan in packed.plans],
        "programs": packed.programs,
        "bytes": packed.size_bytes,
        "signer": packed.signer or None,
    }


def packed_text(packed: "Packed") -> None:
    """Print what a pack holds."""
    signed = f", signed by {packed.signer}" if packed.signer else ""
    sys.stdout.write(f"{packed.path}: {packed.programs} programs, {packed.size_bytes} bytes{signed}\n")
    unpacked_text(packed.plans)


def unpacked_json(plans: Sequence["FrozenPlan"]) -> dict[str, Any]:
    """Return the plans that a store has from a pack."""
    return {"plans": [{"name": plan.name, "root": plan.root, "programs": len(plan.entries)} for plan in plans]}


def unpacked_text(plans: Sequence["FrozenPlan"]) -> None:
    """Print plans by name and root digest."""
    for plan in plans:
        sys.stdout.write(f"{plan.name}@sha256:{plan.root}\n")
