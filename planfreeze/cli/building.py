"""Commands that list and build plans."""

from typing import Annotated

import typer

from planfreeze.cli.options import (
    ArchOption,
    ArmsOption,
    CapacityOption,
    IdsOption,
    JsonOption,
    LimitOption,
    ModelOption,
    RanksOption,
    StoreOption,
    TrustOption,
    declare_plans,
    open_store,
)
from planfreeze.cli.output import exit_codes, print_result

__all__ = ["build_command", "plan_command"]


def plan_command(
    model: ModelOption = None,
    tp: RanksOption = None,
    arch: ArchOption = None,
    capacity: CapacityOption = None,
    arms: ArmsOption = None,
    inline_limit: LimitOption = None,
    ids: IdsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every program a model can ask for."""
    from planfreeze import reports

    with exit_codes():
        plans = declare_plans(model, tp, arch, capacity, arms, inline_limit, ids)
        print_result(reports.plans_json(plans) if as_json else None, lambda: reports.plans_table(plans))


def build_command(
    model: ModelOption = None,
    tp: RanksOption = None,
    arch: ArchOption = None,
    capacity: CapacityOption = None,
    arms: ArmsOption = None,
    inline_limit: LimitOption = None,
    ids: IdsOption = None,
    store: StoreOption = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Compile processes; 0: one per core.")] = 0,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compile what is missing, publish it, and freeze the plan."""
    import os

    from planfreeze import reports
    from planfreeze.builds import build_plans
    from planfreeze.settings import toolchain_cache

    with exit_codes():
        plans = declare_plans(model, tp, arch, capacity, arms, inline_limit, ids)
        opened = open_store(store, writable=True, is_trusted=trust_store)
        opened.check_trust()
        total = sum(len(plan.payloads) for plan in plans)
        before = {plan.name: opened.get_ref(plan.name) for plan in plans}
        with reports.build_progress(total) as show:
            report = build_plans(
                plans,
                opened,
                jobs=jobs or len(os.sched_getaffinity(0)),
                toolchains=toolchain_cache(),
                on_outcome=show,
            )
        print_result(reports.build_json(report) if as_json else None, lambda: reports.build_table(report))
        for plan in report.plans:
            if before[plan.name] not in (None, plan.root):
                typer.echo(f"{plan.name} was {before[plan.name]}, which stays in the store", err=True)
        for outcome in report.outcomes:
            if outcome.status == "failed":
                typer.echo(
                    f"error: {outcome.program.name} ({outcome.program.target.arch}): {outcome.reason}",
                    err=True,
                )
        if report.count("failed"):
            raise typer.Exit(1)
