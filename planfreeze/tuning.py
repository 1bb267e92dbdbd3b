"""Choices of Triton's autotuner as values: what it chose among, for which tuning key, and what."""

import hashlib
import sys
from typing import Any

import msgspec

from planfreeze.choices import Choice
from planfreeze.constants import freeze_constant, module_name
from planfreeze.payload import Field

__all__ = ["find_config", "find_hook", "freeze_choice", "tuner_name", "tuning_space"]


def tuner_name(tuner: Any) -> str:
    """Return the tuned function as "module:qualified name", as it will be known when its module is imported."""
    function = tuner.base_fn
    module = sys.modules.get(function.__module__)
    name = function.__module__ if module is None else module_name(module)
    return f"{name}:{function.__qualname__}"


def tuning_space(tuner: Any) -> str:
    """Return a digest of the configurations, of what prunes them, and of the names that make the tuning key.

    Raises
    ------
    UnnameableConstant
        A configuration holds something that has no name.
    """
    described: list[object] = [list(map(str, tuner.keys)), [freeze_config(config) for config in tuner.configs]]
    if tuner.early_config_prune or tuner.perf_model:  # left out where there are none: most tuners try every one
        described += [spell_function(tuner.early_config_prune), spell_function(tuner.perf_model)]
        described += [str(tuner.configs_top_k)]
    return hashlib.sha256(msgspec.msgpack.encode(described)).hexdigest()


def spell_function(function: Any) -> str:
    """Return where the text of a function begins, which tells two of one kernel's tuners apart."""
    function = getattr(function, "func", function)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {code.co_firstlineno}" if code is not None else str(name)


def freeze_config(config: Any) -> tuple[tuple[str, Field], ...]:
    """Return a configuration's constants and options, sorted by name."""
    return tuple((name, freeze_constant(name, value)) for name, value in sorted(config.all_kwargs().items()))


def freeze_choice(tuner: Any, key: tuple[Any, ...], config: Any) -> Choice:
    """Return what a tuner chose as a value.

    Raises
    ------
    UnnameableConstant
        The tuning key or a configuration holds something that has no name.
    """
    return Choice(
        kernel=tuner_name(tuner),
        space=tuning_space(tuner),
        key=tuple(freeze_constant("tuning key", part) for part in key),
        config=freeze_config(config),
    )


def find_config(tuner: Any, choice: Choice) -> Any:
    """Return the tuner's own configuration that a choice stands for, or None."""
    return next((config for config in tuner.configs if freeze_config(config) == choice.config), None)


def find_hook(tuner: Any) -> str | None:
    """Return what a tuner does besides choosing, or None.

    The first call of such a kernel does more than later ones: it clears or restores tensors around the trial runs.
    A choice that is served makes no trial runs, so that the first call would leave other values behind.
    """
    if tuner.reset_to_zero:
        return f"reset_to_zero={tuner.reset_to_zero}"
    if tuner.restore_value:
        return f"restore_value={tuner.restore_value}"
    if getattr(tuner, "user_defined_pre_hook", False) or getattr(tuner, "user_defined_post_hook", False):
        return "a hook of its own around every trial run"
    hooked = next((config for config in tuner.configs if config.pre_hook is not None), None)
    return None if hooked is None else f"pre_hook of {hooked}"
