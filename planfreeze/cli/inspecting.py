"""Commands that look at single programs: show them, compare them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planfreeze.cli.completions import complete_families, complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_result

if TYPE_CHECKING:
    from planfreeze.comparison import Side

__all__ = ["compare_command", "show_command"]


def show_command(
    program: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_families,
            help="Key, digest of a payload or cubin, or its first eight digits; or a family. Default: all.",
        ),
    ] = None,
    fields: Annotated[list[str] | None, typer.Argument(help="Payload fields as NAME=VALUE.")] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Frozen plan to look in: name or root digest. Default: all.",
        ),
    ] = None,
    store: StoreOption = None,
    pack: Annotated[Path | None, typer.Option("--pack", help="Look in a pack in place of a store.")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Also print the machine code; needs nvdisasm.")] = False,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show programs: resources, residence on an SM, spills, key, provenance, machine code.

    Status 3 if no program is the one that was asked for.
    """
    from planfreeze import program_reports
    from planfreeze.disassembly import disassemble
    from planfreeze.resolve import find_plans
    from planfreeze.selection import plan_programs, select_programs, unplanned_programs

    with exit_codes():
        if pack and store:
            raise typer.BadParameter("give either --store or --pack")
        opened = open_store(pack or store, writable=False, is_trusted=trust_store)
        plans = find_plans(opened, plan) if plan or opened.list_refs() else ()
        if program is not None:
            programs = select_programs(program, fields or (), plans, opened, is_planned=plan is not None)
        else:
            programs = plan_programs(plans, opened) if plans else unplanned_programs(plans, opened)
        codes = {facts.key: disassemble(facts.name, opened.get_blob(facts.record.blob)) for facts in programs if sass}
        if as_json:
            print_result(program_reports.programs_json(programs, codes), lambda: None)
        elif program is None and not sass:
            print_result(None, lambda: program_reports.facts_table(programs))
        else:
            print_result(None, lambda: program_reports.facts_text(programs, codes))


def compare_command(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", autocompletion=complete_plans, help="A store, a pack, a frozen plan, or PLAN@STORE."
        ),
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", autocompletion=complete_plans, help="What to compare it with, named alike.")
    ],
    store: StoreOption = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare the programs of stores, packs and frozen plans.

    Says of each whether code, resources or only its key changed, and why. Status 1 if there is any difference.
    """
    from planfreeze import comparison_reports
    from planfreeze.comparison import compare
    from planfreeze.errors import ProgramsDiffer

    with exit_codes():
        found = compare(
            open_side(before, store, is_trusted=trust_store), open_side(after, store, is_trusted=trust_store)
        )
        print_result(
            comparison_reports.comparison_json(found) if as_json else None,
            lambda: comparison_reports.comparison_text(found),
        )
        if not found.is_empty:
            raise ProgramsDiffer(before, after, comparison_reports.summarize(found))


def open_side(text: str, store: Path | None, *, is_trusted: bool) -> "Side":
    """Open what one side of a comparison names: a path with all its plans, a plan at a path, a plan of the store."""
    from planfreeze.cache.readable import is_pack_name
    from planfreeze.comparison import Side
    from planfreeze.resolve import find_plans

    if Path(text).exists() or os.sep in text.partition("@")[0] or is_pack_name(text.partition("@")[0]):
        opened = open_store(Path(text), writable=False, is_trusted=is_trusted)
        return Side(store=opened, plans=find_plans(opened, None))
    plan, _, place = text.rpartition("@")
    if not plan or place.startswith("sha256:"):
        plan, place = text, ""
    opened = open_store(Path(place) if place else store, writable=False, is_trusted=is_trusted)
    return Side(store=opened, plans=find_plans(opened, [plan]))
