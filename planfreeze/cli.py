"""The command line: parse, call, report. Results on standard output, progress and errors on standard error."""

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planfreeze.errors import OutputUnwritable, PlanfreezeError

if TYPE_CHECKING:
    from planfreeze.cache.store import Store
    from planfreeze.plans import Plan

__all__ = ["main"]

INTERRUPTED = 130

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Freeze a model's GPU kernels."
)

ModelOption = Annotated[
    str | None, typer.Option("--model", help="Catalog name, TOML file, or Hugging Face config.json.")
]
RanksOption = Annotated[
    int | None, typer.Option("--tp", help="Tensor-parallel ranks. Default: the model's usual number, else 1.")
]
ArchOption = Annotated[
    list[str] | None, typer.Option("--arch", help="Exact architecture such as sm_90a; several are allowed.")
]
CapacityOption = Annotated[
    str | None, typer.Option("--capacity", help="Token capacities, comma separated. Default: the model's.")
]
ArmsOption = Annotated[str | None, typer.Option("--arms", help="inline, expand, native (comma separated) or all.")]
LimitOption = Annotated[int | None, typer.Option("--inline-limit", help="Largest capacity that reads scales inline.")]
IdsOption = Annotated[str | None, typer.Option("--ids", help="Routing id types: int32,int64.")]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", readable=False, help="The store. Default: PLANFREEZE_STORE, else the user's cache."),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-store", help="Take an unpinned plan from a store that others can write.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def show_version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Compile every GPU kernel a model can ask for ahead of time; prove that nothing is left to compile."""
    if version:
        from planfreeze import __version__

        typer.echo(f"planfreeze {__version__}")
        raise typer.Exit


@app.command("plan")
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


@app.command("build")
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
    from planfreeze.settings import user_cache

    with exit_codes():
        plans = declare_plans(model, tp, arch, capacity, arms, inline_limit, ids)
        opened = open_store(store, writable=True, is_trusted=trust_store)
        opened.check_trust()
        total = sum(len(plan.payloads) for plan in plans)
        before = opened.list_refs()
        with reports.build_progress(total) as show:
            report = build_plans(
                plans,
                opened,
                jobs=jobs or len(os.sched_getaffinity(0)),
                toolchains=user_cache() / "toolchains",
                on_outcome=show,
            )
        print_result(reports.build_json(report) if as_json else None, lambda: reports.build_table(report))
        for plan in report.plans:
            if before.get(plan.name, plan.root) != plan.root:
                typer.echo(f"{plan.name} was {before[plan.name]}, which stays in the store", err=True)
        for outcome in report.outcomes:
            if outcome.status == "failed":
                typer.echo(
                    f"error: {outcome.program.name} ({outcome.program.target.arch}): {outcome.reason}",
                    err=True,
                )
        if report.count("failed"):
            raise typer.Exit(1)


