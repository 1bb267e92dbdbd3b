"""The command line: parse, call, report. Results on standard output, progress and errors on standard error."""

import signal
import sys
from typing import Annotated

import typer

from planfreeze.cli.building import build_command, plan_command
from planfreeze.cli.checking import explain_command, replay_command
from planfreeze.cli.keeping import gc_command, ls_command, verify_command
from planfreeze.cli.packing import pack_command, unpack_command

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Freeze a model's GPU kernels."
)
app.command("plan")(plan_command)
app.command("build")(build_command)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("verify")(verify_command)
app.command("pack")(pack_command)
app.command("unpack")(unpack_command)
app.command("gc")(gc_command)
app.command("ls")(ls_command)


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
