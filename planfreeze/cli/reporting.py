"""The command that makes a page of what is built."""

from pathlib import Path
from typing import Annotated

import typer

from planfreeze.cli.completions import complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_result

__all__ = ["report_command"]


def report_command(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write; it needs nothing beside it.")
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Frozen plan: name or root digest; several are allowed. Default: all with a name.",
        ),
    ] = None,
    recording: Annotated[
        Path | None, typer.Option("--recording", help="A recording: show how much of the plans that run used.")
    ] = None,
    store: StoreOption = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a page of frozen plans: programs, sizes, resources, the build, coverage of a run.

    With --json the same facts are printed; -o may then be left out.
    """
    from planfreeze.errors import PageUnwritable
    from planfreeze.pages import gather_report, make_document
    from planfreeze.recordings import read_recording
    from planfreeze.resolve import find_plans

    with exit_codes():
        if output is None and not as_json:
            raise typer.BadParameter("name the file of the page, or take --json", param_hint="--output")
        opened = open_store(store, writable=False, is_trusted=trust_store)
        run = None if recording is None else read_recording(recording)
        found = gather_report(find_plans(opened, plan), opened, recording=run, recorded_in=str(recording or ""))
        if output is not None:
            try:
                output.write_text(make_document(found), encoding="utf-8")
            except OSError as error:
                raise PageUnwritable(str(output), error.strerror or str(error)) from error
        shown = f"{output}: {len(found['programs'])} programs of {len(found['plans'])} plans\n"
        print_result(found if as_json else None, lambda: typer.echo(shown, nl=False))
