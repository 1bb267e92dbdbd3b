"""The command line: parse, call, report. Results on standard output, progress and errors on standard error."""

import atexit
import gc
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from planfreeze.cli.building import build_command, plan_command
from planfreeze.cli.checking import explain_command, replay_command
from planfreeze.cli.diagnosing import doctor_command
from planfreeze.cli.inspecting import compare_command, show_command
from planfreeze.cli.keeping import gc_command, ls_command, verify_command
from planfreeze.cli.output import exit_codes, print_result
from planfreeze.cli.packing import pack_command, unpack_command
from planfreeze.cli.recording import diff_command, record_command
from planfreeze.cli.reporting import report_command
from planfreeze.cli.running import run_command

__all__ = ["app", "main"]

# Most of what a command makes it keeps; looking through that for garbage took a tenth of one that finds everything,
# and as much again when the interpreter ended, whose memory goes back as a whole.
GARBAGE_THRESHOLD = 100_000

# What to type, and what for, shown at the end of each command's help.
EXAMPLES = {
    "plan": (
        "plan --model ds41  # all programs of a model of the catalog, for the architecture here",
        "plan --model config.json --tp 8 --arch sm_90a --arch sm_120a  # a Hugging Face model, two architectures",
        "plan --family mykernels.add:add  # all variants of a kernel of your own",
        "plan --plan kernels.json --json  # what a recorded run launched, for a program to read",
    ),
    "plan diff": (
        "plan diff kernels-sm_90a later.json --store store  # status 1 if a later run used anything else",
        "plan diff kernels-sm_90a later.json --store kernels.pfz --json  # the same of a pack, for a program to read",
    ),
    "build": (
        "build --model ds41 --tp 4 --arch sm_90a --store store  # compile what is missing, freeze the plan",
        "build --model ds41 --capacity 8,64 --arms inline --jobs 2  # small: two capacities, one arm, two processes",
        "build --family mykernels.add:add --arch sm_90a --store store  # all variants of a kernel of your own",
        "build --plan kernels.json --store store  # what planfreeze record wrote down",
    ),
    "replay": (
        "replay --model ds41 --tp 4 --arch sm_90a --store store  # in CI: status 3 if anything is left to compile",
        "replay --plan ds41-tp4-sm_90a --store store --device  # also load every program on the GPU here",
        "replay --pack ds41.pfz  # every plan of a pack",
        "replay --plan kernels.json --store store  # of a recorded run",
    ),
    "explain": (
        "explain topk_sum hidden=5120 top_k=6 --arch sm_90a --store store  # its key, whether stored, what is nearest",
        "explain mykernels.scale:scale columns=1024 --json  # of a kernel of your own, for every architecture",
    ),
    "verify": (
        "verify --store store  # hash everything, put damage aside",
        "verify --plan ds41-tp4-sm_90a --store store --repair  # one plan; build again what it lacks",
        "verify --store ds41.pfz  # a pack",
    ),
    "pack": (
        "pack --plan ds41-tp4-sm_90a --store store -o ds41.pfz  # one file that serves as it is",
        "pack --plan ds41-tp4-sm_90a -o ds41.pfz --sign release.pem  # signed",
    ),
    "unpack": (
        "unpack ds41.pfz --store store  # all its plans",
        "unpack ds41.pfz --plan ds41-tp4-sm_90a --store store  # one of them",
    ),
    "ls": (
        "ls --store store  # plans, programs, sizes, and what no plan needs",
        "ls --store ds41.pfz --json  # of a pack, for a program to read",
    ),
    "gc": (
        "gc --dry-run --store store  # what would go",
        "gc --max-age 30 --max-bytes 2000000000 --store store  # older than 30 days, then all above 2 GB",
    ),
    "show": (
        "show split_fc1 tile_m=8 --plan ds41-tp4-sm_90a --store store  # the programs of a family with such a field",
        "show 3f9a0c1d77e2 --sass --store store  # one, by how its key or a digest begins, with its machine code",
        "show --pack ds41.pfz  # a line for each program of a pack",
    ),
    "diff": (
        "diff before after  # all plans of two stores or packs; status 1 if anything differs",
        "diff ds41-tp4-sm_90a@before.pfz ds41-tp4-sm_90a --store store  # a plan of a pack with that of a store",
        "diff kernels-sm_90a@sha256:ROOT kernels-sm_90a --store store  # a plan as it was, by its root",
    ),
    "record": (
        "record -o kernels.json -- python run.py  # first, on the machine with the GPU",
        "build --plan kernels.json --store store  # then, on any machine with the compilers",
        "run --store store --plan kernels-sm_90a -- python run.py  # and serve, without compiling",
    ),
    "run": (
        "run -- python serve.py --port 8000  # status 5 if anything in it reached a compiler",
        "run --mode count --report run.json -- python serve.py  # let attempts pass, and gather all of them",
        "run --store store --plan kernels-sm_90a -- python run.py  # serve its kernels from a frozen plan",
    ),
    "doctor": (
        "doctor  # this machine, the guard, and the usual store",
        "doctor --store store --plan ds41-tp4-sm_90a --json  # one plan that has to be there, for a program to read",
    ),
    "report": (
        "report -o report.html --store store  # all plans that have a name",
        "report -o report.html --plan kernels-sm_90a --recording kernels.json --store store  # and what a run used",
        "report --json --store ds41.pfz  # the facts of the page alone, of a pack",
    ),
}


