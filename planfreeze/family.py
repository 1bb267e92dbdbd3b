"""Kernel families: from a payload to arguments, program source and launch rules. Imports no compiler."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

from planfreeze.errors import DuplicateFamily, UnknownFamily
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = [
    "TRITON_TYPES",
    "Argument",
    "CuteSource",
    "Definition",
    "Family",
    "LaunchInfo",
    "TritonSource",
    "family",
    "family_of",
    "load_family",
    "pointer",
    "scalar",
]

DType = Literal["u8", "i16", "i32", "i64", "u32", "bf16", "f32"]
ITEM_BYTES: Mapping[str, int] = {"u8": 1, "i16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8}
# The same types as Triton spells them.
TRITON_TYPES: Mapping[str, str] = {name: name for name in ITEM_BYTES} | {"f32": "fp32"}
Scalars = Mapping[str, int]
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One kernel parameter.

    Parameters
    ----------
    name : str
        Name of the parameter, as errors and ``bind`` use it.
    dtype : str
        Element type of the tensor, or type of the scalar.
    is_pointer : bool
        Device address of a contiguous tensor (8 bytes), or an integer passed by value.
    alignment : int
        Alignment in bytes that the kernel relies on; 1 for scalars.
    elements : callable, optional
        Number of elements a tensor must have at least, from the scalars of the call.
    maximum : int, optional
        Largest value of a scalar; None is what its type holds.
    """

    name: str
    dtype: DType
    is_pointer: bool
    alignment: int
    elements: Callable[[Scalars], int] | None = None
    maximum: int | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the parameter in the kernel's parameter list."""
        return 8 if self.is_pointer else ITEM_BYTES[self.dtype]


def pointer(name: str, dtype: DType, elements: Callable[[Scalars], int], *, alignment: int = 16) -> Argument:
    """Make a tensor argument of at least ``elements(scalars)`` elements, aligned to ``alignment`` bytes."""
    return Argument(name=name, dtype=dtype, is_pointer=True, alignment=alignment, elements=elements)


def scalar(name: str, dtype: Literal["i32", "i64"] = "i32", *, maximum: int | None = None) -> Argument:
    """Make an integer argument: a runtime value such as a live count, never part of a program's identity."""
    return Argument(name=name, dtype=dtype, is_pointer=False, alignment=1, maximum=maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInfo:
    """Launch facts of a program, fixed when it is compiled.

    Parameters
    ----------
    block, cluster : (int, int, int)
        Threads per block, blocks per cluster.
    shared_bytes : int
        Dynamic shared memory per block.
    min_blocks : int
        Resident blocks per SM the registers are limited for (1: no limit asked for).
    carveout_percent : int, optional
        Share of the SM's memory preferred as shared memory; None leaves it to the driver.
    is_cooperative, is_programmatic : bool
        Cooperative launch; programmatic dependent launch.
    """

    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    min_blocks: int = 1
    carveout_percent: int | None = None
    is_cooperative: bool = False
    is_programmatic: bool = False

    def to_fields(self) -> list[list[Any]]:
        """Return [[name, value], ...] in declared order, as messages and records hold them."""
        return [[f.name, getattr(self, f.name)] for f in fields(self)]

    @classmethod
    def from_fields(cls, stated: Iterable[Sequence[Any]]) -> "LaunchInfo":
        """Make the value back from what :meth:`to_fields` gave."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in stated}
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSource:
    """A Triton kernel as "module:attribute" text and what it is compiled with.

    Pointer parameters are declared divisible by 16; scalars are never specialised on their value.
    """

    kernel: str
    constants: tuple[tuple[str, Field], ...]
    num_warps: int = 4
    num_stages: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CuteSource:
    """A CuTe DSL kernel class as "module:attribute" text, its constructor constants and launch facts.

    The compile worker calls ``attribute(launch=launch, **constants)`` and compiles the instance with one Int64
    per pointer, one Int32 or Int64 per scalar, and a stream.
    """

    kernel: str
    constants: tuple[tuple[str, Field], ...]
    launch: LaunchInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a family says about one payload on one target.

    ``grid(scalars, resident_blocks)`` gives the blocks of a launch; ``resident_blocks`` is SM count times
    occupancy of the loaded program, for persistent kernels.
    """

    arguments: tuple[Argument, ...]
    source: TritonSource | CuteSource
    grid: Callable[[Scalars, int], Grid]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named, versioned set of kernel variants."""

    name: str
    version: int
    payload: type[Payload]
    define: Callable[[Payload, Target], Definition]
    reference: str


PayloadT = TypeVar("PayloadT", bound=Payload)
registry: dict[str, Family] = {}


def family(payload: type[PayloadT], *, version: int) -> Callable[[Callable[[PayloadT, Target], Definition]], Family]:
    """Register the decorated function as the definition of ``payload``'s family.

    The function becomes a :class:`Family`; its module and name become the family's reference.

    Raises
    ------
    DuplicateFamily
        Another function is registered under the payload's family name.
    """

    def register(define: Callable[[PayloadT, Target], Definition]) -> Family:
        made = Family(
            name=payload.family_name,
            version=version,
            payload=payload,
            define=cast("Callable[[Payload, Target], Definition]", define),
            reference=f"{define.__module__}:{define.__name__}",
        )
        known = registry.setdefault(made.name, made)
        if known.reference != made.reference:
            raise DuplicateFamily(made.name, known.reference, made.reference)
        registry[made.name] = made  # a module that is loaded again replaces its own
        return made

    return register


def family_of(payload: Payload) -> Family:
    """Return the family of a payload; its module is loaded, as it defines the payload's class.

    Raises
    ------
    UnknownFamily
        The payload's class was never registered with a family.
    """
    try:
        return registry[payload.family_name]
    except KeyError:
        raise UnknownFamily(payload.family_name) from None


def load_family(reference: str) -> Family:
    """Import the family a plan names as "module:attribute".

    Raises
    ------
    UnknownFamily
        No such module here, or the attribute is not a family.
    """
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UnknownFamily(reference)
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise UnknownFamily(reference) from error
    if not isinstance(found, Family):
        raise UnknownFamily(reference)
    return found
