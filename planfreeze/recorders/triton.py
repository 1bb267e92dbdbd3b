"""The Triton recorder: launches of compiled kernels and choices of autotuners, Triton 3.6 to 3.9.

A launch is seen where every launch takes the kernel's launcher: ``CompiledKernel.run``. Trial runs of an autotuner
are none.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.constants import constant_modules, freeze_constant, module_name, unwrap_kernel
from planfreeze.hooks import hook_method
from planfreeze.payload import Field, Payload, freeze_lists
from planfreeze.recorded.triton_kernel import FILE_OPTIONS, TritonKernelPayload
from planfreeze.recorders.tally import Recorder, Release, Tally
from planfreeze.settings import read_code_generation
from planfreeze.sources import find_source
from planfreeze.target import ARCHS
from planfreeze.tuning import find_hook, freeze_choice, tuner_name

__all__ = ["recorder"]

# Where an option of each compile is kept until its kernel is launched, on the compiled kernel itself.
OPTIONS = "_planfreeze_options"


def install(module: ModuleType, tally: Tally) -> Release:
    """Hook one of Triton's modules."""
    if module.__name__ == "triton.compiler.compiler":
        return hook_launches(module.CompiledKernel, tally)
    if module.__name__ == "triton.runtime.jit":
        return hook_method(module.JITFunction, "_do_compile", lambda original: note_options(original, tally))
    releases = (
        hook_method(module.Autotuner, "_bench", lambda original: try_configuration(original, tally)),
        hook_method(module.Autotuner, "run", lambda original: note_choices(original, tally)),
    )

    def release() -> None:
        for undo in releases:
            undo()

    return release


def hook_launches(kernel_class: type, tally: Tally) -> Release:
    def surround(original: Any) -> property:
        def run(kernel: Any) -> Any:
            tally.count(kernel.hash, describe_kernel, kernel)
            return original.fget(kernel)

        return property(run)

    return hook_method(kernel_class, "run", surround)


def note_options(original: Any, tally: Tally) -> Any:
    """Keep the options that a kernel is compiled with: passes may change what its metadata says of them."""

    def do_compile(
        function: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, *rest: Any
    ) -> Any:
        kernel = original(function, key, signature, device, constants, options, *rest)
        if type(kernel).__name__ == "CompiledKernel":  # not a future, which must not be waited for
            setattr(kernel, OPTIONS, options)
            tally.compile(kernel.hash)
        return kernel

    return do_compile


def try_configuration(original: Any, tally: Tally) -> Any:
    def bench(tuner: Any, *arguments: Any, **options: Any) -> Any:
        with tally.trying():
            return original(tuner, *arguments, **options)

    return bench


def note_choices(original: Any, tally: Tally) -> Any:
    def run(tuner: Any, *arguments: Any, **options: Any) -> Any:
        if len(tuner.configs) > 1:
            if not isinstance(tuner.cache, NotedChoices):
                tuner.cache = NotedChoices(tuner)
            tuner.cache.noted.setdefault(tally, set())
        return original(tuner, *arguments, **options)

    return run


class NotedChoices(dict[Any, Any]):
    """A tuner's choices by tuning key; the tuner looks one up at every call."""

    def __init__(self, tuner: Any) -> None:
        super().__init__(tuner.cache)
        self.tuner = tuner
        # By recording, of which one may run inside another.
        self.noted: dict[Tally, set[Any]] = {}

    def __getitem__(self, key: Any) -> Any:
        config = super().__getitem__(key)
        for tally, noted in tuple(self.noted.items()):
            if tally.is_finished:
                self.noted.pop(tally, None)
            elif key not in noted:
                noted.add(key)
                note_choice(self.tuner, key, config, tally)
        return config


def note_choice(tuner: Any, key: Any, config: Any, tally: Tally) -> None:
    """Note a choice, or why it cannot be served later."""
    hook = find_hook(tuner)
    if hook is not None:
        tally.refuse(tuner_name(tuner), f"its autotuner has {hook}, which a served choice would leave out")
        return
    try:
        tally.choose(freeze_choice(tuner, key, config))
    except errors.UnnameableConstant as error:
        tally.refuse(tuner_name(tuner), f"its autotuner chooses by {error.name} = {error.value}: {error.reason}")


def describe_kernel(kernel: Any, tally: Tally) -> Payload:
    """Describe a compiled kernel by all that Triton compiled it from.

    Raises
    ------
    Unrecordable, UnnameableConstant
        It has no name, or a constant or option that has none.
    """
    source = kernel.src
    function = getattr(source, "fn", None)
    if function is None:
        raise errors.Unrecordable(kernel.name, "it was compiled from IR, not from a kernel")
    name = name_kernel(function)
    target = kernel.metadata.target
    arch = next((arch for arch, known in ARCHS.items() if known.sm == target.arch), None)
    if target.backend != "cuda" or arch is None:
        raise errors.Unrecordable(
            name, f"it runs on {target.backend}:{target.arch}, which planfreeze does not compile for"
        )
    try:
        constants = tuple(
            (path, freeze_constant(spell_path(function, path), value)) for path, value in source.constants.items()
        )
    except errors.UnnameableConstant as error:
        raise errors.Unrecordable(name, f"its constant {error.name} is {error.value}: {error.reason}") from error
    payload = TritonKernelPayload(
        kernel=name,
        signature=tuple((parameter, freeze_type(name, kind)) for parameter, kind in source.signature.items()),
        constants=constants,
        attributes=tuple(
            (path, tuple((str(fact), value) for fact, value in facts)) for path, facts in source.attrs.items()
        ),
        options=describe_options(name, kernel),
    )
    note_surroundings(kernel, arch, payload, tally)
    return payload