def show_examples(command: str) -> str:
    """Return the end of a command's help: what an example is for, and below it what to type."""
    shown = []
    for example in EXAMPLES[command]:
        typed, _, purpose = example.partition("  # ")
        shown += [f"  # {purpose}", f"  planfreeze {typed}"]
    return "\b\nExamples:\n" + "\n".join(shown)


app = typer.Typer(
    rich_markup_mode=None,
    epilog="A command's own help ends with examples: planfreeze build --help\n\n"
    "Without a command, planfreeze says what is here and what to do next.\n\n"
    "Status: 0 done; 1 failed or different; 2 wrong usage; 3 not there; 4 damaged, untrusted or too new; 5 a compiler "
    "was reached; 6 the machine lacks something; 130 interrupted.",
)
plans = typer.Typer(rich_markup_mode=None)
plans.callback(invoke_without_command=True, epilog=show_examples("plan"))(plan_command)
plans.command("diff", epilog=show_examples("plan diff"))(diff_command)
app.add_typer(plans, name="plan")
COMMANDS: dict[str, Callable[..., None]] = {
    "build": build_command,
    "replay": replay_command,
    "explain": explain_command,
    "show": show_command,
    "diff": compare_command,
    "verify": verify_command,
    "pack": pack_command,
    "unpack": unpack_command,
    "ls": ls_command,
    "gc": gc_command,
    "record": record_command,
    "report": report_command,
}
for name, command in COMMANDS.items():
    app.command(name, epilog=show_examples(name))(command)
# What follows the command's name belongs to the command, also without the two dashes.
app.command("run", context_settings={"allow_interspersed_args": False}, epilog=show_examples("run"))(run_command)
app.command("doctor", epilog=show_examples("doctor"))(doctor_command)


@app.callback(invoke_without_command=True)
def greet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Compile every GPU kernel a model can ask for ahead of time; prove that nothing is left to compile."""
    if version:
        from planfreeze import __version__

        typer.echo(f"planfreeze {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return
    from planfreeze.cli.first_steps import describe_next_steps

    with exit_codes():
        text = describe_next_steps()
        print_result(None, lambda: typer.echo(text))


def main() -> None:
    """Run the command line. A signal to end it does so in order: compile processes and their files go with it."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    atexit.register(gc.freeze)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    app(prog_name="planfreeze")
