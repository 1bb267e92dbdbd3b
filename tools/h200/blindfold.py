"""Hide every compiler from this process, and watch that none is started."""

import importlib.abc
import os
import shutil
import sys
from typing import Any

HIDDEN_MODULES = ("triton", "cutlass", "nvidia_cutlass_dsl")
HIDDEN_COMMANDS = ("nvcc", "gcc", "cc", "g++", "clang", "ptxas", "cicc", "ninja")
SPAWNS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system")


class HidingFinder(importlib.abc.MetaPathFinder):
    """Refuses to find a compiler's modules."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.partition(".")[0] in HIDDEN_MODULES:
            raise ModuleNotFoundError(f"{fullname} is hidden from this process", name=fullname)


class Blindfold:
    """In force from when it is made; ``report`` says what was hidden and what was started."""

    def __init__(self) -> None:
        loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(HIDDEN_MODULES))
        assert not loaded, f"{loaded} were imported before"
        self.spawned: list[str] = []
        sys.meta_path.insert(0, HidingFinder())
        os.environ["PATH"] = "/nonexistent"
        os.environ.pop("CUDA_HOME", None)
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in SPAWNS:
            self.spawned.append(f"{event} {arguments[0]!r}")

    def report(self) -> dict[str, Any]:
        """Return the proof."""
        return {
            "modules_loaded": sorted({name.partition(".")[0] for name in sys.modules} & set(HIDDEN_MODULES)),
            "commands_found": [name for name in HIDDEN_COMMANDS if shutil.which(name)],
            "processes_started": self.spawned,
        }
