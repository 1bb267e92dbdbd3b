"""The shelf of a process: what a plan has for Triton, and the folder that Triton reads it from."""

import atexit
import json
import os
import shutil
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from planfreeze import errors
from planfreeze.choices import Choice
from planfreeze.recorded.triton_companions import KEPT, TRITON_PLACE
from planfreeze.resolve import ResolvedProgram
from planfreeze.serving.programs import ServedPlan

__all__ = ["TritonProgram", "TritonShelf", "make_shelf", "restore_paths"]


class TritonProgram(Struct, frozen=True, kw_only=True):
    """A resolved program with what Triton keeps of it."""

    resolved: ResolvedProgram
    file: str
    metadata: Mapping[str, Any]
    parts: Mapping[str, Any]


class TritonShelf(Struct, kw_only=True):
    """What a plan has for Triton, and the folder of this process that Triton reads it from."""

    served: ServedPlan
    programs: dict[str, TritonProgram]
    modules: dict[str, bytes]
    choices: dict[str, list[Choice]]
    folders: dict[int, Path]

    @property
    def folder(self) -> Path:
        """The folder of this process; a forked child makes its own, since its parent removes the other."""
        process = os.getpid()
        if process not in self.folders:
            self.folders[process] = Path(tempfile.mkdtemp(prefix="planfreeze-triton-"))
        return self.folders[process]


def make_shelf(served: ServedPlan, version: str) -> TritonShelf:
    """Sort out what a plan has for the Triton of this version.

    Raises
    ------
    UnservablePlan
        A program was stored without what Triton needs of it, or for another Triton or Python.
    """
    programs, modules, choices = {}, {}, defaultdict(list)
    for resolved in served.programs:
        companions = dict(resolved.companions)
        if KEPT not in companions:
            continue
        try:
            kept = json.loads(companions.pop(KEPT))
            programs[kept["key"]] = TritonProgram(
                resolved=resolved, file=kept["file"], metadata=kept["metadata"], parts=kept["parts"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise errors.UnservablePlan(served.plan.name, f"{KEPT} of {resolved.name}: {error!r}") from error
        check_versions(served.plan.name, kept["metadata"], tuple(companions), version)
        modules.update(companions)
    for choice in served.plan.choices:
        choices[choice.kernel].append(choice)
    made = TritonShelf(served=served, programs=programs, modules=modules, choices=choices, folders={})
    atexit.register(remove_folder, made)
    return made


def check_versions(plan: str, metadata: Mapping[str, Any], companions: tuple[str, ...], version: str) -> None:
    """Refuse a program at the start that would be missed at its launch: Triton's keys differ with both."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built_with = metadata.get("triton_version")
    if built_with != version:
        raise errors.UnservablePlan(plan, f"it was built with Triton {built_with}, and {version} is installed")
    foreign = [file for file in companions if file.endswith(".so") and not file.endswith(suffix)]
    if foreign:
        raise errors.UnservablePlan(plan, f"it was built for another Python: {foreign[0]} does not end in {suffix}")


def remove_folder(shelf: TritonShelf) -> None:
    """Remove the folder of this process, where it made one."""
    folder = shelf.folders.get(os.getpid())
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def restore_paths(value: Any) -> Any:
    """Put the folder of the Triton that is installed here back into metadata."""
    import triton

    if isinstance(value, Mapping):
        return {name: restore_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [restore_paths(item) for item in value]
    if isinstance(value, str) and value.startswith(f"{TRITON_PLACE}/"):
        return str(Path(triton.__file__).parent) + value.removeprefix(TRITON_PLACE)
    return value