@app.command("replay")
def replay_command(
    model: ModelOption = None,
    tp: RanksOption = None,
    arch: ArchOption = None,
    capacity: CapacityOption = None,
    arms: ArmsOption = None,
    inline_limit: LimitOption = None,
    ids: IdsOption = None,
    plan: Annotated[str | None, typer.Option("--plan", help="Frozen plan: name or root digest.")] = None,
    store: StoreOption = None,
    device: Annotated[bool, typer.Option("--device", help="Also load every program on the device.")] = False,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that a whole plan resolves with compiling forbidden."""
    from planfreeze import reports
    from planfreeze.replays import check_replays, prove_guard, replay_plan
    from planfreeze.resolve import PlanReference, find_plan

    with exit_codes():
        if (plan is None) == (model is None):
            raise typer.BadParameter("give either --plan or --model")
        opened = open_store(store, writable=False, is_trusted=trust_store)
        if plan is not None:
            replays = [replay_plan(find_plan(opened, PlanReference.parse(plan)), opened, on_device=device)]
        else:
            replays = []
            for wanted in declare_plans(model, tp, arch, capacity, arms, inline_limit, ids):
                command = f"{wanted.build_command} --store {shlex.quote(str(opened.path))}"
                found = find_plan(opened, PlanReference(wanted.name, None), command=command)
                replays.append(replay_plan(found, opened, wanted=wanted, on_device=device))
        guard = prove_guard()
        print_result(
            reports.replay_json(replays, guard) if as_json else None, lambda: reports.replay_table(replays, guard)
        )
        check_replays(replays)


@app.command("explain")
def explain_command(
    family: Annotated[str, typer.Argument(help="Family: a name such as topk_sum, or module:attribute.")],
    fields: Annotated[list[str] | None, typer.Argument(help="Payload fields as NAME=VALUE.")] = None,
    arch: ArchOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a payload's key and whether it is stored.

    For every architecture; a payload that is not stored comes with the nearest one that is.
    """
    from planfreeze import reports
    from planfreeze.explanations import explain
    from planfreeze.settings import user_cache
    from planfreeze.target import ARCHS, target

    with exit_codes():
        opened = open_store(store, writable=False)
        explained = [
            explain(family, fields or [], target(name), opened, toolchains=user_cache() / "toolchains")
            for name in arch or ARCHS
        ]
        print_result(
            reports.explanation_json(explained) if as_json else None,
            lambda: reports.explanation_text(explained),
        )
        if not any(found.is_stored for found in explained):
            raise typer.Exit(3)


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of planfreeze and an interrupt into a message and an exit status."""
    try:
        yield
    except PlanfreezeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("interrupted: what is published stays; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None


def declare_plans(
    model: str | None,
    tp: int | None,
    archs: list[str] | None,
    capacity: str | None,
    arms: str | None,
    inline_limit: int | None,
    ids: str | None,
) -> tuple["Plan", ...]:
    """Make one plan per architecture; settings are read here and never again for these plans."""
    from planfreeze.models import load_model, parse_options
    from planfreeze.plans import make_plan
    from planfreeze.settings import read_settings
    from planfreeze.target import target

    if model is None:
        raise typer.BadParameter("--model is missing", param_hint="--model")
    settings = read_settings()
    options = parse_options(
        inline_limit=settings.csf_inline_max_tokens if inline_limit is None else inline_limit,
        is_csf_inline=settings.is_csf_inline,
        capacities=capacity,
        arms=arms,
        id_types=ids,
    )
    loaded = load_model(model)
    names = dict.fromkeys(archs or [default_arch(loaded.default_arch)])
    ranks = tp if tp is not None else loaded.default_tp or 1
    return tuple(make_plan(loaded, tp=ranks, target=target(name), options=options, source=model) for name in names)


def default_arch(without_device: str) -> str:
    """Return the current device's architecture if planfreeze compiles for it, else the given one."""
    if not Path("/dev/nvidiactl").exists():
        return without_device
    from planfreeze.device import current_arch

    return current_arch() or without_device


def open_store(path: Path | None, *, writable: bool, is_trusted: bool = False) -> "Store":
    """Open the store that was named, or the one of the settings."""
    from planfreeze.cache.store import Store
    from planfreeze.settings import read_settings, store_path

    settings = read_settings()
    return Store.open(
        path or store_path(settings), writable=writable, is_trusted=is_trusted or settings.is_store_trusted
    )


def print_result(as_json: dict[str, Any] | None, show: Any) -> None:
    """Print a result as JSON, or let ``show`` print it for people."""
    if sys.stdout is None:
        raise OutputUnwritable("it is closed")
    try:
        if as_json is None:
            show()
        else:
            json.dump(as_json, sys.stdout, indent=2)
            sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputUnwritable(error.strerror or str(error)) from error


def main() -> None:
    """Run the command line. A signal to end it does so in order: compile processes and their files go with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    app()
