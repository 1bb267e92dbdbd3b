"""The command that says whether frozen serving would work here."""

from typing import Annotated

import typer

from planfreeze.cli.completions import complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, RootsOption, StoreOption, TrustOption
from planfreeze.cli.output import exit_codes, print_result
from planfreeze.cli.requests import import_from

__all__ = ["doctor_command"]


def doctor_command(
    store: StoreOption = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Frozen plan that has to be there. Default: PLANFREEZE_PLAN.",
        ),
    ] = None,
    source_root: RootsOption = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say whether frozen serving would work here.

    Shows what a guard watches and cannot see, and what still needs a compiler. Status 6 if the machine only lacks
    something, 1 for other problems.
    """
    from planfreeze.doctor import diagnose, reports
    from planfreeze.errors import ServingHindered
    from planfreeze.settings import read_settings, store_path

    with exit_codes():
        import_from(source_root or ())
        settings = read_settings()
        diagnosis = diagnose(
            store or store_path(settings),
            plans=tuple(plan or settings.plans),
            is_store_named=store is not None or settings.store is not None,
            is_trusted=trust_store or settings.is_store_trusted,
        )
        print_result(
            reports.diagnosis_json(diagnosis) if as_json else None,
            lambda: reports.diagnosis_text(diagnosis),
        )
        if diagnosis.status:
            raise ServingHindered(diagnosis.problems, diagnosis.status)
