"""Serve Triton: its cache, its C modules, its compiler's version and its autotuners' choices come from a plan.

Triton looks programs up by a key of its own, which the build kept beside each. A program that it finds is written,
with its digest proven, to a folder of this process alone, since Triton reads files. What it does not find goes the
way it would go without planfreeze, up to the guard; the folder then takes the place of Triton's cache.
"""

import base64
import hashlib
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.constants import thaw_constant
from planfreeze.hooks import hook_method
from planfreeze.recorded.triton_kernel import TritonKernelPayload
from planfreeze.serving.misses import ADVICE, describe_miss, explain_lowering, explain_tuning, told
from planfreeze.serving.programs import ServedPlan, Server, note_served
from planfreeze.serving.shelf import TritonShelf, make_shelf, restore_paths
from planfreeze.tuning import find_config, tuner_name, tuning_space

__all__ = ["StoreCache", "server"]

Served = Callable[[], ServedPlan]


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
        folder = self.shelf.folder / key
        self.files.cache_dir, self.files.lock_path = str(folder), str(folder / "lock")
        folder.mkdir(exist_ok=True)

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
    """Return a key as Triton computes it from the form it names folders by; of another form there is no program."""
    try:
        return base64.b32decode(key + "=" * (-len(key) % 8)).hex()
    except ValueError:
        return ""


def explain_miss(shelf: TritonShelf, call: Mapping[str, Any]) -> None:
    """Keep what the nearest program of the plan is to one that Triton does not find, until it would be lowered."""
    if not {"src", "backend", "options", "env_vars"} <= call.keys():
        return  # not triton.compile: nothing is known of the program
    planned = [
        (program.resolved.payload, program.parts)
        for program in shelf.programs.values()
        if isinstance(program.resolved.payload, TritonKernelPayload)
    ]
    message = describe_miss(planned, call["src"], call["backend"], call["options"], call["env_vars"])
    told.message = f"{shelf.served.plan.name} {message}. {ADVICE}"


def install(module: ModuleType, served: Served) -> None:
    """Hook one of Triton's modules."""
    global shelf
    if shelf is None:
        shelf = make_shelf(served(), sys.modules["triton"].__version__)
    HOOKS[module.__name__](module, shelf)


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

    language = {"language": "c++"} if call[1].endswith(".cpp") else {}  # Triton 3.6 builds C alone
    with building:
        module.build.impl = None
        try:
            made: str = _build(*call, [], **language)
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

    def give_choices(original: Any) -> Any:
        def initialize(tuner: Any, *arguments: Any, **options: Any) -> None:
            original(tuner, *arguments, **options)
            for choice in shelf.choices.get(tuner_name(tuner), []):
                if choice.space == space_of(tuner):
                    tuner.cache[tuple(thaw_constant(part) for part in choice.key)] = find_config(tuner, choice)

        return initialize

    hook_method(module.Autotuner, "__init__", give_choices)
    # Around the call, not around a trial: a guard puts its gate in front of whatever makes a trial.
    hook_method(module.Autotuner, "run", lambda original: explain_tuning(original, shelf.served.plan.name))


def space_of(tuner: Any) -> str:
    """Return the digest of what a tuner chooses among; empty where it holds something that no recording can."""
    try:
        return tuning_space(tuner)
    except errors.UnnameableConstant:
        return ""


def hook_sources(module: ModuleType, shelf: TritonShelf) -> None:
    """Explain what is lowered, or refused, because the plan does not have it."""
    owner = getattr(module, "GluonASTSource", None) or module.ASTSource
    hook_method(owner, "make_ir", explain_lowering)


HOOKS = {
    "triton.knobs": hook_knobs,
    "triton.backends.nvidia.compiler": hook_version,
    "triton.runtime.autotuner": hook_autotuner,
    "triton.compiler.compiler": hook_sources,
    "triton.experimental.gluon._runtime": hook_sources,
}
server = Server(modules=tuple(HOOKS), install=install)
