"""Compile recorded Triton kernels without a device, and the C modules that Triton's runtime launches them with."""

import functools
import hashlib
import json
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import triton
from msgspec import Struct
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.build import _build
from triton.runtime.cache import triton_key

from planfreeze import errors
from planfreeze.compilers import CompiledProgram, check_no_paths
from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.compilers.triton_target import make_current
from planfreeze.constants import thaw_constant, unwrap_kernel
from planfreeze.family import LaunchInfo, RecordedSource
from planfreeze.recorded.triton_companions import KEPT, TRITON_PLACE, UNBUILT
from planfreeze.recorded.triton_kernel import FILE_OPTIONS
from planfreeze.recorded.values import pairs
from planfreeze.target import Target

__all__ = ["compile_program"]

TRITON_FOLDER = str(Path(triton.__file__).parent)
DRIVER_CALL = r"\bcu[A-Z]\w*"


def compile_program(source: RecordedSource, target: Target, text: KeyedText) -> CompiledProgram:
    """Compile a kernel from exactly what Triton's JIT would compile it from, so that its own key comes out.

    Returns
    -------
    CompiledProgram
        With the companions ``triton.json`` (Triton's key, what it was made of, and the metadata that Triton keeps
        beside a cubin) and every C module its runtime needs, by name, digest of its text and Python's suffix;
        ``unbuilt.json`` lists those that could not be built here.

    Raises
    ------
    CompileFailed
        There is no such kernel, or its metadata holds paths of this machine.
    UnkeyedCapture
        The kernel uses something that is not in its key.
    """
    facts = dict(source.facts)
    kernel = find_kernel(source.kernel)
    constants: dict[Any, Any] = {path: thaw_constant(value) for path, value in pairs(facts["constants"])}
    check_captures(source.kernel, (kernel, *constants.values()), text)
    attributes = {path: [list(fact) for fact in known] for path, known in pairs(facts["attributes"])}
    made = source_class(kernel)(kernel, dict(pairs(facts["signature"])), constants, attributes)
    options = {name: thaw_constant(value) for name, value in pairs(facts["options"]) if name != "arch"}
    for name in FILE_OPTIONS & options.keys():
        raise errors.CompileFailed(source.kernel, f"its option {name} names files, which are no part of a key")
    check_no_paths(source.kernel, "ptx_options", options.get("ptx_options"))
    gpu = GPUTarget("cuda", target.sm, 32)
    make_current(gpu)
    with tempfile.TemporaryDirectory(prefix="planfreeze-triton-") as cache, knobs.cache.scope():
        knobs.cache.dir = cache
        compiled = triton.compile(made, target=gpu, options=dict(options))
        (kept,) = (Path(path) for name, path in compiled.metadata_group.items() if name.endswith(".json"))
        metadata = json.loads(kept.read_text())
    modules, unbuilt = host_modules(made, compiled.metadata)
    described = {
        "file": kept.stem,
        "key": compiled.hash,
        "parts": describe_key(made, make_backend(gpu), options),
        "metadata": {name: strip_paths(source.kernel, value) for name, value in metadata.items()},
    }
    info = compiled.metadata
    return CompiledProgram(
        cubin=compiled.asm["cubin"],
        launch=LaunchInfo(
            block=(info.num_warps * info.warp_size, 1, 1),
            cluster=(info.num_ctas, 1, 1),
            shared_bytes=info.shared,
            is_cooperative=bool(info.launch_cooperative_grid),
            is_programmatic=bool(info.launch_pdl),
        ),
        companions=(
            (KEPT, json.dumps(described, sort_keys=True).encode()),
            *modules,
            *([(UNBUILT, json.dumps(unbuilt).encode())] if unbuilt else []),
        ),
    )


def find_kernel(reference: str) -> Any:
    """Import a kernel and return the function below its decorators."""
    module, _, qualname = reference.partition(":")
    kernel = unwrap_kernel(import_module(module), qualname)
    if kernel is None:
        raise errors.CompileFailed(reference, f"{module} has no Triton kernel of that name")
    return kernel


def source_class(kernel: Any) -> Any:
    """Return what Triton describes a kernel of this kind by."""
    if kernel.is_gluon():
        return import_module("triton.experimental.gluon._runtime").GluonASTSource
    return ASTSource


