"""Options that several commands take, and what they stand for: plans, stores."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, overload

import typer

if TYPE_CHECKING:
    from planfreeze.cache.readable import ReadableStore
    from planfreeze.cache.store import Store
    from planfreeze.plans import Plan

__all__ = [
    "ArchOption",
    "ArmsOption",
    "CapacityOption",
    "FamilyOption",
    "IdsOption",
    "JsonOption",
    "LimitOption",
    "ModelOption",
    "RanksOption",
    "RecordingOption",
    "RootsOption",
    "StoreOption",
    "TrustOption",
    "declare_plans",
    "import_from",
    "open_store",
]

ModelOption = Annotated[
    str | None, typer.Option("--model", help="Catalog name, TOML file, or Hugging Face config.json.")
]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--family", help="Declared family: name or module:attribute, in place of a model; several are allowed."
    ),
]
RanksOption = Annotated[
    int | None, typer.Option("--tp", help="Tensor-parallel ranks. Default: the model's usual number, else 1.")
]
ArchOption = Annotated[
    list[str] | None, typer.Option("--arch", help="Exact architecture such as sm_90a; several are allowed.")
]
CapacityOption = Annotated[
    str | None, typer.Option("--capacity", help="Token capacities, comma separated. Default: the model's.")
]
ArmsOption = Annotated[str | None, typer.Option("--arms", help="inline, expand, native (comma separated) or all.")]
LimitOption = Annotated[int | None, typer.Option("--inline-limit", help="Largest capacity that reads scales inline.")]
IdsOption = Annotated[str | None, typer.Option("--ids", help="Routing id types: int32,int64.")]
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


def declare_plans(
    model: str | None,
    tp: int | None,
    archs: list[str] | None,
    capacity: str | None,
    arms: str | None,
    inline_limit: int | None,
    ids: str | None,
    families: list[str] | None = None,
    recording: Path | None = None,
    source_roots: list[Path] | None = None,
) -> tuple["Plan", ...]:
    """Make one plan per architecture; settings are read here and never again for these plans."""
    of_model = (model, tp, capacity, arms, inline_limit, ids)
    if families:
        if recording is not None or any(option is not None for option in of_model):
            raise typer.BadParameter("it goes with --arch alone, not with a model's options", param_hint="--family")
        return declare_families(families, archs)
    if recording is not None:
        if any(option is not None for option in of_model):
            raise typer.BadParameter("a recording says by itself which programs there are: --model and its options")
        return declare_recorded(recording, archs, source_roots)
    return declare_model(model, tp, archs, capacity, arms, inline_limit, ids)


def declare_recorded(path: Path, archs: list[str] | None, source_roots: list[Path] | None) -> tuple["Plan", ...]:
    """Make one plan per architecture of what a run was recorded with, its kernels' modules where it says or is told."""
    from planfreeze.errors import NothingRecorded
    from planfreeze.recordings import plan_recording, read_recording
    from planfreeze.target import target

    recorded = read_recording(path)
    if not recorded.programs:  # such a one has no architecture either, so that no plan of it would be refused
        raise NothingRecorded(str(path))
    import_from(source_roots or recorded.source_roots)
    names = dict.fromkeys(archs or recorded.archs)
    return tuple(plan_recording(recorded, target(name), path=path) for name in names)


def import_from(roots: Iterable[str | Path]) -> None:
    """Put the folders of recorded kernels in front of the search path, where a script's own folder is."""
    import sys

    sys.path[:0] = [str(Path(root).absolute()) for root in roots]


def declare_model(
    model: str | None,
    tp: int | None,
    archs: list[str] | None,
    capacity: str | None,
    arms: str | None,
    inline_limit: int | None,
    ids: str | None,
) -> tuple["Plan", ...]:
    """Make one plan per architecture of a model."""
    from planfreeze.models import load_model, parse_options
    from planfreeze.plans import make_plan
    from planfreeze.settings import read_settings
    from planfreeze.target import target

    if model is None:
        raise typer.BadParameter("one of --model, --family, --plan is missing", param_hint="--model")
    settings = read_settings()
    options = parse_options(
        inline_limit=settings.csf_inline_max_tokens if inline_limit is None else inline_limit,
        is_csf_inline=settings.is_csf_inline,
        capacities=capacity,
        arms=arms,
        id_types=ids,
    )
    loaded = load_model(model)
    names = dict.fromkeys(archs or [default_arch(loaded.default_arch)])
    ranks = tp if tp is not None else loaded.default_tp or 1
    return tuple(make_plan(loaded, tp=ranks, target=target(name), options=options, source=model) for name in names)


def declare_families(stated: list[str], archs: list[str] | None) -> tuple["Plan", ...]:
    """Make one plan per architecture over all variants of families."""
    from planfreeze.declared import DeclaredFamily
    from planfreeze.errors import UnlistedFamily
    from planfreeze.explanations import find_family
    from planfreeze.plans import plan_families
    from planfreeze.target import target

    names = [name.strip() for text in stated for name in text.split(",")]
    families = []
    for name in names:
        found = find_family(name)
        if not isinstance(found, DeclaredFamily):
            raise UnlistedFamily(found.reference)
        families.append(found)
    archs = archs or [default_arch("sm_120a")]
    return tuple(plan_families(families, names, target=target(name)) for name in dict.fromkeys(archs))


def default_arch(without_device: str) -> str:
    """Return the current device's architecture if planfreeze compiles for it, else the given one."""
    if not Path("/dev/nvidiactl").exists():
        return without_device
    from planfreeze.device import current_arch

    return current_arch() or without_device


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
