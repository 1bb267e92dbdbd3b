"""Commands that look into a store: prove that a plan is whole, explain a payload."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from planfreeze.cli.completions import complete_families, complete_plans
from planfreeze.cli.options import ArchOption, JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_result
from planfreeze.cli.requests import PlanRequest, declare_plans, import_from, takes_request

__all__ = ["explain_command", "replay_command"]


@takes_request
def replay_command(
    request: PlanRequest,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Frozen plan: name or root digest; or a recording, FILE.json.",
        ),
    ] = None,
    store: StoreOption = None,
    pack: Annotated[
        Path | None, typer.Option("--pack", help="Replay from a pack; without --plan all it holds.")
    ] = None,
    device: Annotated[bool, typer.Option("--device", help="Also load every program on the device.")] = False,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Prove that a whole plan resolves with compiling forbidden."""
    from planfreeze import reports
    from planfreeze.replays import check_replays, prove_guard, replay_plan
    from planfreeze.resolve import PlanReference, find_plan, find_plans

    with exit_codes():
        named = [option for option in (plan, request.model, request.family) if option is not None]
        if len(named) > 1 or not (named or pack):
            raise typer.BadParameter("give one of --plan, --model, --family; or --pack")
        if pack and store:
            raise typer.BadParameter("give either --store or --pack")
        opened = open_store(pack or store, writable=False, is_trusted=trust_store)
        recording = Path(plan) if plan is not None and plan.endswith(".json") else None
        if request.model is None and request.family is None and recording is None:
            import_from(request.source_root or ())
            found = find_plans(opened, None if plan is None else [plan])
            replays = [replay_plan(frozen, opened, on_device=device) for frozen in found]
        else:
            replays = []
            for wanted in declare_plans(request, recording):
                command = f"{wanted.build_command} --store {shlex.quote(str(opened.path))}"
                frozen = find_plan(opened, PlanReference(wanted.name, None), command=command)
                replays.append(replay_plan(frozen, opened, wanted=wanted, on_device=device))
        guard = prove_guard()
        print_result(
            reports.replay_json(replays, guard) if as_json else None, lambda: reports.replay_table(replays, guard)
        )
        check_replays(replays)


def explain_command(
    family: Annotated[
        str,
        typer.Argument(autocompletion=complete_families, help="Family: a name such as topk_sum, or module:attribute."),
    ],
    fields: Annotated[list[str] | None, typer.Argument(help="Payload fields as NAME=VALUE.")] = None,
    arch: ArchOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a payload's key and whether it is stored.

    For every architecture; a payload that is not stored comes with the nearest one that is. Families and fields are
    those that planfreeze plan lists.
    """
    from planfreeze import program_reports
    from planfreeze.errors import ProgramNotStored
    from planfreeze.explanations import explain
    from planfreeze.settings import toolchain_cache
    from planfreeze.target import ARCHS, target

    with exit_codes():
        opened = open_store(store, writable=False)
        explained = [
            explain(family, fields or [], target(name), opened, toolchains=toolchain_cache()) for name in arch or ARCHS
        ]
        print_result(
            program_reports.explanation_json(explained) if as_json else None,
            lambda: program_reports.explanation_text(explained),
        )
        if not any(found.is_stored for found in explained):
            raise ProgramNotStored(family, tuple(found.arch for found in explained), str(opened.path))
