"""The start-up folder on the search path of Python processes: what lets planfreeze act at the start of a child."""

import os
from pathlib import Path

__all__ = ["SEARCH_PATH", "STARTUP_FOLDER", "put_in_front", "take_out"]

SEARCH_PATH = "PYTHONPATH"
STARTUP_FOLDER = str(Path(__file__).parent.absolute() / "startup")


def put_in_front(search_path: str | None) -> str:
    """Return the value of the variable with the start-up folder in front; an empty variable is no entry at all."""
    behind = entries_behind(search_path) if search_path else []
    return os.pathsep.join((STARTUP_FOLDER, *behind))


def take_out(search_path: str | None) -> str | None:
    """Return the value of the variable without the start-up folder; None where nothing is left."""
    return os.pathsep.join(entries_behind(search_path or STARTUP_FOLDER)) or None


def entries_behind(search_path: str) -> list[str]:
    return [entry for entry in search_path.split(os.pathsep) if entry != STARTUP_FOLDER]
