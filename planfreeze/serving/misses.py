"""Misses: where a Triton program that a plan does not hold differs from the nearest one that it does."""

import hashlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from planfreeze import errors
from planfreeze.constants import freeze_constant, spell_constant
from planfreeze.guard.attempts import definition_of, user_location
from planfreeze.payload import spell_differences
from planfreeze.recorded.triton_kernel import TritonKernelPayload, spell_parameters
from planfreeze.tuning import tuner_name

__all__ = ["ADVICE", "describe_miss", "explain_lowering", "explain_tuning", "told"]

Facts = Mapping[str, str]
ADVICE = "Run: planfreeze record -o FILE -- COMMAND, and planfreeze build --plan FILE"


class Told(threading.local):
    """What this thread was told of the program that Triton has just not found."""

    message = ""


told = Told()


def explain_lowering(original: Any) -> Any:
    """Surround the step that lowers a kernel: a refusal says what the plan has instead, and so does a warning."""

    def make_ir(source: Any, *arguments: Any, **options: Any) -> Any:
        message, told.message = told.message, ""
        try:
            made = original(source, *arguments, **options)
        except errors.CompilationForbidden as error:
            raise errors.CompilationForbidden(error.attempt, f"{error.explanation} {message}".strip()) from error
        except Exception:
            warn(source, message)
            raise
        warn(source, message)
        return made

    return make_ir


def warn(source: Any, message: str) -> None:
    """Warn, at the line of the user, of a program that was lowered because the plan does not have it."""
    if message:
        function = getattr(getattr(source, "fn", None), "fn", None)
        filename, _, line = user_location(definition_of(function)).rpartition(":")
        warnings.warn_explicit(message, RuntimeWarning, filename, int(line))


def explain_tuning(original: Any, plan: str) -> Any:
    """Surround the call of a tuned kernel: a refused trial says that the plan has no choice for this tuning key."""

    def run(tuner: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(tuner, *arguments, **options)
        except errors.CompilationForbidden as error:
            if error.attempt.road != "triton-autotune":
                raise
            keys = ", ".join(map(repr, tuner.cache)) or "none"
            missing = f"{plan} holds no choice of {tuner_name(tuner)} for this tuning key; it has those for {keys}."
            explained = f"{error.explanation} {missing} {ADVICE}".strip()
            raise errors.CompilationForbidden(error.attempt, explained) from error

    return run


def describe_miss(
    planned: Sequence[tuple[TritonKernelPayload, Mapping[str, Any]]],
    source: Any,
    backend: Any,
    options: Any,
    environment: Any,
) -> str:
    """Say which part of Triton's key differs from the nearest planned program of the same kernel.

    Parameters
    ----------
    planned : sequence of (Payload, Mapping)
        The plan's programs: payload of a recorded Triton kernel, and the parts that Triton's key was made of.
    source, backend, options, environment
        What Triton is about to compile, as it hands them around.
    """
    name = getattr(getattr(source, "fn", None), "__qualname__", str(source))
    same = [(payload, parts) for payload, parts in planned if payload.kernel.rpartition(":")[2] == name]
    if not same:
        return f"holds no program of the kernel {name}"
    asked = asked_facts(source)
    payload, parts = min(same, key=lambda pair: len(spell_differences(pair[0].spell_parameters(), asked)))
    changes = [*spell_differences(payload.spell_parameters(), asked)]
    # The build keeps all options but this one, which holds paths.
    chosen = {name: str(value) for name, value in vars(options).items() if name != "extern_libs"}
    changes += spell_differences(parts["options"], chosen)
    if parts["backend"] != backend.hash():
        changes.append("another architecture or ptxas")
    changes += spell_differences(parts["environment"], dict(environment))
    if not changes and parts["source"] != source.hash():
        changes.append("the text of the kernel or of what it calls")
    if not changes and parts["compiler"] != compiler_digest():
        changes.append("another Triton, or Triton for another Python")
    return f"holds {name} otherwise; planned -> asked: {'; '.join(changes) or 'nothing that is known of'}"


def compiler_digest() -> str:
    """Return the digest of what Triton hashes of itself."""
    from triton.runtime.cache import triton_key

    return hashlib.sha256(triton_key().encode()).hexdigest()


def asked_facts(source: Any) -> Facts:
    """Return parameters of what Triton is about to compile by name."""
    constants = {path: spell_asked(value) for path, value in getattr(source, "constants", {}).items()}
    attributes = {path: list(map(tuple, facts)) for path, facts in getattr(source, "attrs", {}).items()}
    return spell_parameters(source.signature.items(), constants, attributes)


def spell_asked(value: object) -> str:
    try:
        return spell_constant(freeze_constant("", value))
    except errors.UnnameableConstant:
        return f"an unnamed {type(value).__name__}"
