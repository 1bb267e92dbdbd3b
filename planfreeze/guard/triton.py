"""The Triton road: JIT calls, warm-up, preload, autotuning and ``triton.compile``, Triton 3.6 to 3.9.

What counts as an attempt: every call of ``triton.compile``, also one that Triton's cache directory would answer,
because it reads a source, a target and a directory that are no part of a frozen plan. A JIT call whose
specialization is in the kernel's own in-memory cache does not come here and is allowed.

Not seen: a backend's later stages called one by one, from IR that was made earlier, without ``triton.compile``.
"""

from typing import Any

from planfreeze.guard.attempts import Attempt, definition_of, user_location
from planfreeze.guard.roads import Door, Road, watch_doors

__all__ = ["road"]

COMPILE_PARAMETERS = ("src", "target", "options")
# The options a user chooses; the JIT adds some twenty more with their defaults.
SHOWN_OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "enable_fp_fusion",
    "launch_cooperative_grid",
)


def describe_compile(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call of ``triton.compile(src, target, options)``."""
    call = dict(zip(COMPILE_PARAMETERS, arguments, strict=False)) | options
    facts = describe_parameters(call.get("src"))
    chosen = call.get("options") or {}
    facts += [f"{name}={chosen[name]}" for name in SHOWN_OPTIONS if chosen.get(name) is not None]
    target = call.get("target")
    if target is not None:
        facts.append(f"target={getattr(target, 'backend', target)}:{getattr(target, 'arch', '')}")
    return make_attempt(call.get("src"), ", ".join(facts))


def describe_lowering(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call of ``ast_to_ttir(fn, src, ...)``."""
    source = arguments[1] if len(arguments) > 1 else options.get("src")
    return make_attempt(source, ", ".join(describe_parameters(source)))


def make_attempt(source: object, signature: str) -> Attempt:
    kernel = getattr(source, "fn", None)
    function = getattr(kernel, "fn", kernel)
    return Attempt(
        road="triton",
        kernel=str(source) if function is None else name_of(function),
        signature=signature,
        location=user_location(definition_of(function)),
    )


def name_of(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def describe_parameters(source: object) -> list[str]:
    """Name each parameter with its type and divisibility, or its constant value."""
    constants = getattr(source, "constants", {})
    attributes = getattr(source, "attrs", {})
    return [
        describe_parameter(name, kind, constants.get((index,)), attributes.get((index,)))
        for index, (name, kind) in enumerate(getattr(source, "signature", {}).items())
    ]


def describe_parameter(name: str, kind: object, constant: object, attributes: object) -> str:
    if kind == "constexpr":
        return f"{name}={describe_constant(constant)}"
    notes = [
        f"divisible by {fact[1]}" if fact[0] == "tt.divisibility" else f"{fact[0]} {fact[1]}"
        for fact in (attributes if isinstance(attributes, list) else [])
    ]
    return f"{name}: {kind}" + (f" ({', '.join(notes)})" if notes else "")


def describe_constant(constant: object) -> str:
    """Spell a constant: the value of a ``constexpr``, the name of a function passed to the kernel."""
    value = getattr(constant, "value", constant)
    function = getattr(value, "fn", None)
    return repr(value) if function is None else name_of(function)


def make_probe() -> Any:
    """Make the source of an empty kernel."""
    from triton.compiler.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    def probe():  # type: ignore[no-untyped-def]  # an annotation here would be read by Triton
        pass

    return ASTSource(fn=JITFunction(probe), signature={})


def attempt_compile() -> object:
    """Compile the empty kernel for a fixed target, so that no driver is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as compile_source

    return compile_source(make_probe(), target=GPUTarget("cuda", 90, 32))


def attempt_lowering() -> object:
    """Lower the empty kernel without ``triton.compile``; unguarded, it fails for want of options."""
    from triton._C.libtriton import ir

    # Triton 3.6 crashes without a context.
    context = ir.context()
    ir.load_dialects(context)
    return make_probe().make_ir(None, None, None, None, context)


DOORS = (
    # Every road of Triton ends in this one function object (JITFunction keeps it as self.compile, autotuners and
    # async modes call that, users import it under their own names), before it reads source, cache or driver.
    Door(module="triton.compiler.compiler", path="compile", describe=describe_compile),
    # Second line: the front end itself, for sources lowered by hand or by a copy of triton.compile. Triton looks
    # it up at each use and imports its module at the first.
    Door(module="triton.compiler.code_generator", path="ast_to_ttir", describe=describe_lowering),
)

road = Road(
    name="triton",
    package="triton",
    modules=tuple(door.module for door in DOORS),
    install=watch_doors("triton", DOORS),
    attempts=(attempt_compile, attempt_lowering),
)
