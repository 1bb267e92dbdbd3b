"""The environment in which a command and its children are served from a plan, recorded, or both."""

import os
from collections.abc import Mapping
from pathlib import Path

from planfreeze.key import COMPILE_ENVIRONMENT

__all__ = ["STARTUP_FOLDER", "recording_environment", "serving_environment"]

STARTUP_FOLDER = str(Path(__file__).parent.parent.absolute() / "startup")
SEARCH_PATH = "PYTHONPATH"
# Switches that make a compiler compile although it has found the program.
BYPASSES = ("TRITON_ALWAYS_COMPILE",)


def serving_environment(
    environ: Mapping[str, str], *, store: Path, plan: str, is_trusted: bool = False, log: Path | None = None
) -> dict[str, str]:
    """Return an environment in which Python processes take programs from a store.

    Parameters
    ----------
    environ : Mapping
        What the command would have got.
    store : Path
        The store.
    plan : str
        The frozen plan, pinned as ``NAME@sha256:ROOT`` where all processes shall use the same one.
    is_trusted : bool
        Take a plan without a root digest from this store whoever owns it.
    log : Path, optional
        File to which every process adds the programs that it was served, a line of JSON each.

    Notes
    -----
    Compilers are told to generate code as a build does: a variable set otherwise is replaced, since their keys hold
    it. ``TRITON_ALWAYS_COMPILE`` is left out.
    """
    pinned = {name: value for variables in COMPILE_ENVIRONMENT.values() for name, value in variables.items()}
    served = {"PLANFREEZE_SERVE": plan, "PLANFREEZE_STORE": str(store.absolute())}
    trusted = {"PLANFREEZE_TRUST_STORE": "1"} if is_trusted else {}
    logged = {"PLANFREEZE_SERVE_LOG": str(log.absolute())} if log is not None else {}
    kept = {name: value for name, value in environ.items() if name not in BYPASSES}
    return {**kept, **pinned, **served, **trusted, **logged, SEARCH_PATH: put_in_front(environ.get(SEARCH_PATH))}


def recording_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which Python processes write what they launch to files in ``folder``."""
    recorded = {"PLANFREEZE_RECORD": str(folder.absolute())}
    return {**environ, **recorded, SEARCH_PATH: put_in_front(environ.get(SEARCH_PATH))}


def put_in_front(search_path: str | None) -> str:
    """Return a search path that begins with the start-up folder; an empty variable is no entry at all."""
    entries = [entry for entry in (search_path or "").split(os.pathsep) if entry != STARTUP_FOLDER]
    return os.pathsep.join((STARTUP_FOLDER, *(entries if search_path else ())))
