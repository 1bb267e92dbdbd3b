"""What to plan: the options by which it is asked for, as one value, and the plans that they stand for."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from planfreeze.cli.completions import complete_models, complete_offered_families
from planfreeze.cli.options import ArchOption, RootsOption

if TYPE_CHECKING:
    from planfreeze.plans import Plan

__all__ = ["PlanRequest", "declare_plans", "import_from", "takes_request"]


class PlanRequest(NamedTuple):
    """What to plan: a model at its capacities, or families. What is None was not given.

    A recording is named apart from it, by ``--plan``; of this it goes with architectures and folders alone.
    """

    model: str | None = None
    tp: int | None = None
    arch: tuple[str, ...] | None = None
    capacity: str | None = None
    arms: str | None = None
    inline_limit: int | None = None
    ids: str | None = None
    family: tuple[str, ...] | None = None
    source_root: tuple[Path, ...] | None = None

    @property
    def is_of_model(self) -> bool:
        """Whether a model or any option of one is given."""
        of_model = (self.model, self.tp, self.capacity, self.arms, self.inline_limit, self.ids)
        return any(option is not None for option in of_model)


# How the command line asks for each field of a request.
OPTIONS: dict[str, Any] = {
    "model": Annotated[
        str | None,
        typer.Option(
            "--model", autocompletion=complete_models, help="Catalog name, TOML file, or Hugging Face config.json."
        ),
    ],
    "tp": Annotated[
        int | None, typer.Option("--tp", help="Tensor-parallel ranks. Default: the model's usual number, else 1.")
    ],
    "arch": ArchOption,
    "capacity": Annotated[
        str | None, typer.Option("--capacity", help="Token capacities, comma separated. Default: the model's.")
    ],
    "arms": Annotated[str | None, typer.Option("--arms", help="inline, expand, native (comma separated) or all.")],
    "inline_limit": Annotated[
        int | None,
        typer.Option("--inline-limit", help="Largest capacity that reads scales inline. Default: the architecture's."),
    ],
    "ids": Annotated[str | None, typer.Option("--ids", help="Routing id types: int32,int64.")],
    "family": Annotated[
        list[str] | None,
        typer.Option(
            "--family",
            autocompletion=complete_offered_families,
            help="Declared family: name or module:attribute, in place of a model; several are allowed.",
        ),
    ],
    "source_root": RootsOption,
}


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Let the command line ask for a command's ``request`` by an option for each of its fields."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        asked = {name: given.pop(name) for name in OPTIONS}
        lists = {name: tuple(value) or None for name, value in asked.items() if isinstance(value, list)}
        command(request=PlanRequest(**asked | lists), **given)

    signature = inspect.signature(command)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in OPTIONS.items()
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "request"
    ]
    asked_for = signature.replace(parameters=[*options, *own])
    called.__signature__ = asked_for  # type: ignore[attr-defined]
    called.__annotations__ = {name: parameter.annotation for name, parameter in asked_for.parameters.items()}
    return called


def declare_plans(request: PlanRequest, recording: Path | None) -> tuple["Plan", ...]:
    """Make one plan per architecture; settings are read here and never again for these plans."""
    if request.family is not None:
        if recording is not None or request.is_of_model:
            raise typer.BadParameter("it goes with --arch alone, not with a model's options", param_hint="--family")
        return declare_families(request.family, request.arch)
    if recording is not None:
        if request.is_of_model:
            raise typer.BadParameter("a recording says by itself which programs there are: --model and its options")
        return declare_recorded(recording, request)
    return declare_model(request)


def declare_recorded(path: Path, request: PlanRequest) -> tuple["Plan", ...]:
    """Make one plan per architecture of what a run was recorded with, its kernels' modules where it says or is told."""
    from planfreeze.errors import NothingRecorded
    from planfreeze.recordings import plan_recording, read_recording
    from planfreeze.target import target

    recorded = read_recording(path)
    if not recorded.programs:  # such a one has no architecture either, so that no plan of it would be refused
        raise NothingRecorded(str(path))
    import_from(request.source_root or recorded.source_roots)
    names = dict.fromkeys(request.arch or recorded.archs)
    return tuple(plan_recording(recorded, target(name), path=path) for name in names)


def import_from(roots: Iterable[str | Path]) -> None:
    """Put the folders of recorded kernels in front of the search path, where a script's own folder is."""
    import sys

    sys.path[:0] = [str(Path(root).absolute()) for root in roots]


def declare_model(request: PlanRequest) -> tuple["Plan", ...]:
    """Make one plan per architecture of a model."""
    from planfreeze.models import load_model, parse_options
    from planfreeze.plans import make_plan
    from planfreeze.settings import read_settings
    from planfreeze.target import target

    if request.model is None:
        raise typer.BadParameter("one of --model, --family, --plan is missing", param_hint="--model")
    settings = read_settings()
    limit = request.inline_limit
    options = parse_options(
        inline_limit=settings.csf_inline_max_tokens if limit is None else limit,
        is_csf_inline=settings.is_csf_inline,
        capacities=request.capacity,
        arms=request.arms,
        id_types=request.ids,
    )
    model = load_model(request.model)
    names = dict.fromkeys(request.arch or (default_arch(model.default_arch),))
    ranks = request.tp if request.tp is not None else model.default_tp or 1
    return tuple(
        make_plan(model, tp=ranks, target=target(name), options=options, source=request.model) for name in names
    )


def declare_families(stated: Iterable[str], archs: Iterable[str] | None) -> tuple["Plan", ...]:
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
    archs = archs or (default_arch("sm_120a"),)
    return tuple(plan_families(families, names, target=target(name)) for name in dict.fromkeys(archs))


def default_arch(without_device: str) -> str:
    """Return the current device's architecture if planfreeze compiles for it, else the given one."""
    if not Path("/dev/nvidiactl").exists():
        return without_device
    from planfreeze.device import current_arch

    return current_arch() or without_device
