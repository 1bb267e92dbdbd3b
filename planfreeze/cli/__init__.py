"""The command line: parse, call, report. Results on standard output, progress and errors on standard error."""

import gc
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from planfreeze.cli.building import build_command, plan_command
from planfreeze.cli.checking import explain_command, replay_command
from planfreeze.cli.diagnosing import doctor_command
from planfreeze.cli.keeping import gc_command, ls_command, verify_command
from planfreeze.cli.packing import pack_command, unpack_command
from planfreeze.cli.recording import diff_command, record_command
from planfreeze.cli.running import run_command

__all__ = ["app", "main"]

# Most of what a command makes it keeps; looking through that for garbage took a tenth of one that finds everything.
GARBAGE_THRESHOLD = 20_000

# What to type, shown at the end of each command's help.
EXAMPLES = {
    "plan": ("plan --model ds41 --tp 4", "plan --family mykernels.add:add", "plan --plan kernels.json"),
    "diff": ("plan diff kernels-sm_90a later.json --store store",),
    "build": (
        "build --model ds41 --tp 4 --arch sm_90a --store store",
        "build --family mykernels.add:add --arch sm_90a --store store",
        "build --plan kernels.json --store store",
    ),
    "replay": (
        "replay --model ds41 --tp 4 --arch sm_90a --store store",
        "replay --plan kernels.json --store store",
    ),
    "explain": ("explain topk_sum hidden=5120 top_k=6 --arch sm_90a --store store",),
    "record": (
        "record -o kernels.json -- python run.py",
        "build --plan kernels.json --store store",
        "run --store store --plan kernels-sm_90a -- python run.py",
    ),
    "run": ("run -- python serve.py --port 8000", "run --store store --plan kernels-sm_90a -- python run.py"),
    "doctor": ("doctor --store store",),
    "verify": ("verify --store store", "verify --plan ds41-tp4-sm_90a --store store --repair"),
    "pack": ("pack --plan ds41-tp4-sm_90a --store store -o ds41.pfz",),
    "unpack": ("unpack ds41.pfz --store store",),
    "ls": ("ls --store store",),
    "gc": ("gc --dry-run --store store",),
}


def show_examples(command: str) -> str:
    """Return the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  planfreeze {example}" for example in EXAMPLES[command])


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="A command's own help ends with examples: planfreeze build --help",
)
plans = typer.Typer(rich_markup_mode=None)
plans.callback(invoke_without_command=True, epilog=show_examples("plan"))(plan_command)
plans.command("diff", epilog=show_examples("diff"))(diff_command)
app.add_typer(plans, name="plan")
COMMANDS: dict[str, Callable[..., None]] = {
    "build": build_command,
    "replay": replay_command,
    "explain": explain_command,
    "verify": verify_command,
    "pack": pack_command,
    "unpack": unpack_command,
    "ls": ls_command,
    "gc": gc_command,
    "record": record_command,
}
for name, command in COMMANDS.items():
    app.command(name, epilog=show_examples(name))(command)
# What follows the command's name belongs to the command, also without the two dashes.
app.command("run", context_settings={"allow_interspersed_args": False}, epilog=show_examples("run"))(run_command)
app.command("doctor", epilog=show_examples("doctor"))(doctor_command)


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
    gc.set_threshold(GARBAGE_THRESHOLD)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    app()
