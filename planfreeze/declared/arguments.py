"""Declaring the arguments of a kernel by what its calls pass."""

from collections.abc import Callable
from typing import NoReturn

from planfreeze import errors
from planfreeze.declared.parameters import TENSOR_ALIGNMENT, Flag, Integer, Real, Tensor
from planfreeze.dtypes import INTEGER_LIMITS, ITEM_BYTES, DType
from planfreeze.family import Scalars

__all__ = ["flag", "integer", "real", "tensor"]


def tensor(
    name: str,
    dtype: DType | tuple[DType, ...],
    *,
    alignment: int = TENSOR_ALIGNMENT,
    elements: Callable[[Scalars], int] | None = None,
    contiguous: bool = True,
    optional: bool = False,
) -> Tensor:
    """Declare a tensor argument.

    Parameters
    ----------
    dtype : str or tuple of str
        Element types it comes with: ``f32``, ``bf16``, ``i32``, ...
    alignment : int
        Bytes that every address is a multiple of. Below 16 there are two variants, for addresses that are
        multiples of 16 and for those that are not; 1 takes any.
    elements : callable, optional
        How many elements a call may touch, from its integers by name; checked at every launch.
    contiguous : bool
        Whether it has to be; not where the kernel is given strides.
    optional : bool
        Whether it may be None, which is a variant of its own.
    """
    dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    unknown = [found for found in dtypes if found not in ITEM_BYTES]
    if unknown or not dtypes:
        refuse(name, f"dtype {dtype!r} is none of {', '.join(ITEM_BYTES)}")
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        refuse(name, f"alignment = {alignment!r} is no power of two")
    return Tensor(
        name=name,
        dtypes=dtypes,
        alignment=alignment,
        elements=elements,
        is_contiguous=contiguous,
        is_optional=optional,
    )


def integer(name: str, minimum: int, maximum: int, *, multiple_of: int = 1, dtype: str | None = None) -> Integer:
    """Declare an integer argument by the range of its values.

    Parameters
    ----------
    minimum, maximum : int
        The least and the greatest value of any call.
    multiple_of : int
        What every value is a multiple of, such as a stride.
    dtype : str, optional
        ``i8`` to ``u64``, for a parameter that is annotated with the type. Without, the type follows from the value.
    """
    low, high = (
        (INTEGER_LIMITS["i64"][0], INTEGER_LIMITS["u64"][1]) if dtype is None else INTEGER_LIMITS.get(dtype, (1, 0))
    )
    if low > high:
        refuse(name, f"dtype {dtype!r} is none of {', '.join(INTEGER_LIMITS)}")
    if any(type(number) is not int for number in (minimum, maximum, multiple_of)) or multiple_of < 1:
        refuse(name, "its range and step are no whole numbers, or the step is not positive")
    if not low <= minimum <= maximum <= high:
        refuse(name, f"{minimum} to {maximum} is no range within {low} to {high}")
    if maximum // multiple_of * multiple_of < minimum:
        refuse(name, f"no multiple of {multiple_of} lies from {minimum} to {maximum}")
    return Integer(name=name, minimum=minimum, maximum=maximum, multiple_of=multiple_of, dtype=dtype)


def real(name: str, dtype: DType = "f32") -> Real:
    """Declare a floating-point argument: ``f32``, or ``f64`` for a parameter that is annotated so."""
    if dtype not in ("f32", "f64"):
        refuse(name, f"dtype {dtype!r} is neither f32 nor f64")
    return Real(name=name, dtype=dtype)


def flag(name: str) -> Flag:
    """Declare a truth value that is passed at every launch."""
    return Flag(name=name)


def refuse(name: str, reason: str) -> NoReturn:
    raise errors.InvalidDeclaration("a family", name, reason)
