"""Options that several commands take, and what they stand for: plans, stores."""

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
    "IdsOption",
    "JsonOption",
    "LimitOption",
    "ModelOption",
    "RanksOption",
    "StoreOption",
    "TrustOption",
    "declare_plans",
    "open_store",
]

ModelOption = Annotated[
    str | None, typer.Option("--model", help="Catalog name, TOML file, or Hugging Face config.json.")
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def declare_plans(
    model: str | None,
    tp: int | None,
    archs: list[str] | None,
    capacity: str | None,
    arms: str | None,
    inline_limit: int | None,
    ids: str | None,
) -> tuple["Plan", ...]:
    """Make one plan per architecture; settings are read here and never again for these plans."""
    from planfreeze.models import load_model, parse_options
    from planfreeze.plans import make_plan
    from planfreeze.settings import read_settings
    from planfreeze.target import target

    if model is None:
        raise typer.BadParameter("--model is missing", param_hint="--model")
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
