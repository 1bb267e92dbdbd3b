"""The torch.compile road: first compiles and recompiles of TorchDynamo, torch 2.9 to 2.13.

What counts as an attempt: a function that TorchDynamo starts to trace for a compiler, whatever the backend, because
no graph compiled before fits the call; also ahead of time (``aot_compile``). A call that finds its compiled graph
never comes here, nor does a function that TorchDynamo leaves alone. The program's stance is left as it is: where it
already fails on a recompile, or runs eagerly, nothing is compiled, and only the failure is an attempt.

``torch.export`` and ``torch.jit`` make graphs and no kernels: allowed. With ``torch._dynamo.config.suppress_errors``
torch swallows the error and runs the function eagerly: it is counted, and nothing was compiled.

Not seen: fusers and other compilers inside torch's C++ library, such as those of TorchScript and the jiterator.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.guard.attempts import (
    NO_ATTEMPT,
    Attempt,
    Describe,
    NoAttempt,
    Release,
    Report,
    definition_of,
    user_location,
)
from planfreeze.guard.attributes import set_attribute
from planfreeze.guard.gates import install_gate
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.values import describe_named, shorten

__all__ = ["road"]

TRACER, STANCES, AHEAD = "torch._dynamo.convert_frame", "torch._dynamo.eval_frame", "torch._dynamo.aot_compile"
WRAPPERS = "torch._dynamo.external_utils"


def make_attempt(code: CodeType, names: Mapping[str, object], values: Mapping[str, object], reason: str) -> Attempt:
    kernel, definition = f"{names.get('__name__', '?')}.{code.co_qualname}", f"{code.co_filename}:{code.co_firstlineno}"
    if names.get("__name__") == WRAPPERS and callable(wrapped := values.get("fn")):
        # Torch compiles a function of its own around one it would leave alone, such as its own modules.
        kernel, definition = name_of(wrapped), definition_of(wrapped)
    facts = (describe_named(find_arguments(code, values)), reason)
    return Attempt(
        road="torch-compile",
        kernel=kernel,
        signature="; ".join(fact for fact in facts if fact),
        location=user_location(definition),
    )


def name_of(function: Any) -> str:
    """Return the qualified name of a function, or of the class of a callable instance."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def find_arguments(code: CodeType, values: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call among the local variables of its frame."""
    count = code.co_argcount + code.co_kwonlyargcount
    found = {name: values[name] for name in code.co_varnames[:count] if name in values}
    if code.co_flags & inspect.CO_VARARGS:
        name = code.co_varnames[count]
        more = values.get(name)
        found |= {f"{name}[{index}]": value for index, value in enumerate(more if isinstance(more, tuple) else ())}
    return found


def describe_tracing(parameters: tuple[str, ...]) -> Describe:
    """Return what describes a call of ``convert_frame._compile``, whose parameters differ between versions."""

    def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt | NoAttempt:
        call = dict(zip(parameters, arguments, strict=False)) | options
        if call.get("export"):
            return NO_ATTEMPT
        reason = explain_recompile(call.get("frame"), call.get("compiler_fn"))
        return make_attempt(call["code"], call["globals"], call["locals"], reason)

    return describe


def explain_recompile(frame: Any, backend: Any) -> str:
    """Return torch's words for why no graph compiled before fits the call; nothing for a first compile."""
    # Guards are evaluated once more, on values of the program: an explanation must not become a failure.
    with suppress(Exception):
        from torch._dynamo import eval_frame, guards

        entries = eval_frame._debug_get_cache_entry_list(frame.f_code)
        if entries:
            ask = guards.get_and_maybe_log_recompilation_reasons
            parameters = tuple(inspect.signature(ask).parameters)
            options: dict[str, Any] = {"frame": frame, "skip_logging": True}
            # Torch 2.9 does not ask for a backend, and up to 2.12 the first entry stands for the list.
            if "backend" in parameters:
                options["backend"] = eval_frame.innermost_backend(backend)
            reasons = ask(entries if parameters[0] == "cache_entries" else entries[0], **options)
            # The first line of each says what differs, those below it where the function reads the value.
            told = [" ".join(str(reason).partition("\n")[0].split()) for reason in reasons]
            return shorten("recompile because " + ("; ".join(told) or "no guard of torch says why"))
    return ""


def watch_tracer(module: ModuleType, report: Report) -> Release:
    """Gate the function in which TorchDynamo decides to trace."""
    function = vars(module).get("_compile")
    if not inspect.isfunction(function):
        raise errors.UnwatchableRoad("torch-compile", f"{TRACER}:_compile")
    return install_gate(module, "_compile", describe_tracing(tuple(inspect.signature(function).parameters)), report)


def watch_stances(module: ModuleType, report: Report) -> Release:
    """Hear of calls that torch refuses itself because the program's stance is ``fail_on_recompile``."""
    original = vars(module).get("_callback_from_stance")
    if original is None:
        raise errors.UnwatchableRoad("torch-compile", f"{STANCES}:_callback_from_stance")
    is_live = True

    def choose(callback: Any) -> Any:
        chosen = original(callback)
        if not is_live or chosen in (None, False) or module._stance.stance != "fail_on_recompile":
            return chosen
        return report_refusals(chosen, report)

    set_attribute(module, "_callback_from_stance", choose)

    def release() -> None:
        nonlocal is_live
        is_live = False
        if vars(module).get("_callback_from_stance") is choose:
            set_attribute(module, "_callback_from_stance", original)

    return release


def report_refusals(callback: Callable[..., Any], report: Report) -> Callable[..., Any]:
    """Return a callback for frames that reports what the other one refuses."""

    def convert(frame: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return callback(frame, *arguments, **options)
        except RuntimeError:
            reason = explain_recompile(frame, callback)
            report(make_attempt(frame.f_code, frame.f_globals, frame.f_locals, reason))
            raise

    # Torch looks for the backend under this name, to find what it compiled before.
    convert._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
    return convert


def describe_ahead(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``aot_compile_fullgraph(model, example_inputs, ...)``."""
    model = arguments[0] if arguments else options.get("model")
    return Attempt(
        road="torch-compile",
        kernel=name_of(model),
        signature="ahead of time",
        location=user_location(definition_of(model)),
    )


watch_ahead = watch_doors("torch-compile", (Door(module=AHEAD, path="aot_compile_fullgraph", describe=describe_ahead),))


def install(module: ModuleType, report: Report) -> Release:
    """Put the hooks of one of the road's modules in place."""
    if module.__name__ == STANCES:
        return watch_stances(module, report)
    if module.__name__ == TRACER:
        return watch_tracer(module, report)
    return watch_ahead(module, report)


def attempt_compile() -> object:
    """Compile a function with a backend that would only run its graph."""
    import torch

    return torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))


def attempt_refusal() -> object:
    """Call a function that was not compiled, in a stance that forbids to compile it."""
    import torch

    with torch.compiler.set_stance("fail_on_recompile"):
        return attempt_compile()


road = Road(
    name="torch-compile",
    package="torch",
    modules=(TRACER, STANCES, AHEAD),
    install=install,
    attempts=(attempt_compile, attempt_refusal),
)
