"""The Triton road: JIT calls, warm-up, preload and ``triton.compile``, Triton 3.6 to 3.9.

What counts as an attempt: every call of ``triton.compile``, also one that Triton's cache directory would answer,
because it reads a source, a target and a directory that are no part of a frozen plan. A JIT call whose
specialization is in the kernel's own in-memory cache does not come here and is allowed. Where Triton's cache is
served from a planfreeze store, what counts is the lowering that follows a miss.

Not seen: a backend's later stages called one by one, from IR that was made earlier, without ``triton.compile``.
"""

import sys
from typing import Any

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, Facts, NoAttempt, definition_of, user_location
from planfreeze.guard.roads import Door, Road, watch_doors

__all__ = ["describe_options", "describe_parameters", "make_probe", "name_of", "road"]

COMPILE_PARAMETERS = ("src", "target", "options")
LOWERING_PARAMETERS = ("fn", "src", "context", "options")
IR_PARAMETERS = ("self", "target", "options")
# The options a user chooses; the JIT adds some twenty more with their defaults.
SHOWN_OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "enable_fp_fusion",
    "launch_cooperative_grid",
)


def describe_compile(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
    """Describe a call of ``triton.compile(src, target, options)``."""
    if is_served():
        return NO_ATTEMPT
    return describe_call(COMPILE_PARAMETERS, arguments, options)


def describe_lowering(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call of ``ast_to_ttir(fn, src, context, options, ...)``."""
    return describe_call(LOWERING_PARAMETERS, arguments, options)


def describe_ir(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call of ``IRSource.make_ir(self, target, options, ...)``."""
    return describe_call(IR_PARAMETERS, arguments, options)


def is_served() -> bool:
    """Tell whether Triton's cache is a planfreeze store, so that a compile that hits it lowers nothing."""
    caching = getattr(sys.modules.get("triton.knobs"), "cache", None)
    return bool(getattr(getattr(caching, "manager_class", None), "is_planfreeze_store", False))


def describe_call(parameters: tuple[str, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    call = dict(zip(parameters, arguments, strict=False)) | options
    source = call.get("src", call.get("self"))
    kernel = getattr(source, "fn", None)
    function = getattr(kernel, "fn", kernel)
    return Attempt(
        road="triton",
        kernel=str(getattr(source, "path", source)) if function is None else name_of(function),
        facts=(
            *describe_parameters(source),
            *describe_options(call.get("options")),
            *describe_target(call.get("target")),
        ),
        location=user_location(definition_of(function)),
    )


def name_of(function: object) -> str:
    """Return the qualified name of a function, with its module."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def describe_parameters(source: object) -> Facts:
    """Name each parameter of an AST source with its type and divisibility, or its constant value."""
    constants = getattr(source, "constants", {})
    attributes = getattr(source, "attrs", {})
    return tuple(
        (str(name), describe_parameter(kind, constants.get((index,)), attributes.get((index,))))
        for index, (name, kind) in enumerate(getattr(source, "signature", {}).items())
    )


def describe_parameter(kind: object, constant: object, attributes: object) -> str:
    if kind == "constexpr":
        return describe_constant(constant)
    notes = [
        f"divisible by {fact[1]}" if fact[0] == "tt.divisibility" else f"{fact[0]} {fact[1]}"
        for fact in (attributes if isinstance(attributes, list) else [])
    ]
    return f"{kind}" + (f" ({', '.join(notes)})" if notes else "")


def describe_constant(constant: object) -> str:
    """Spell a constant: the value of a ``constexpr``, the name of a function passed to the kernel."""
    value = getattr(constant, "value", constant)
    function = getattr(value, "fn", None)
    return repr(value) if function is None else name_of(function)


def describe_options(options: Any) -> Facts:
    """Name the options a user chooses, from a dictionary, a backend's options or a kernel's metadata."""
    is_mapping = isinstance(options, dict)
    found = ((name, options.get(name) if is_mapping else getattr(options, name, None)) for name in SHOWN_OPTIONS)
    return tuple((name, str(value)) for name, value in found if value is not None)


def describe_target(target: object) -> Facts:
    if target is None:
        return ()
    return (("target", f"{getattr(target, 'backend', target)}:{getattr(target, 'arch', '')}"),)


def make_probe() -> Any:
    """Make an empty kernel."""
    from triton.runtime.jit import JITFunction

    def probe():  # type: ignore[no-untyped-def]  # an annotation here would be read by Triton
        pass

    return JITFunction(probe)


def make_source() -> Any:
    """Make the source of an empty kernel."""
    from triton.compiler.compiler import ASTSource

    return ASTSource(fn=make_probe(), signature={})


def attempt_compile() -> object:
    """Compile the empty kernel for a fixed target, so that no driver is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as compile_source

    return compile_source(make_source(), target=GPUTarget("cuda", 90, 32))


def attempt_lowering() -> object:
    """Lower the empty kernel without ``triton.compile``; unguarded, it fails for want of options."""
    from triton._C.libtriton import ir

    # Triton 3.6 crashes without a context.
    context = ir.context()
    ir.load_dialects(context)
    return make_source().make_ir(None, None, None, None, context)


def attempt_ir() -> object:
    """Lower IR that was read from a file; unguarded, it fails for want of a module."""
    from triton.compiler.compiler import IRSource

    return IRSource.make_ir(object.__new__(IRSource), None, None, None, None, None)


DOORS = (
    # Every road of Triton ends in this one function object (JITFunction keeps it as self.compile, autotuners and
    # async modes call that, users import it under their own names), before it reads source, cache or driver.
    Door(module="triton.compiler.compiler", path="compile", describe=describe_compile),
    # Second line: the front end itself, for sources lowered by hand or by a copy of triton.compile, and for what a
    # served cache does not have. Triton looks it up at each use and imports its module at the first.
    Door(module="triton.compiler.code_generator", path="ast_to_ttir", describe=describe_lowering),
    # Its counterpart for IR read from files: the last call before a backend's stages.
    Door(module="triton.compiler.compiler", path="IRSource.make_ir", describe=describe_ir),
)

road = Road(
    name="triton",
    package="triton",
    modules=tuple(dict.fromkeys(door.module for door in DOORS)),
    install=watch_doors("triton", DOORS),
    attempts=(attempt_compile, attempt_lowering, attempt_ir),
)
