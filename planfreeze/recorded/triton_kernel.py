"""Recorded Triton kernels: all that Triton compiled one from, and nothing of a launch."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from planfreeze.constants import constant_modules, spell_constant
from planfreeze.family import Definition, RecordedSource, family
from planfreeze.payload import Field, Payload
from planfreeze.recorded import no_grid
from planfreeze.recorded.values import pairs
from planfreeze.target import Target

__all__ = ["FILE_OPTIONS", "TritonKernelPayload", "spell_parameters", "triton_kernel"]

# Compile options that name files: libraries to link, and IR to take in place of the kernel's own.
FILE_OPTIONS = frozenset({"extern_libs", "ir_override"})


class TritonKernelPayload(Payload):
    """One specialisation of a ``@triton.jit`` function.

    Parameters
    ----------
    kernel : str
        The function, as "module:qualified name"; below decorators such as ``triton.autotune``.
    signature : tuple of (str, Field)
        Name and type of every parameter in order; of a tuple, the types of its parts.
    constants : tuple of (tuple of int, Field)
        Where in the signature a constant stands, and what it is, as ``planfreeze.constants`` spells it.
    attributes : tuple of (tuple of int, tuple of (str, Field))
        Where in the signature a parameter stands, and what is known of its value, such as its divisibility.
    options : tuple of (str, Field)
        Compile options that differ from the backend's defaults.
    """

    family_name: ClassVar[str] = "triton_kernel"

    kernel: str
    signature: tuple[Field, ...]
    constants: tuple[Field, ...] = ()
    attributes: tuple[Field, ...] = ()
    options: tuple[Field, ...] = ()

    def spell_parameters(self) -> dict[str, str]:
        """Return every parameter by name: its type and what is known of its value, or its constant."""
        constants = {path: spell_constant(value) for path, value in pairs(self.constants)}
        return spell_parameters(pairs(self.signature), constants, dict(pairs(self.attributes)))

    def spell_fields(self) -> dict[str, str]:
        """Return the kernel, its parameters and options."""
        options = {name: spell_constant(value) for name, value in pairs(self.options)}
        return {"kernel": self.kernel, **self.spell_parameters(), **options}


def spell_parameters(
    signature: Iterable[Any], constants: Mapping[Any, str], attributes: Mapping[Any, Any]
) -> dict[str, str]:
    """Name each parameter with its type and what is known of its value, or its constant."""
    facts = {}
    for index, (name, kind) in enumerate(signature):
        inner = {path: value for path, value in constants.items() if path[0] == index}
        known = [fact for path, found in attributes.items() if path[0] == index for fact in found]
        divisible = "".join(f", {fact} {value}" for fact, value in known).replace("tt.divisibility", "divisible by")
        facts[str(name)] = ", ".join(inner.values()) if kind == "constexpr" else f"{kind}{divisible}"
        if kind != "constexpr" and inner:
            facts[str(name)] += f" with {', '.join(inner.values())}"
    return facts


@family(TritonKernelPayload, version=1)
def triton_kernel(payload: TritonKernelPayload, target: Target) -> Definition:
    """Define a recorded Triton kernel."""
    named = (module for value in (payload.constants, payload.options) for module in constant_modules(value))
    return Definition(
        arguments=(),
        source=RecordedSource(
            dialect="triton",
            kernel=payload.kernel,
            modules=tuple(dict.fromkeys(named)),
            facts=tuple(payload.to_fields().items()),
        ),
        grid=no_grid,
    )
