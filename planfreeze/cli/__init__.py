"""The command line: parse, call, report. Results on standard output, progress and errors on standard error."""

import signal
import sys
from typing import Annotated

import typer

from planfreeze.cli.building import build_command, plan_command
from planfreeze.cli.checking import explain_command, replay_command
from planfreeze.cli.diagnosing import doctor_command
from planfreeze.cli.recording import diff_command, record_command
from planfreeze.cli.running import run_command

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Freeze a model's GPU kernels."
)
plans = typer.Typer(rich_markup_mode=None)
plans.callback(invoke_without_command=True)(plan_command)
plans.command("diff")(diff_command)
app.add_typer(plans, name="plan")
app.command("build")(build_command)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("record")(record_command)
# What follows the command's name belongs to the command, also without the two dashes.
app.command("run", context_settings={"allow_interspersed_args": False})(run_command)
app.command("doctor")(doctor_command)


@app.callback(invoke_without_command=True)
def show_version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Compile every GPU kernel a model can ask for ahead of time; prove that nothing is left to compile."""
    if version:
        from planfreeze import __version__

        typer.echo(f"planfreeze {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. A signal to end it does so in order: compile processes and their files go with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    app()
