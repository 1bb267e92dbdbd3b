"""Kernel families: from a payload to arguments, program source and launch rules. Imports no compiler."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct

from planfreeze import errors
from planfreeze.dtypes import ITEM_BYTES, DType
from planfreeze.payload import Field, Payload
from planfreeze.target import Target

__all__ = [
    "Argument",
    "CuteSource",
    "Definition",
    "Family",
    "LaunchInfo",
    "RecordedSource",
    "TritonSource",
    "family",
    "family_of",
    "load_family",
    "pointer",
    "register_family",
    "scalar",
]

Scalars = Mapping[str, int]
Grid = tuple[int, int, int]


class Argument(Struct, frozen=True, kw_only=True):
    """One kernel parameter.

    Parameters
    ----------
    name : str
        Name of the parameter, as errors and ``bind`` use it.
    dtype : str
        Element type of the tensor, or type of the scalar.
    is_pointer : bool
        Device address of a tensor (8 bytes), or a number passed by value.
    alignment : int
        Alignment in bytes that the kernel relies on; 1 for scalars.
    elements : callable, optional
        Number of elements a tensor must have at least, from the scalars of the call; None does not ask.
    minimum, maximum : int, optional
        Range of an integer; None for the largest is what its type holds.
    multiple_of : int
        What the kernel relies on an integer to be a multiple of.
    is_contiguous : bool
        Whether a tensor has to be contiguous.
    """

    name: str
    dtype: DType
    is_pointer: bool
    alignment: int
    elements: Callable[[Scalars], int] | None = None
    minimum: int = 0
    maximum: int | None = None
    multiple_of: int = 1
    is_contiguous: bool = True

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


class LaunchInfo(Struct, frozen=True, kw_only=True):
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
        return [[name, getattr(self, name)] for name in self.__struct_fields__]

    @classmethod
    def from_fields(cls, stated: Iterable[Sequence[Any]]) -> "LaunchInfo":
        """Make the value back from what :meth:`to_fields` gave."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in stated}
        return cls(**values)


class TritonSource(Struct, frozen=True, kw_only=True):
    """A Triton kernel as "module:attribute" text and what it is compiled with.

    Parameters
    ----------
    kernel : str
        The ``@triton.jit`` function.
    constants : tuple of (str, Field)
        Constants by parameter name, as :func:`planfreeze.constants.freeze_constant` spells them; a scalar that is
        specialised on the value 1 is one of them.
    num_warps, num_stages : int
        Warps of a block, stages of software pipelining.
    divisible : tuple of str
        Scalars that are declared multiples of 16. Pointers are by the alignment of their argument.
    options : tuple of (str, Field)
        Further compile options by Triton's names, such as ``maxnreg``.
    markings : tuple of (str, str, tuple of str), optional
        Each parameter with its marking and the annotations it may have, for the compile worker to hold against the
        kernel; changes no byte.
    """

    kernel: str
    constants: tuple[tuple[str, Field], ...]
    num_warps: int = 4
    num_stages: int = 1
    divisible: tuple[str, ...] = ()
    options: tuple[tuple[str, Field], ...] = ()
    markings: tuple[tuple[str, str, tuple[str, ...]], ...] | None = None


class CuteSource(Struct, frozen=True, kw_only=True):
    """A CuTe DSL kernel as "module:attribute" text, its constants and launch facts.

    Of a class, the compile worker compiles ``attribute(launch=launch, **constants)``, called with one Int64 per
    pointer, one number per scalar, and a stream. A ``@cute.jit`` function is called with the same and its constants;
    its launch facts are None here, and read from what the DSL makes of it.
    """

    kernel: str
    constants: tuple[tuple[str, Field], ...]
    launch: LaunchInfo | None = None


class RecordedSource(Struct, frozen=True, kw_only=True):
    """A program that its compiler's own runtime launches: everything a run was seen to compile it with.

    The arguments of a launch are the runtime's matter: a definition with this source declares none.

    Parameters
    ----------
    dialect : "triton" or "cute"
        Whose program it is; ``planfreeze.compilers.recorded_<dialect>`` compiles it.
    kernel : str
        The function, as "module:qualified name".
    modules : tuple of str
        Modules besides the kernel's own whose objects are among its constants.
    facts : tuple of (str, Field)
        What the compile worker reads, by name.
    """

    dialect: Literal["triton", "cute"]
    kernel: str
    modules: tuple[str, ...]
    facts: tuple[tuple[str, Field], ...]


class Definition(Struct, frozen=True, kw_only=True):
    """What a family says about one payload on one target.

    ``grid(scalars, resident_blocks)`` gives the blocks of a launch; ``resident_blocks`` is SM count times
    occupancy of the loaded program, for persistent kernels.
    """

    arguments: tuple[Argument, ...]
    source: TritonSource | CuteSource | RecordedSource
    grid: Callable[[Scalars, int], Grid]


class Family(Struct, frozen=True, kw_only=True):
    """A named, versioned set of kernel variants.

    Parameters
    ----------
    sources : tuple of str
        Modules that belong to its programs besides those its own and its kernel's module reach.
    """

    name: str
    version: int
    payload: type[Payload]
    define: Callable[[Payload, Target], Definition]
    reference: str
    sources: tuple[str, ...] = ()


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
        return register_family(made)

    return register


FamilyT = TypeVar("FamilyT", bound=Family)


def register_family(made: FamilyT) -> FamilyT:
    """Make a family known by its name.

    Raises
    ------
    DuplicateFamily
        Another one has the name.
    """
    known = registry.setdefault(made.name, made)
    if known.reference != made.reference:
        raise errors.DuplicateFamily(made.name, known.reference, made.reference)
    registry[made.name] = made  # a module that is loaded again replaces its own
    return made


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
        raise errors.UnknownFamily(payload.family_name) from None


def load_family(reference: str) -> Family:
    """Import the family a plan names as "module:attribute".

    Raises
    ------
    UnknownFamily
        No such module here, or the attribute is not a family.
    """
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise errors.UnknownFamily(reference)
    try:
        found = getattr(import_module(module), attribute, None)
    except errors.PlanfreezeError:
        raise
    except Exception as error:  # whatever the text of somebody's own module may raise
        reason = f"{type(error).__name__}: {error}"
        raise errors.UnknownFamily(reference, reason=reason) from error
    if not isinstance(found, Family):
        from planfreeze.spellings import nearest_reference  # for the message alone

        raise errors.UnknownFamily(
            reference, nearest_reference(reference, (known.reference for known in registry.values()))
        )
    return found
