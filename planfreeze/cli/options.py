"""Options that several commands take, and the store that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, overload

import typer

from planfreeze.cli.completions import complete_archs

if TYPE_CHECKING:
    from planfreeze.cache.readable import ReadableStore
    from planfreeze.cache.store import Store

__all__ = [
    "ArchOption",
    "JsonOption",
    "QuietOption",
    "RecordingOption",
    "RootsOption",
    "StoreOption",
    "TrustOption",
    "open_store",
]

ArchOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arch", autocompletion=complete_archs, help="Exact architecture such as sm_90a; several are allowed."
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        readable=False,
        help="The store, or a pack to read. Default: PLANFREEZE_STORE, else the user's cache.",
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-store", help="Take an unpinned plan from a store that others can write.")
]
RecordingOption = Annotated[
    Path | None, typer.Option("--plan", help="A recording, as planfreeze record writes it, instead of a model.")
]
RootsOption = Annotated[
    list[Path] | None,
    typer.Option("--source-root", help="Folder that recorded kernels are imported from. Default: as recorded."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress and no notes; the result and errors stay.")
]


@overload
def open_store(path: Path | None, *, writable: Literal[True], is_trusted: bool = False) -> "Store": ...


@overload
def open_store(path: Path | None, *, writable: Literal[False], is_trusted: bool = False) -> "ReadableStore": ...


def open_store(path: Path | None, *, writable: bool, is_trusted: bool = False) -> "ReadableStore":
    """Open the store that was named, or the one of the settings; for reading it may be a pack."""
    from planfreeze.cache.readable import open_readable
    from planfreeze.cache.store import Store
    from planfreeze.settings import read_settings, store_path

    settings = read_settings()
    named, is_trusted = path or store_path(settings), is_trusted or settings.is_store_trusted
    if writable:
        return Store.open(named, writable=True, is_trusted=is_trusted)
    return open_readable(named, is_trusted=is_trusted, trusted_keys=settings.trusted_keys)
