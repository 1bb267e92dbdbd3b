"""What a shell offers behind an option: names that are known here. What cannot be looked up offers nothing."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import typer

__all__ = [
    "complete_archs",
    "complete_families",
    "complete_models",
    "complete_modes",
    "complete_offered_families",
    "complete_plans",
]


def complete_models(incomplete: str) -> list[str]:
    """Offer the models of the catalog and of installed packages; a file's path is left to the shell."""
    from planfreeze.models import model_names

    return starting(model_names(), incomplete)


def complete_archs(incomplete: str) -> list[str]:
    """Offer the architectures that planfreeze compiles for."""
    from planfreeze.target import ARCHS

    return starting(ARCHS, incomplete)


def complete_families(incomplete: str) -> list[str]:
    """Offer the families that ship and those of installed packages."""
    from planfreeze.explanations import family_names

    return starting(family_names(), incomplete)


def complete_offered_families(incomplete: str) -> list[str]:
    """Offer the families of installed packages; those that ship are planned by a model."""
    from planfreeze.entry_points import FAMILIES, list_entry_points

    return starting(list_entry_points(FAMILIES), incomplete)


def complete_modes(incomplete: str) -> list[str]:
    """Offer what a guard can do about an attempt to compile."""
    from planfreeze.runs.guarded import RUN_MODES

    return starting(RUN_MODES, incomplete)


def complete_plans(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of the frozen plans in the pack or store that the words before name, else in the usual one."""
    from planfreeze.cache.readable import open_readable
    from planfreeze.errors import PlanfreezeError
    from planfreeze.settings import read_settings, store_path

    named = context.params.get("pack") or context.params.get("store")
    with contextlib.suppress(PlanfreezeError, OSError):  # a message would tear the line that is being typed
        return starting(open_readable(Path(named or store_path(read_settings()))).list_refs(), incomplete)
    return []


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with what is typed, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))
