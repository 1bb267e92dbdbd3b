"""Hide every compiler from this process, and watch that none is started."""

import os
import shutil
import sys
from typing import Any

HIDDEN_MODULES = ("triton", "cutlass", "nvidia_cutlass_dsl")
HIDDEN_COMMANDS = ("nvcc", "gcc", "cc", "g++", "clang", "ptxas", "cicc", "ninja")
SPAWNS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system")


class Blindfold:
    """In force from when it is made; ``report`` says what was hidden and what was started."""

    def __init__(self) -> None:
        assert not loaded_modules(), f"{loaded_modules()} were imported before"
        self.spawned: list[str] = []
        for name in HIDDEN_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]  # how an import is made to fail
        os.environ["PATH"] = "/nonexistent"
        os.environ.pop("CUDA_HOME", None)
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in SPAWNS:
            self.spawned.append(f"{event} {arguments[0]!r}")

    def report(self) -> dict[str, Any]:
        """Return the proof."""
        return {
            "modules_loaded": loaded_modules(),
            "commands_found": [name for name in HIDDEN_COMMANDS if shutil.which(name)],
            "compilers_started": [text for text in self.spawned if any(name in text for name in HIDDEN_COMMANDS)],
            "processes_started": self.spawned,
        }


def loaded_modules() -> list[str]:
    """Return the modules of compilers that are loaded."""
    return sorted(name for name, module in sys.modules.items() if module and name.partition(".")[0] in HIDDEN_MODULES)
