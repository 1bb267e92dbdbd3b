"""Commands that look after a store: verify it, list it, collect what nobody needs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planfreeze.cli.completions import complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_result

if TYPE_CHECKING:
    from planfreeze.cache.readable import ReadableStore
    from planfreeze.cache.store import Store

__all__ = ["gc_command", "ls_command", "verify_command"]

DAY_S = 86400.0


def verify_command(
    store: StoreOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Check one frozen plan: name, root digest, or NAME@sha256:ROOT.",
        ),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Build again what the plans here lack.")] = False,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Hash every entry again, follow every link, put damage aside.

    Without the right to write to the store it is only reported.
    """
    from planfreeze import store_reports
    from planfreeze.cache.store import Store
    from planfreeze.errors import DamagedEntries
    from planfreeze.progress import verify_progress
    from planfreeze.repairs import repair as repair_store
    from planfreeze.resolve import PlanReference, find_plan
    from planfreeze.settings import toolchain_cache
    from planfreeze.verification import quarantine, verify

    with exit_codes():
        opened = open_store(store, writable=False, is_trusted=trust_store)
        wanted = find_plan(opened, PlanReference.parse(plan)) if plan is not None else None
        writable = open_for_repair(opened, is_required=repair)
        with verify_progress(is_quiet=quiet) as show:
            found = verify(opened, wanted, on_entry=show)
            problems, repaired, left = found.problems, None, found.problems
            if problems and writable is not None:
                problems = quarantine(problems, writable)
                if repair:
                    jobs, toolchains = len(os.sched_getaffinity(0)), toolchain_cache()
                    repaired = repair_store(problems, writable, jobs=jobs, toolchains=toolchains)
                    left = verify(opened, wanted, on_entry=show).problems
        print_result(
            store_reports.verification_json(found, problems, repaired) if as_json else None,
            lambda: store_reports.verification_table(found, problems, repaired),
        )
        if left or (repaired is not None and repaired.refused):
            checked, count = sum(found.checked.values()), max(1, len(left))
            raise DamagedEntries(str(opened.path), checked, count, is_pack=not isinstance(opened, Store))


def open_for_repair(opened: "ReadableStore", *, is_required: bool) -> "Store | None":
    """Open a store that was found for writing; None when it is a pack or may not be written."""
    from planfreeze.cache.store import Store
    from planfreeze.errors import StoreUnusable

    if not isinstance(opened, Store):
        if is_required:
            raise typer.BadParameter("a pack is never changed; write it anew", param_hint="--repair")
        return None
    try:
        return Store.open(opened.path, writable=True, is_trusted=opened.is_trusted)
    except StoreUnusable:
        if is_required:
            raise
        return None


def ls_command(store: StoreOption = None, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the frozen plans of a store or pack, their programs and sizes."""
    from planfreeze import store_reports
    from planfreeze.collection import take_census

    with exit_codes():
        census = take_census(open_store(store, writable=False))
        print_result(store_reports.census_json(census) if as_json else None, lambda: store_reports.census_table(census))


def gc_command(
    store: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Remove the oldest until all entries fit.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0.0, help="Remove what is older than so many days. Default: 1.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove what no frozen plan with a name needs."""
    from planfreeze import store_reports
    from planfreeze.collection import collect
    from planfreeze.errors import StoreOverBudget

    with exit_codes():
        opened = open_existing(store, writable=not dry_run)
        collected = collect(
            opened,
            max_age_s=None if max_age is None else max_age * DAY_S,
            max_bytes=max_bytes,
            is_dry_run=dry_run,
        )
        print_result(
            store_reports.collected_json(collected, is_dry_run=dry_run) if as_json else None,
            lambda: store_reports.collected_text(collected, is_dry_run=dry_run),
        )
        if collected.is_over_budget:
            raise StoreOverBudget(str(opened.path), collected.kept_bytes, max_bytes or 0)


def open_existing(path: Path | None, *, writable: bool) -> "Store":
    """Open a store that has to be there; opening for writing alone would make one."""
    from planfreeze.cache.store import Store

    opened = open_store(path, writable=False)
    if not isinstance(opened, Store):
        raise typer.BadParameter("a pack is one file: delete it whole", param_hint="--store")
    return Store.open(opened.path, writable=writable, is_trusted=opened.is_trusted)
