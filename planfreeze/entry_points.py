"""Entry points: families and models that installed packages offer by name."""

from importlib import metadata

from planfreeze import errors

__all__ = ["FAMILIES", "MODELS", "find_entry_point", "has_entry_point", "list_entry_points"]

FAMILIES = "planfreeze.families"
"""Names of families, each "module:attribute" of a :class:`planfreeze.family.Family`."""
MODELS = "planfreeze.models"
"""Names of models, each "module:attribute" of a function that returns a model, or of a path of a model's file."""


def find_entry_point(group: str, name: str) -> str | None:
    """Return the "module:attribute" text that an installed package declares for a name, or None. Imports nothing.

    Raises
    ------
    AmbiguousEntryPoint
        Packages declare it differently.
    """
    found = tuple(
        dict.fromkeys(point.value.replace(" ", "") for point in metadata.entry_points(group=group, name=name))
    )
    if len(found) > 1:
        raise errors.AmbiguousEntryPoint(group, name, found)
    return found[0] if found else None


def has_entry_point(group: str, name: str) -> bool:
    """Tell whether any installed package declares a name. Imports nothing."""
    return bool(metadata.entry_points(group=group, name=name))


def list_entry_points(group: str) -> tuple[str, ...]:
    """Return the names that installed packages declare, sorted. Imports nothing."""
    return tuple(sorted(metadata.entry_points(group=group).names))
