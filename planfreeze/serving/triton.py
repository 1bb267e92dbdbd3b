"""Serve Triton: its cache, its C modules, its compiler's version and its autotuners' choices come from a plan.

Triton looks programs up by a key of its own, which the build kept beside each. A program that it finds is written,
with its digest proven, to a folder of this process alone, since Triton reads files. What it does not find goes the
way it would go without planfreeze, up to the guard; the folder then takes the place of Triton's cache.
"""

import atexit
import base64
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from planfreeze.constants import thaw_constant
from planfreeze.errors import UnservablePlan
from planfreeze.plans import Choice
from planfreeze.recorded.triton_kernel import TritonKernelPayload
from planfreeze.resolve import ResolvedProgram
from planfreeze.serving.misses import describe_miss
from planfreeze.serving.programs import ServedPlan, Server, note_served
from planfreeze.tuning import find_config, tuner_name, tuning_space

__all__ = ["StoreCache", "server"]

Served = Callable[[], ServedPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonProgram:
    """A resolved program with what Triton keeps of it."""

    resolved: ResolvedProgram
    file: str
    metadata: Mapping[str, Any]
    parts: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class TritonShelf:
    """What a plan has for Triton, and the folder of this process that Triton reads it from."""

    served: ServedPlan
    programs: dict[str, TritonProgram]
    modules: dict[str, bytes]
    choices: dict[str, list[Choice]]
    folder: Path
    owner: int


def make_shelf(served: ServedPlan) -> TritonShelf:
    """Sort out what a plan has for Triton.

    Raises
    ------
    UnservablePlan
        A program was stored without what Triton needs of it.
    """
    programs, modules, choices = {}, {}, defaultdict(list)
    for resolved in served.programs:
        companions = dict(resolved.companions)
        if "triton.json" not in companions:
            continue
        try:
            kept = json.loads(companions.pop("triton.json"))
            programs[kept["key"]] = TritonProgram(
                resolved=resolved, file=kept["file"], metadata=kept["metadata"], parts=kept["parts"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UnservablePlan(served.plan.name, f"triton.json of {resolved.name}: {error!r}") from error
        modules.update(companions)
    for choice in served.plan.choices:
        choices[choice.kernel].append(choice)
    folder = Path(tempfile.mkdtemp(prefix="planfreeze-triton-"))
    shelf = TritonShelf(
        served=served, programs=programs, modules=modules, choices=choices, folder=folder, owner=os.getpid()
    )
    atexit.register(remove_folder, shelf)
    return shelf


def remove_folder(shelf: TritonShelf) -> None:
    """Remove the folder in the process that made it; a forked child reads its parent's."""
    if shelf.owner == os.getpid():
        shutil.rmtree(shelf.folder, ignore_errors=True)


# Triton makes its caches by class and key alone: the class has to find the shelf of this process.
shelf: TritonShelf | None = None


class StoreCache:
    """Triton's cache of one key, answered from the plan.

    Notes
    -----
    ``put`` after a miss keeps files in the folder of this process, as Triton's own cache would: the store is never
    written.
    """

    is_planfreeze_store = True

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        from triton.runtime.cache import FileCacheManager

        assert shelf is not None
        self.shelf = shelf
        self.program = None
        if override or dump:  # the user's own folders of IR to take or to leave
            self.files = FileCacheManager(key, override=override, dump=dump)
            return
        self.program = self.shelf.programs.get(decode_key(key))
        self.files = FileCacheManager.__new__(FileCacheManager)
        self.files.key = key
        self.files.cache_dir = str(self.shelf.folder / key)
        self.files.lock_path = str(self.shelf.folder / key / "lock")
        Path(self.files.cache_dir).mkdir(exist_ok=True)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the files of a compiled kernel."""
        if self.program is None or filename != f"{self.program.file}.json":
            found: dict[str, str] | None = self.files.get_group(filename)
            if found is None:
                explain_miss(self.shelf, sys._getframe(1).f_locals)
            return found
        note_served(self.shelf.served, self.program.resolved)
        metadata = json.dumps(restore_paths(self.program.metadata)).encode()
        cubin = self.program.resolved.cubin
        return {
            filename: self._write(filename, metadata),
            f"{self.program.file}.cubin": self._write(f"{self.program.file}.cubin", cubin),
        }

    def get_file(self, filename: str) -> str | None:
        """Return one file."""
        found: str | None = self.files.get_file(filename)
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keep a file for this process."""
        path: str = self.files.put(data, filename, binary)
        return path

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Keep which files belong together for this process."""
        path: str = self.files.put_group(filename, group)
        return path

    def _write(self, filename: str, content: bytes) -> str:
        path = Path(self.files.cache_dir, filename)
        partial = path.with_name(f"{filename}.{os.getpid()}.{threading.get_ident()}")
        partial.write_bytes(content)
        partial.replace(path)
        return str(path)


def decode_key(key: str) -> str:
    """Return a key as Triton computes it from the form it names folders by."""
    return base64.b32decode(key + "=" * (-len(key) % 8)).hex()


def restore_paths(value: Any) -> Any:
    """Put the folder of the Triton that is installed here back into metadata."""
    import triton

    if isinstance(value, Mapping):
        return {name: restore_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [restore_paths(item) for item in value]
    if isinstance(value, str) and value.startswith("$TRITON/"):
        return str(Path(triton.__file__).parent) + value.removeprefix("$TRITON")
    return value


def explain_miss(shelf: TritonShelf, call: Mapping[str, Any]) -> None:
    """Warn what the nearest program of the plan is to one that Triton does not find, and where they differ."""
    if not {"src", "backend", "options", "env_vars"} <= call.keys():
        return  # not triton.compile: nothing is known of the program
    planned = [
        (program.resolved.payload, program.parts)
        for program in shelf.programs.values()
        if isinstance(program.resolved.payload, TritonKernelPayload)
    ]
    message = describe_miss(planned, call["src"], call["backend"], call["options"], call["env_vars"])
    warnings.warn(f"{shelf.served.plan.name} {message}", RuntimeWarning, stacklevel=3)


def install(module: ModuleType, served: Served) -> None:
    """Hook one of Triton's modules."""
    global shelf
    if shelf is None:
        shelf = make_shelf(served())
    {
        "triton.knobs": hook_knobs,
        "triton.backends.nvidia.compiler": hook_version,
        "triton.runtime.autotuner": hook_autotuner,
    }[module.__name__](module, shelf)


def hook_knobs(module: ModuleType, shelf: TritonShelf) -> None:
    """Make Triton ask for programs and C modules here."""
    module.cache.manager_class = StoreCache

    def build(name: str, source: str, folder: str, *directories: Any) -> str:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        content = shelf.modules.get(f"{name}-{digest}{suffix}")
        if content is None:
            return build_unserved(module, build, name, source, folder, *directories)
        path = Path(folder, f"{name}{suffix}")
        path.write_bytes(content)
        return str(path)

    module.build.impl = build


building = threading.RLock()


def build_unserved(module: ModuleType, served: Any, *call: Any) -> str:
    """Build a C module that the plan does not have, the way Triton does: past the guard, by a C compiler."""
    from triton.runtime.build import _build

    with building:
        module.build.impl = None
        try:
            made: str = _build(*call, [])
        finally:
            module.build.impl = served
    return made


def hook_version(module: ModuleType, shelf: TritonShelf) -> None:
    """Answer which ptxas there is by what the build used: asking it starts a process, and it is not used."""
    ask = module.get_ptxas_version
    known = {}
    for program in shelf.programs.values():
        version, _, arch = str(program.parts["backend"]).rpartition("-")
        known[int(arch)] = version

    def get_ptxas_version(arch: int = 80) -> str:
        version: str = known[arch] if arch in known else ask(arch)
        return version

    module.get_ptxas_version = get_ptxas_version  # type: ignore[attr-defined]


def hook_autotuner(module: ModuleType, shelf: TritonShelf) -> None:
    """Make every autotuner begin with the choices of the plan."""
    initialize = module.Autotuner.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        initialize(self, *arguments, **options)
        recorded = shelf.choices.get(tuner_name(self), [])
        space = tuning_space(self) if recorded else ""
        for choice in recorded:
            config = find_config(self, choice) if choice.space == space else None
            if config is not None:
                self.cache[tuple(thaw_constant(part) for part in choice.key)] = config

    module.Autotuner.__init__ = __init__


server = Server(
    modules=("triton.knobs", "triton.backends.nvidia.compiler", "triton.runtime.autotuner"), install=install
)
