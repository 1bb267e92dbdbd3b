"""The road of torch's C++ extensions: ``load``, ``load_inline`` and extensions that setuptools builds.

What counts as an attempt: entering a build, also of a library that is up to date on disk, because torch starts ninja
to find that out. A second ``load`` of an extension that this process has built, from unchanged sources, builds
nothing and is allowed.
"""

import inspect
from contextlib import suppress
from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, NoAttempt, user_location
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import shorten

__all__ = ["road"]

MODULE = "torch.utils.cpp_extension"


def make_attempt(kernel: str, signature: str) -> Attempt:
    return Attempt(
        road="cpp-extension",
        kernel=kernel,
        signature=shorten(signature),
        location=user_location("unknown:0"),
        action="build",
    )


def describe_load(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe ``_jit_compile(name, sources, ...)``, under ``load`` and ``load_inline``."""
    from torch.utils import cpp_extension

    names = inspect.signature(cpp_extension._jit_compile).parameters
    call = dict(zip(names, arguments, strict=False)) | options
    return (
        NO_ATTEMPT
        if is_built(call)
        else make_attempt(str(call.get("name")), " ".join(map(str, call.get("sources", ()))))
    )


def is_built(call: dict[str, Any]) -> bool:
    """Tell whether this process built the extension from the same sources and flags.

    Torch decides this itself, but notes at once that it builds: a refusal after that would make it look for a
    library that was never built. The question is put to a copy of its notes.
    """
    from torch.utils import cpp_extension

    notes = cpp_extension.JIT_EXTENSION_VERSIONER
    known = notes.entries.get(call.get("name"))
    # Of another version, or sources that cannot be read: torch will say so, or build.
    with suppress(Exception):
        copy = type(notes)()
        copy.entries = dict(notes.entries)
        is_cuda, is_sycl = call["with_cuda"], call["with_sycl"]
        copy.bump_version_if_changed(
            call["name"],
            call["sources"],
            build_arguments=[
                call[name] for name in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")
            ],
            build_directory=call["build_directory"],
            with_cuda=any(map(cpp_extension._is_cuda_file, call["sources"])) if is_cuda is None else is_cuda,
            with_sycl=any(map(cpp_extension._is_sycl_file, call["sources"])) if is_sycl is None else is_sycl,
            is_python_module=call["is_python_module"],
            is_standalone=call["is_standalone"],
        )
        return known is not None and copy.entries[call["name"]] == known
    return False


def describe_objects(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``_write_ninja_file_and_compile_objects(sources, ...)``, under setuptools."""
    sources = arguments[0] if arguments else options.get("sources", ())
    return make_attempt("an extension", " ".join(map(str, sources)))


def describe_ninja(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``_run_ninja_build(build_directory, ...)``."""
    return make_attempt("an extension", f"in {arguments[0] if arguments else options.get('build_directory')}")


def attempt_load() -> object:
    """Load an extension without a source; unguarded, it fails for want of one."""
    from torch.utils import cpp_extension

    return cpp_extension._jit_compile(
        "planfreeze_probe", [], [], [], [], [], [], "/nonexistent", False, False, False, True, False
    )


def attempt_ninja() -> object:
    """Build in a folder that does not exist."""
    from torch.utils import cpp_extension

    return cpp_extension._run_ninja_build("/nonexistent", False, "a deliberate attempt of planfreeze")


DOORS = (
    Door(module=MODULE, path="_jit_compile", describe=describe_load),
    Door(module=MODULE, path="_write_ninja_file_and_compile_objects", describe=describe_objects),
    # Second line, under both.
    Door(module=MODULE, path="_run_ninja_build", describe=describe_ninja),
)

road = Road(
    name="cpp-extension",
    package="torch",
    modules=(MODULE,),
    install=watch_doors("cpp-extension", DOORS),
    attempts=(attempt_load, attempt_ninja),
)
