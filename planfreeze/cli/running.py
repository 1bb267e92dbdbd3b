"""The command that runs another one under the guard."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planfreeze import errors
from planfreeze.cli.completions import complete_modes, complete_plans
from planfreeze.cli.options import QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes

if TYPE_CHECKING:
    from planfreeze.runs.guarded import Run
    from planfreeze.serving import Service

__all__ = ["run_command"]


def run_command(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command and its arguments.")],
    mode: Annotated[
        str,
        typer.Option(
            "--mode", autocompletion=complete_modes, help="What an attempt to compile does: raise, warn, count."
        ),
    ] = "raise",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write a JSON object to this file.")] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", autocompletion=complete_plans, help="Frozen plan that compilers' own runtimes are served from."
        ),
    ] = None,
    store: StoreOption = None,
    trust_store: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run any command under the guard.

    The guard is proven awake first. Status 5 and a table if a compiler was reached, else the command's own status.
    """
    from planfreeze.runs.guarded import RUN_MODES, run_guarded
    from planfreeze.runs.reports import print_proof, write_report

    with exit_codes():
        if mode not in RUN_MODES:
            raise typer.BadParameter(f"{mode!r} is none of {', '.join(RUN_MODES)}", param_hint="--mode")
        if report is not None:
            write_report(report, None)  # an unwritable place is told now, not after hours
        service = None if plan is None else find_service(plan, store, is_trusted=trust_store)
        run = run_guarded(
            command, mode=RUN_MODES[mode], on_proof=(lambda proven: None) if quiet else print_proof, service=service
        )
        show_run(run, report, as_json=as_json, is_quiet=quiet)
        raise typer.Exit(run.status)


def find_service(plan: str, store: Path | None, *, is_trusted: bool) -> "Service":
    """Return the plan to serve from, which is proven whole first."""
    from planfreeze.serving import open_service
    from planfreeze.settings import read_settings

    opened = open_store(store, writable=False, is_trusted=is_trusted)
    return open_service(plan, opened.path, is_trusted=is_trusted or read_settings().is_store_trusted)


def show_run(run: "Run", report: Path | None, *, as_json: bool, is_quiet: bool) -> None:
    """Print and write what became of a run; a failure of that never hides that a compiler was reached."""
    from planfreeze.runs.reports import print_attempts, run_json, write_report

    try:
        print_attempts(run, is_quiet=is_quiet)
        if report is not None:
            write_report(report, run)
        if as_json:
            print_line(json.dumps(run_json(run)))
    except (errors.PlanfreezeError, OSError) as error:
        if not run.attempts:
            raise
        tell(error)


def tell(error: Exception) -> None:
    """Print an error on standard error, which may be what failed: what it still holds must not change the status."""
    try:
        typer.echo(f"error: {error}", err=True)
    except OSError:
        sys.stderr = None  # as it is where it was closed from the start


def print_line(text: str) -> None:
    """Print a line on standard output, which the command had before."""
    if sys.stdout is None:
        raise errors.OutputUnwritable("it is closed")
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise errors.OutputUnwritable(error.strerror or str(error)) from error
