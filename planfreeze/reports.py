"""Reports: results as tables for people and as JSON for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from planfreeze.recorded.triton_companions import UNBUILT

if TYPE_CHECKING:
    from planfreeze.builds import BuildReport
    from planfreeze.cache.store import Store
    from planfreeze.differences import PlanDifference
    from planfreeze.outcomes import Outcome
    from planfreeze.plans import Plan
    from planfreeze.recordings import Recording
    from planfreeze.replays import Replay

__all__ = [
    "build_json",
    "build_table",
    "difference_json",
    "difference_text",
    "plans_json",
    "plans_table",
    "print_table",
    "recording_json",
    "recording_table",
    "replay_json",
    "replay_table",
    "unbuilt_lines",
    "variant",
]

PIPE_COLUMNS = 160  # a pipe has no width of its own


def plans_json(plans: Sequence["Plan"]) -> dict[str, Any]:
    """Return plans with every payload."""
    return {
        "plans": [
            {
                "name": plan.name,
                "target": plan.target.arch,
                "programs": [
                    {"family": payload.family_name, "payload": payload.to_fields(), "digest": payload.digest}
                    for payload in plan.payloads
                ],
            }
            for plan in plans
        ]
    }


def plans_table(plans: Sequence["Plan"]) -> None:
    """Print the programs of plans."""
    for plan in plans:
        rows = [
            (payload.family_name, variant(payload.spell_fields()), payload.digest[:12]) for payload in plan.payloads
        ]
        print_table(f"{plan.name}: {len(rows)} programs", ("family", "variant", "payload"), rows)


def build_json(report: "BuildReport") -> dict[str, Any]:
    """Return what a build did."""
    return {
        "compiled": report.count("compiled"),
        "reused": report.count("reused"),
        "failed": [
            {**outcome_json(outcome), "reason": outcome.reason}
            for outcome in report.outcomes
            if outcome.status == "failed"
        ],
        "retried": [
            {**outcome_json(outcome), "reason": outcome.earlier} for outcome in report.outcomes if outcome.earlier
        ],
        "exceeded": [
            {
                "program": excess.program,
                "arch": excess.arch,
                "budget": excess.budget,
                "value": excess.value,
                "limit": excess.limit,
            }
            for excess in report.excesses
        ],
        "plans": [
            {
                "name": plan.name,
                "root": plan.root,
                "programs": [
                    {
                        "family": entry.family,
                        "payload": dict(entry.fields),
                        "key": entry.key,
                        "blob": entry.blob,
                    }
                    for entry in plan.entries
                ],
            }
            for plan in report.plans
        ],
    }


def outcome_json(outcome: "Outcome") -> dict[str, Any]:
    """Return which program an outcome is of."""
    payload = outcome.program.payload
    return {"family": payload.family_name, "payload": payload.to_fields(), "arch": outcome.program.target.arch}


def build_table(report: "BuildReport") -> None:
    """Print what became of every program, and the frozen plans."""
    rows = []
    for outcome in report.outcomes:
        record = outcome.record
        payload = outcome.program.payload
        rows.append(
            (
                payload.family_name,
                variant(payload.spell_fields()),
                outcome.program.target.arch,
                str(record.registers) if record else "",
                str(record.static_shared_bytes + record.launch.shared_bytes) if record else "",
                f"{outcome.seconds:.2f}" if outcome.status != "reused" else "",
                str(outcome.size_bytes) if record else "",
                outcome.status,
            )
        )
    heads = ("family", "variant", "arch", "registers", "shared bytes", "seconds", "cubin bytes", "")
    print_table("", heads, rows)
    for plan in report.plans:
        sys.stdout.write(f"{plan.name}@sha256:{plan.root}\n")


def unbuilt_lines(report: "BuildReport", store: "Store") -> list[str]:
    """Return a line for each C module of a compiler's runtime that could not be built beside the programs."""
    records = [outcome.record for outcome in report.outcomes if outcome.record is not None]
    digests = dict.fromkeys(digest for record in records for name, digest in record.companions if name == UNBUILT)
    found = dict.fromkeys((name, reason) for digest in digests for name, reason in json.loads(store.get_blob(digest)))
    return [
        f"{name} was not built: {reason}. A process that is served these programs will call a C compiler for it"
        for name, reason in found
    ]


def replay_json(replays: Sequence["Replay"], guard: Mapping[str, str]) -> dict[str, Any]:
    """Return what replays found."""
    return {
        "resolved": sum(len(replay.resolution.programs) for replay in replays),
        "missing": [name for replay in replays for name in replay.resolution.missing],
        "damaged": [name for replay in replays for name in replay.resolution.damaged],
        "compiled": sum(replay.attempts for replay in replays),
        "loaded": None if None in (found := [replay.loaded for replay in replays]) else sum(filter(None, found)),
        "guard": dict(guard),
        "plans": [{"name": replay.plan.name, "root": replay.plan.root} for replay in replays],
    }


def replay_table(replays: Sequence["Replay"], guard: Mapping[str, str]) -> None:
    """Print what replays found."""
    rows = [
        (
            replay.plan.name,
            str(len(replay.resolution.programs)),
            str(len(replay.resolution.missing)),
            str(len(replay.resolution.damaged)),
            str(replay.attempts),
            "" if replay.loaded is None else str(replay.loaded),
        )
        for replay in replays
    ]
    print_table("", ("plan", "resolved", "missing", "damaged", "compiled", "loaded"), rows)
    for road, state in guard.items():
        sys.stdout.write(f"guard of {road}: {state}\n")


def recording_json(recording: "Recording") -> dict[str, Any]:
    """Return what a run used."""
    content: dict[str, Any] = json.loads(recording.to_json())
    return content


def recording_table(recording: "Recording") -> None:
    """Print what a run used."""
    rows = [
        (program.payload.family_name, variant(program.payload.spell_fields()), str(program.launches))
        for program in recording.programs
    ]
    print_table("", ("family", "variant", "launches"), rows)
    counts = f"{len(recording.choices)} choices of autotuners, {recording.unused} programs compiled and not used"
    sys.stdout.write(f"{counts}\n")
    for refusal in recording.refused:
        sys.stdout.write(f"left out: {refusal.kernel}: {refusal.reason}\n")


def difference_json(difference: "PlanDifference") -> dict[str, Any]:
    """Return where a plan and a run differ."""
    return {
        "unused": list(difference.unused),
        "unplanned": [{"program": program, "nearest": nearest} for program, nearest in difference.unplanned],
    }


def difference_text(difference: "PlanDifference") -> None:
    """Print where a plan and a run differ."""
    for program in difference.unused:
        sys.stdout.write(f"planned, not used: {program}\n")
    for program, nearest in difference.unplanned:
        sys.stdout.write(f"used, not planned: {program}\n" + (f"  {nearest}\n" if nearest else ""))
    if difference.is_empty:
        sys.stdout.write("the run used exactly what is planned\n")


def variant(fields: Mapping[str, str]) -> str:
    """Return payload fields as a short text."""
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def print_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    stream: TextIO | None = None,
    pipe_columns: int = PIPE_COLUMNS,
) -> None:
    """Print rows on a stream, standard output unless given, as wide as the terminal or as a pipe is taken to be."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, box=None, title_justify="left", header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    stream = stream or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else pipe_columns, highlight=False, markup=False)
    console.print(table)
