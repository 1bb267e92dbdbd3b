"""Commands that look into a store: prove that a plan is whole, explain a payload."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from planfreeze.cli.options import (
    ArchOption,
    ArmsOption,
    CapacityOption,
    FamilyOption,
    IdsOption,
    JsonOption,
    LimitOption,
    ModelOption,
    RanksOption,
    RootsOption,
    StoreOption,
    TrustOption,
    declare_plans,
    import_from,
    open_store,
)
from planfreeze.cli.output import exit_codes, print_result

__all__ = ["explain_command", "replay_command"]


def replay_command(
    model: ModelOption = None,
    tp: RanksOption = None,
    arch: ArchOption = None,
    capacity: CapacityOption = None,
    arms: ArmsOption = None,
    inline_limit: LimitOption = None,
    ids: IdsOption = None,
    family: FamilyOption = None,
    plan: Annotated[
        str | None, typer.Option("--plan", help="Frozen plan: name or root digest; or a recording, FILE.json.")
    ] = None,
    source_root: RootsOption = None,
    store: StoreOption = None,
    pack: Annotated[
        Path | None, typer.Option("--pack", help="Replay from a pack; without --plan all it holds.")
    ] = None,
    device: Annotated[bool, typer.Option("--device", help="Also load every program on the device.")] = False,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that a whole plan resolves with compiling forbidden."""
    from planfreeze import reports
    from planfreeze.replays import check_replays, prove_guard, replay_plan
    from planfreeze.resolve import PlanReference, find_plan, find_plans

    with exit_codes():
        named = [option for option in (plan, model, family) if option is not None]
        if len(named) > 1 or not (named or pack):
            raise typer.BadParameter("give one of --plan, --model, --family; or --pack")
        if pack and store:
            raise typer.BadParameter("give either --store or --pack")
        opened = open_store(pack or store, writable=False, is_trusted=trust_store)
        recording = Path(plan) if plan is not None and plan.endswith(".json") else None
        if model is None and family is None and recording is None:
            import_from(source_root or ())
            found = find_plans(opened, [plan] if plan else None)
            replays = [replay_plan(frozen, opened, on_device=device) for frozen in found]
        else:
            replays = []
            for wanted in declare_plans(
                model, tp, arch, capacity, arms, inline_limit, ids, family, recording, source_root
            ):
                command = f"{wanted.build_command} --store {shlex.quote(str(opened.path))}"
                frozen = find_plan(opened, PlanReference(wanted.name, None), command=command)
                replays.append(replay_plan(frozen, opened, wanted=wanted, on_device=device))
        guard = prove_guard()
        print_result(
            reports.replay_json(replays, guard) if as_json else None, lambda: reports.replay_table(replays, guard)
        )
        check_replays(replays)


def explain_command(
    family: Annotated[str, typer.Argument(help="Family: a name such as topk_sum, or module:attribute.")],
    fields: Annotated[list[str] | None, typer.Argument(help="Payload fields as NAME=VALUE.")] = None,
    arch: ArchOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a payload's key and whether it is stored.

    For every architecture; a payload that is not stored comes with the nearest one that is. Families and fields are
    those that planfreeze plan lists.
    """
    from planfreeze import program_reports
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
            raise typer.Exit(3)