def describe_key(source: ASTSource, backend: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return what Triton's key is made of, so that a key that differs can be explained."""
    stated = {**source.parse_options(), **options}
    parsed = backend.parse_options(dict(stated))
    return {
        "compiler": hashlib.sha256(triton_key().encode()).hexdigest(),
        "source": source.hash(),
        "backend": backend.hash(),
        "options": {name: str(value) for name, value in vars(parsed).items() if name != "extern_libs"},
        "environment": dict(get_cache_invalidating_env_vars()),
    }


def strip_paths(kernel: str, value: Any) -> Any:
    """Replace the folder of Triton in metadata; the same program must give the same bytes wherever Triton is."""
    if isinstance(value, list):
        return [strip_paths(kernel, item) for item in value]
    if isinstance(value, str) and value.startswith(TRITON_FOLDER):
        return TRITON_PLACE + value.removeprefix(TRITON_FOLDER)
    if isinstance(value, str) and value.startswith("/"):
        raise errors.CompileFailed(kernel, f"its metadata holds the path {value}, which would be another one elsewhere")
    return value


class HostModule(Struct, frozen=True):
    """A C module that Triton would build at its first launch."""

    name: str
    text: str
    includes: tuple[str, ...]
    libraries: tuple[str, ...]

    @property
    def file(self) -> str:
        """Name, digest of the text, and the suffix that says for which Python and platform it is."""
        return f"{self.name}-{hashlib.sha256(self.text.encode()).hexdigest()}{sysconfig.get_config_var('EXT_SUFFIX')}"


class BuildCaptured(Exception):
    """Carries what Triton was about to build."""

    def __init__(self, module: HostModule) -> None:
        super().__init__(module)
        self.module = module


def host_modules(source: ASTSource, metadata: Any) -> tuple[list[tuple[str, bytes]], list[list[str]]]:
    """Build the C modules that launching a kernel takes: the driver's and, in Triton 3.6, the kernel's launcher.

    Returns
    -------
    tuple
        File names with contents, and names with reasons of modules that cannot be built here.
    """
    wanted = [capture(driver.CudaUtils)]
    if hasattr(driver, "make_launcher"):  # up to Triton 3.6 or 3.7; later ones launch through the driver's module
        wanted.append(capture(lambda: driver.CudaLauncher(source, metadata)))
    built, unbuilt = [], []
    for module in filter(None, wanted):
        content = build_module(module)
        if isinstance(content, bytes):
            built.append((module.file, content))
        else:
            unbuilt.append([module.name, content])
    return built, unbuilt


def capture(make: Callable[[], object]) -> HostModule | None:
    """Let Triton say what it would build; nothing of it is built or loaded."""

    def stop(
        name: str, path: str, folder: str, library_dirs: object, include_dirs: list[str], libraries: list[str]
    ) -> NoReturn:
        raise BuildCaptured(HostModule(name, Path(path).read_text(), tuple(include_dirs), tuple(libraries)))

    with (
        tempfile.TemporaryDirectory(prefix="planfreeze-triton-") as cache,
        knobs.cache.scope(),
        knobs.build.scope(),
        knobs.nvidia.scope(),
    ):
        knobs.cache.dir, knobs.build.impl, knobs.nvidia.libcuda_path = cache, stop, cache
        try:
            make()
        except BuildCaptured as captured:
            return captured.module
    return None


@functools.cache
def build_module(module: HostModule) -> bytes | str:
    """Build a C module against an empty driver library; return its bytes, or why there are none.

    The library has the functions that the text names: linkers leave out one that resolves nothing, and the module
    would be loaded without the true one.
    """
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed"
    with tempfile.TemporaryDirectory(prefix="planfreeze-host-") as folder:
        library = Path(folder, "libcuda.so.1")
        text = Path(folder, f"{module.name}.c")
        text.write_text(module.text)
        empty = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), "-x", "c", "-"]
        functions = "".join(f"void {name}(void) {{}}\n" for name in sorted(set(re.findall(DRIVER_CALL, module.text))))
        try:
            subprocess.run(empty, check=True, input=functions.encode())
            # The text names its own file in messages; the same text must give the same bytes wherever it is.
            flags = [f"-fmacro-prefix-map={folder}/="]
            lists = ([folder], list(module.includes), list(module.libraries), flags)
            made = _build(module.name, str(text), folder, *lists)
        except subprocess.CalledProcessError as error:
            return f"{compiler} ended with status {error.returncode}"
        return Path(made).read_bytes()
