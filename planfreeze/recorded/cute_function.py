"""Recorded CuTe DSL functions: all that the DSL traced and compiled one from, and nothing of a launch."""

import sys
from typing import Any, ClassVar

from planfreeze.family import Definition, RecordedSource, family
from planfreeze.payload import Field, Payload
from planfreeze.recorded import no_grid
from planfreeze.recorded.cute_arguments import spell_argument
from planfreeze.recorded.spelling import spell_value
from planfreeze.recorded.values import field_modules, pairs
from planfreeze.target import Target

__all__ = ["CuteFunctionPayload", "captured_values", "cute_function", "function_modules", "spell_parameter"]

# Not text of the program: the fingerprint of the toolchain stands for the first two, the interpreter for the others.
TOOLCHAIN_PACKAGES = frozenset({"cuda", "cutlass"}) | sys.stdlib_module_names


class CuteFunctionPayload(Payload):
    """One variant of a ``@cute.jit`` host function with the kernels it launches.

    Parameters
    ----------
    function : str
        The function, as "module:qualified name"; of a method, below its class.
    closure : tuple of Field
        Of a function inside functions, what it captures, as ``planfreeze.recorded.values`` spells it.
    arguments : tuple of (str, Field)
        Name of every parameter, and what tracing sees of it, as ``planfreeze.recorded.cute_arguments`` describes it.
    options : tuple of (str, Field)
        Compile options that differ from the DSL's defaults, by their classes.
    """

    family_name: ClassVar[str] = "cute_function"

    function: str
    closure: tuple[Field, ...] = ()
    arguments: tuple[Field, ...] = ()
    options: tuple[Field, ...] = ()

    def spell_fields(self) -> dict[str, str]:
        """Return the function, what it captures, its arguments and options."""
        facts: dict[str, str] = {"function": self.function}
        facts |= {name: spell_value(value) for name, value in captured_values(self)}
        facts |= {name: spell_parameter(name, field) for name, field in pairs(self.arguments)}
        facts |= {name: spell_value(value) for name, value in pairs(self.options)}
        return facts


def captured_values(payload: CuteFunctionPayload) -> list[tuple[str, Any]]:
    """Return names and values that a function inside functions captures."""
    return pairs(payload.closure[3]) if payload.closure else []


def spell_parameter(name: str, field: Any) -> str:
    """Return what stands for a parameter, the variable ones included, as people read it."""
    if name.startswith("*"):
        return ", ".join(spell_argument(held[1] if name.startswith("**") else held) for held in field)
    return spell_argument(field)


def function_modules(payload: CuteFunctionPayload) -> tuple[str, ...]:
    """Return the modules of a function and of what it names, but for those that the toolchain stands for."""
    named = (module for value in (payload.closure, payload.arguments) for module in field_modules(value))
    users = (name for name in named if name.partition(".")[0] not in TOOLCHAIN_PACKAGES)
    return tuple(dict.fromkeys((payload.function.partition(":")[0], *users)))


@family(CuteFunctionPayload, version=1)
def cute_function(payload: CuteFunctionPayload, target: Target) -> Definition:
    """Define a recorded CuTe DSL function."""
    return Definition(
        arguments=(),
        source=RecordedSource(
            dialect="cute",
            kernel=payload.function,
            modules=function_modules(payload)[1:],
            facts=tuple(payload.to_fields().items()),
        ),
        grid=no_grid,
    )
