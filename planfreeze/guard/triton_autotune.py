"""Triton's autotuner: running configurations against each other to choose one, Triton 3.6 to 3.9.

What counts as an attempt: every configuration that is benchmarked, before it runs. A call whose choice is in the
tuner's memory, in Triton's cache of tuning results, or the only one there is benchmarks nothing. What a
configuration compiles while it is benchmarked is an attempt of its own, on the Triton road.

Not seen: a user's own loop that times kernels.
"""

from typing import Any

from planfreeze.guard.attempts import Attempt, definition_of, user_location
from planfreeze.guard.roads import Door, Road, watch_doors
from planfreeze.guard.triton import make_probe, name_of

__all__ = ["road"]


def describe_benchmark(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe a call of ``Autotuner._bench(self, *args, config, **meta)``."""
    tuner, *values = arguments
    config = options.get("config")
    function = getattr(tuner, "base_fn", None)
    given = dict(zip(getattr(tuner, "arg_names", ()), values, strict=False)) | options
    tuned_by = tuple((name, describe_value(given[name])) for name in getattr(tuner, "keys", ()) if name in given)
    chosen = tuple((name, describe_value(value)) for name, value in getattr(config, "all_kwargs", dict)().items())
    return Attempt(
        road="triton-autotune",
        kernel=name_of(function),
        facts=tuned_by + chosen,
        location=user_location(definition_of(function)),
        action="benchmark",
    )


def describe_value(value: object) -> str:
    """Spell a tuning key or a choice: plain values as they are, all else by type."""
    return repr(value) if value is None or isinstance(value, bool | int | float | str) else type(value).__qualname__


def attempt_tuning() -> object:
    """Choose between two configurations of the empty kernel."""
    from triton.runtime.autotuner import Autotuner, Config

    configs = [Config({}, num_warps=1), Config({}, num_warps=2)]
    tuner = Autotuner(make_probe(), [], configs, [], None, None)
    return tuner.run(grid=(1,), warmup=False)


DOORS = (
    # Between choosing configurations and running the first one; subclasses and copies of run() come here too.
    Door(module="triton.runtime.autotuner", path="Autotuner._bench", describe=describe_benchmark, is_covering=False),
)

road = Road(
    name="triton-autotune",
    package="triton",
    modules=tuple(door.module for door in DOORS),
    install=watch_doors("triton-autotune", DOORS),
    attempts=(attempt_tuning,),
)
