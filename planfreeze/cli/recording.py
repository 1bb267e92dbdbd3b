"""Commands about recordings: make one of a run, compare one with a frozen plan."""

from pathlib import Path
from typing import Annotated

import typer

from planfreeze.cli.completions import complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_result

__all__ = ["diff_command", "record_command"]


def record_command(
    command: Annotated[list[str], typer.Argument(help="The command to run, after --.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write the recording to.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a recording that leaves out what cannot be named.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a command and write down every program it launches.

    The status is the command's own; 1 if something cannot be recorded, 3 if no program was launched.
    """
    from planfreeze import reports
    from planfreeze.errors import IncompleteRecording, NothingRecorded
    from planfreeze.recordings import check_writable
    from planfreeze.runs import record_command

    with exit_codes():
        check_writable(output)  # told now, not after hours
        status, recorded = record_command(command)
        recorded.write(output)
        print_result(reports.recording_json(recorded) if as_json else None, lambda: reports.recording_table(recorded))
        if status:
            typer.echo(
                f"error: {command[0]} ended with status {status}; {output} holds what it used until then", err=True
            )
            raise typer.Exit(status)
        if recorded.refused and not partial:
            raise IncompleteRecording(str(output), tuple(f"{r.kernel}: {r.reason}" for r in recorded.refused))
        if not recorded.programs:
            raise NothingRecorded(str(output))


def diff_command(
    plan: Annotated[str, typer.Argument(autocompletion=complete_plans, help="Frozen plan: name or root digest.")],
    recording: Annotated[Path, typer.Argument(help="A recording.")],
    store: StoreOption = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare a plan with a recorded run.

    Shows what is planned and was not used, and what was used and is not planned; status 1 if there is either.
    """
    from planfreeze import reports
    from planfreeze.differences import compare_plan
    from planfreeze.errors import PlanDiffers
    from planfreeze.recordings import read_recording
    from planfreeze.resolve import PlanReference, find_plan

    with exit_codes():
        opened = open_store(store, writable=False, is_trusted=trust_store)
        difference = compare_plan(find_plan(opened, PlanReference.parse(plan)), read_recording(recording))
        print_result(
            reports.difference_json(difference) if as_json else None, lambda: reports.difference_text(difference)
        )
        if not difference.is_empty:
            raise PlanDiffers(plan, str(recording), len(difference.unused), len(difference.unplanned))
