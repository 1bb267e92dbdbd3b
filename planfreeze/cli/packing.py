"""Commands that write packs and take them apart."""

from pathlib import Path
from typing import Annotated

import typer

from planfreeze.cli.completions import complete_plans
from planfreeze.cli.options import JsonOption, QuietOption, StoreOption, TrustOption, open_store
from planfreeze.cli.output import exit_codes, print_note, print_result

__all__ = ["pack_command", "unpack_command"]


def pack_command(
    plan: Annotated[
        list[str],
        typer.Option(
            "--plan",
            autocompletion=complete_plans,
            help="Frozen plan: name, root digest, or NAME@sha256:ROOT; several are allowed.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write, such as ds41.pfz.")],
    store: StoreOption = None,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="PEM file of the Ed25519 private key that signs the pack.")
    ] = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write frozen plans and all their programs to one file."""
    from planfreeze import store_reports
    from planfreeze.packs import pack_plans
    from planfreeze.resolve import find_plans

    with exit_codes():
        opened = open_store(store, writable=False, is_trusted=trust_store)
        plans = find_plans(opened, plan)
        packed = pack_plans(plans, opened, output, key=sign)
        print_result(store_reports.packed_json(packed) if as_json else None, lambda: store_reports.packed_text(packed))


def unpack_command(
    pack: Annotated[Path, typer.Argument(help="The pack.")],
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", autocompletion=complete_plans, help="Frozen plan of the pack; default: all of them."),
    ] = None,
    store: StoreOption = None,
    trust_store: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Publish the plans of a pack in a store."""
    from planfreeze import store_reports
    from planfreeze.cache.pack import Pack
    from planfreeze.packs import unpack_plans
    from planfreeze.resolve import find_plans
    from planfreeze.settings import read_settings

    with exit_codes():
        settings = read_settings()
        opened = Pack.open(
            pack, is_trusted=trust_store or settings.is_store_trusted, trusted_keys=settings.trusted_keys
        )
        plans = find_plans(opened, plan or None)
        target = open_store(store, writable=True, is_trusted=trust_store)
        before = {unpacked.name: target.get_ref(unpacked.name) for unpacked in plans}
        unpack_plans(plans, opened, target)
        print_result(
            store_reports.unpacked_json(plans) if as_json else None, lambda: store_reports.unpacked_text(plans)
        )
        for unpacked in plans:
            if before[unpacked.name] not in (None, unpacked.root):
                print_note(f"{unpacked.name} was {before[unpacked.name]}, which stays in the store", is_quiet=quiet)
