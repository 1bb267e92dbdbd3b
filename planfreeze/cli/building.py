"""Commands that list and build plans."""

from typing import Annotated

import typer

from planfreeze.cli.options import JsonOption, QuietOption, RecordingOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_note, print_result
from planfreeze.cli.requests import PlanRequest, declare_plans, takes_request

__all__ = ["build_command", "plan_command"]


@takes_request
def plan_command(
    context: typer.Context,
    request: PlanRequest,
    plan: RecordingOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the programs of a model, of families, or of a recorded run."""
    from planfreeze import reports

    if context.invoked_subcommand is not None:
        return

    with exit_codes():
        plans = declare_plans(request, plan)
        print_result(reports.plans_json(plans) if as_json else None, lambda: reports.plans_table(plans))
        for advice in dict.fromkeys(advice for plan in plans for advice in plan.advice()):
            print_note(f"note: {advice}", is_quiet=quiet)


@takes_request
def build_command(
    request: PlanRequest,
    plan: RecordingOption = None,
    store: StoreOption = None,
    max_registers: Annotated[
        int | None, typer.Option("--max-registers", min=1, help="Most registers a thread of any program may have.")
    ] = None,
    no_spills: Annotated[bool, typer.Option("--no-spills", help="Take no program that spills registers.")] = False,
    min_ctas_per_sm: Annotated[
        int | None, typer.Option("--min-ctas-per-sm", min=1, help="Fewest CTAs of any program an SM has room for.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Compile processes; 0: one per core.")] = 0,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compile what is missing, publish it, and freeze the plan.

    Status 1 if a program fails or exceeds a budget; nothing is frozen in the latter case.
    """
    import os

    from msgspec.structs import replace

    from planfreeze import reports
    from planfreeze.budgets import Budget
    from planfreeze.builds import build_plans
    from planfreeze.errors import BuildIncomplete
    from planfreeze.progress import build_progress
    from planfreeze.settings import toolchain_cache

    with exit_codes():
        plans = declare_plans(request, plan)
        budget = Budget(max_registers=max_registers, no_spills=no_spills, min_ctas_per_sm=min_ctas_per_sm)
        plans = tuple(replace(wanted, budgets=(*wanted.budgets, budget)) for wanted in plans)
        opened = open_store(store, writable=True, is_trusted=trust_store)
        opened.check_trust()
        total = sum(len(wanted.payloads) for wanted in plans)
        before = {wanted.name: opened.get_ref(wanted.name) for wanted in plans}
        with build_progress(total, is_quiet=quiet) as show:
            report = build_plans(
                plans,
                opened,
                jobs=jobs or len(os.sched_getaffinity(0)),
                toolchains=toolchain_cache(),
                on_outcome=show,
            )
        print_result(reports.build_json(report) if as_json else None, lambda: reports.build_table(report))
        for frozen in report.plans:
            if before[frozen.name] not in (None, frozen.root):
                print_note(f"{frozen.name} was {before[frozen.name]}, which stays in the store", is_quiet=quiet)
        for line in reports.unbuilt_lines(report, opened):
            print_note(line, is_quiet=quiet)
        for outcome in report.outcomes:
            name = f"{outcome.program.name} ({outcome.program.target.arch})"
            if outcome.earlier:
                print_note(f"{name} was compiled twice, at first: {outcome.earlier}", is_quiet=quiet)
            if outcome.status == "failed":
                typer.echo(f"error: {name}: {outcome.reason}", err=True)
        for excess in report.excesses:
            typer.echo(f"error: {excess}", err=True)
        if report.count("failed") or report.excesses:
            exceeding = len({(excess.program, excess.arch) for excess in report.excesses})
            raise BuildIncomplete(report.count("failed"), exceeding, len(report.outcomes))
