"""Print what the installed compilers themselves list: their variables with types, their compile options."""

import dataclasses
import json
import sys
import typing
from importlib import import_module
from typing import Any


def triton_variables() -> dict[str, str]:
    """Return every variable that a knob of Triton reads, with the kind of the knob."""
    knobs = import_module("triton.knobs")
    groups = [group for group in vars(knobs).values() if isinstance(group, knobs.base_knobs)]
    described = {name: group.knob_descriptors for group in groups for name in [type(group).__name__]}
    return {knob.key: type(knob).__name__ for group in described.values() for knob in group.values()}


def cute_variables() -> dict[str, str]:
    """Return every variable that a setting of one of the DSLs reads, with its type."""
    import_module("cutlass.cute")
    dsls = import_module("cutlass.cutlass_dsl")
    found = {}
    for dsl in (dsls.CuTeDSL, dsls.CuteExperimentalDSL):
        settings = dsl._get_dsl().envar
        hints = typing.get_type_hints(type(settings))
        for entry in settings._ENV_VAR_SPEC:
            if isinstance(entry.source, str):
                found[f"{settings.prefix}_{entry.source}"] = str(hints[entry.attribute])
    return found


def triton_options() -> dict[str, list[Any]]:
    """Return every field of the backend's options with its type and what it is for sm_90."""
    compiler = import_module("triton.compiler.compiler")
    target = import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    options = compiler.make_backend(target).parse_options({})
    return {field.name: [str(field.type), getattr(options, field.name)] for field in dataclasses.fields(options)}


def cute_options() -> dict[str, Any]:
    """Return every class of compile options with its default."""
    kinds = import_module("cutlass.base_dsl.compiler").CompileOptions().options
    return {kind.__name__: [kind.__mro__[1].__name__, kind._default] for kind in kinds}


if __name__ == "__main__":
    listed = {"variables": triton_variables() | cute_variables(), "triton": triton_options(), "cute": cute_options()}
    json.dump(listed, sys.stdout)