def name_kernel(function: Any) -> str:
    """Return the name under which the module of a kernel has it, below its decorators.

    Raises
    ------
    Unrecordable
        No module has it: it was made in a function, by ``exec``, or in an interactive session. Or another process
        would import another module, or none.
    """
    stated = f"{function.fn.__module__}:{function.fn.__qualname__}"
    module = sys.modules.get(function.fn.__module__)
    if module is None or getattr(module, "__file__", None) is None:
        raise errors.Unrecordable(stated, f"there is no file of a module {function.fn.__module__}")
    names = (function.fn.__qualname__, *vars(module))
    found = next((name for name in names if unwrap_kernel(module, name) is function), None)
    if found is None:
        raise errors.Unrecordable(stated, f"{module.__name__} has no such kernel under any name")
    check_importable(stated, module)
    return f"{module_name(module)}:{found}"


def check_importable(kernel: str, module: ModuleType) -> None:
    """Refuse a module that another process would not import by its name from the same file."""
    name, file = module_name(module), Path(module.__file__ or "").resolve()
    try:
        path = find_source(name)
    except errors.SourceUnreadable as error:
        raise errors.Unrecordable(kernel, f"its module {name} has no text") from error
    if path is None or path.resolve() != file:
        raise errors.Unrecordable(
            kernel, f"another process that imports {name} gets {path or 'nothing'}, not {file.name}"
        )


def spell_path(function: Any, path: tuple[int, ...]) -> str:
    """Return the name of the parameter that a place in the signature belongs to."""
    return f"{function.arg_names[path[0]]}{''.join(f'[{index}]' for index in path[1:])}"


def freeze_type(kernel: str, kind: object) -> Field:
    """Return a parameter's type: text, or that of each part of a tuple."""
    if type(kind) is tuple:
        return tuple(freeze_type(kernel, part) for part in kind)
    if type(kind) is not str:
        raise errors.Unrecordable(kernel, f"a parameter has the type {kind!r}, a {type(kind).__name__}")
    return kind


def describe_options(name: str, kernel: Any) -> tuple[tuple[str, Field], ...]:
    """Return the compile options that differ from what the backend would take by itself.

    Raises
    ------
    Unrecordable
        An option cannot be named, or nothing says what the options were.
    """
    from triton.compiler.compiler import make_backend

    backend = make_backend(kernel.metadata.target)
    defaults = vars(backend.parse_options({}))
    options = vars(getattr(kernel, OPTIONS, None) or read_options(name, kernel, backend))
    chosen = {option: value for option, value in options.items() if defaults[option] != value}
    for option in FILE_OPTIONS & chosen.keys():
        raise errors.Unrecordable(name, f"its option {option} is {chosen[option]}, and such files are no part of a key")
    if vars(backend.parse_options(dict(chosen))) != options:
        raise errors.Unrecordable(name, f"its options {chosen} say something else together than each by itself")
    try:
        return tuple((option, freeze_constant(option, value)) for option, value in sorted(chosen.items()))
    except errors.UnnameableConstant as error:
        raise errors.Unrecordable(name, f"its option {error.name} is {error.value}: {error.reason}") from error


def read_options(name: str, kernel: Any, backend: Any) -> Any:
    """Read the options off a kernel that was not compiled under these hooks, and prove them by Triton's own key."""
    import hashlib

    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key

    fields = vars(backend.parse_options({}))
    # Metadata was through JSON, which has no tuples.
    options = backend.parse_options({field: freeze_lists(getattr(kernel.metadata, field)) for field in fields})
    key = get_cache_key(kernel.src, backend, options, get_cache_invalidating_env_vars())
    if hashlib.sha256(key.encode()).hexdigest() != kernel.hash:
        raise errors.Unrecordable(
            name, "it was compiled before the recording began, and nothing says with which options"
        )
    return options


def note_surroundings(kernel: Any, arch: str, payload: TritonKernelPayload, tally: Tally) -> None:
    """Note where a program ran, what compiled it, and where its modules are."""
    import triton
    from triton.compiler.compiler import make_backend

    tally.note("arch", arch)
    tally.note("version", ["triton", triton.__version__])
    for version in re.findall(r"V([0-9.]+)", make_backend(kernel.metadata.target).hash())[:1]:
        tally.note("version", ["ptxas", version])
    for variable, value in read_code_generation():
        tally.note("environment", [variable, value])
    for module in (payload.kernel.partition(":")[0], *constant_modules(payload.constants)):
        tally.note_module(module)


recorder = Recorder(
    modules=("triton.compiler.compiler", "triton.runtime.jit", "triton.runtime.autotuner"), install=install
)
