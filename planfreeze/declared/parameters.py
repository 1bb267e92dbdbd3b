"""Parameters of kernels declared by ranges: which classes of values they have, and what a class is compiled as."""

import functools
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

from planfreeze import errors
from planfreeze.declared.specialization import (
    ONE,
    TYPES_BY_VALUE,
    IntegerClass,
    Marking,
    classify_integer,
    reachable_classes,
)
from planfreeze.dtypes import INTEGER_LIMITS, TRITON_TYPES, DType
from planfreeze.family import Argument, Scalars

__all__ = ["TENSOR_ALIGNMENT", "Flag", "Integer", "Parameter", "Real", "Tensor"]

UNALIGNED, NONE = "-unaligned", "none"
TENSOR_ALIGNMENT = 16
DTYPE_NAMES = {
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "bool": "bool"},
    **{"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"},
}


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor, told apart by its element type and by whether its address is a multiple of 16."""

    name: str
    dtypes: tuple[DType, ...]
    alignment: int
    elements: Callable[[Scalars], int] | None
    is_contiguous: bool
    is_optional: bool

    @property
    def annotations(self) -> tuple[str, ...]:
        """What Triton may make of the parameter's annotation; empty without one."""
        names = [TRITON_TYPES[dtype] for dtype in self.dtypes] if len(self.dtypes) == 1 else []
        return ("", *(f"*{qualifier}{name}" for name in names for qualifier in ("", "k")))

    def classes(self, marking: Marking) -> tuple[str, ...]:
        """Return the names of all classes."""
        is_split = marking == "specialized" and self.alignment % TENSOR_ALIGNMENT != 0
        suffixes = ("", UNALIGNED) if is_split else (UNALIGNED,) if is_aligned_never(marking) else ("",)
        found = [dtype + suffix for dtype in self.dtypes for suffix in suffixes]
        return tuple(found + [NONE] * self.is_optional)

    def classify(self, family: str, value: Any, marking: Marking) -> str:
        """Return the class of an argument: anything with ``data_ptr()`` and ``dtype``, or None."""
        if value is None and self.is_optional:
            return NONE
        if not hasattr(value, "data_ptr") or not hasattr(value, "dtype"):
            raise errors.InvalidArgument(family, self.name, f"is a {type(value).__name__}, not a tensor")
        dtype, address = dtype_name(value.dtype), value.data_ptr()
        if dtype not in self.dtypes:
            raise errors.InvalidArgument(
                family, self.name, f"has dtype {value.dtype}; declared are {', '.join(self.dtypes)}"
            )
        if address % self.alignment:
            reason = f"at {address:#x} is not aligned to the {self.alignment} bytes it is declared with"
            raise errors.InvalidArgument(family, self.name, reason)
        is_unaligned = marking == "specialized" and address % TENSOR_ALIGNMENT != 0
        return dtype + UNALIGNED * (is_unaligned or is_aligned_never(marking))

    def argument(self, chosen: str, marking: Marking) -> Argument | None:
        """Return the kernel's parameter for a class, or None where it is a constant."""
        if chosen == NONE:
            return None
        alignment = self.alignment
        if marking != "declared":  # Triton takes an address of 16 bytes' alignment, and no other, for a multiple of 16
            is_aligned = not chosen.endswith(UNALIGNED)
            alignment = max(alignment, TENSOR_ALIGNMENT) if is_aligned else min(alignment, TENSOR_ALIGNMENT // 2)
        return Argument(
            name=self.name,
            dtype=cast("DType", chosen.removesuffix(UNALIGNED)),
            is_pointer=True,
            alignment=alignment,
            elements=self.elements,
            is_contiguous=self.is_contiguous,
        )

    def constant(self, chosen: str) -> tuple[object, ...]:
        """Return the constant that a class stands for, in a tuple; empty where it is a parameter."""
        return (None,) if chosen == NONE else ()


class Integer(Struct, frozen=True, kw_only=True):
    """An integer within a range, told apart as Triton's binder does."""

    name: str
    minimum: int
    maximum: int
    multiple_of: int
    dtype: str | None

    @property
    def annotations(self) -> tuple[str, ...]:
        """What Triton may make of the parameter's annotation; empty without one."""
        return (self.dtype or "",)

    def classes(self, marking: Marking) -> tuple[str, ...]:
        """Return the names of all classes."""
        if marking == "declared":
            return (self.fixed_dtype,)
        found = reachable_classes(self.minimum, self.maximum, self.multiple_of, dtype=self.dtype, marking=marking)
        return tuple(value_class.name for value_class in found)

    @property
    def fixed_dtype(self) -> str:
        """The declared type, or else the smallest that holds every value."""
        fitting = (dtype for dtype, low, high in TYPES_BY_VALUE if low <= self.minimum <= self.maximum <= high)
        return self.dtype or next(fitting, "i64")

    def classify(self, family: str, value: Any, marking: Marking) -> str:
        """Return the class of an argument."""
        if type(value) is not int:
            raise errors.InvalidArgument(family, self.name, f"is a {type(value).__name__}, not an int")
        if not self.minimum <= value <= self.maximum or value % self.multiple_of:
            multiples = f"multiples of {self.multiple_of} " if self.multiple_of != 1 else ""
            reason = f"= {value} is not among the {multiples}from {self.minimum} to {self.maximum} it is declared for"
            raise errors.InvalidArgument(family, self.name, reason)
        if marking == "declared":
            return self.fixed_dtype
        return classify_integer(value, dtype=self.dtype, marking=marking).name

    def argument(self, chosen: str, marking: Marking) -> Argument | None:
        """Return the kernel's parameter for a class, or None where it is a constant."""
        value_class = IntegerClass.parse(chosen)
        if not value_class.dtype:
            return None
        low, high = INTEGER_LIMITS[value_class.dtype]
        return Argument(
            name=self.name,
            dtype=cast("DType", value_class.dtype),
            is_pointer=False,
            alignment=1,
            minimum=max(low, self.minimum),
            maximum=min(high, self.maximum),
            multiple_of=16 if value_class.is_divisible else 1,
        )

    def constant(self, chosen: str) -> tuple[object, ...]:
        """Return the constant that a class stands for, in a tuple; empty where it is a parameter."""
        return (1,) if chosen == ONE else ()


class Real(Struct, frozen=True, kw_only=True):
    """A floating-point number. Its value is never told apart."""

    name: str
    dtype: DType

    @property
    def annotations(self) -> tuple[str, ...]:
        """What Triton may make of the parameter's annotation; a Python float is an f32 without one."""
        return ("", "fp32") if self.dtype == "f32" else ("fp64",)

    def classes(self, marking: Marking) -> tuple[str, ...]:
        """Return the name of its only class."""
        return (self.dtype,)

    def classify(self, family: str, value: Any, marking: Marking) -> str:
        """Return the class of an argument."""
        if type(value) is not float:
            raise errors.InvalidArgument(family, self.name, f"is a {type(value).__name__}, not a float")
        return self.dtype

    def argument(self, chosen: str, marking: Marking) -> Argument | None:
        """Return the kernel's parameter."""
        return Argument(name=self.name, dtype=self.dtype, is_pointer=False, alignment=1)

    def constant(self, chosen: str) -> tuple[object, ...]:
        """Return nothing: it is always a parameter."""
        return ()


class Flag(Struct, frozen=True, kw_only=True):
    """A truth value. Its value is never told apart."""

    name: str

    @property
    def annotations(self) -> tuple[str, ...]:
        """What Triton may make of the parameter's annotation; empty without one."""
        return ("", "u1")

    def classes(self, marking: Marking) -> tuple[str, ...]:
        """Return the name of its only class."""
        return ("bool",)

    def classify(self, family: str, value: Any, marking: Marking) -> str:
        """Return the class of an argument."""
        if type(value) is not bool:
            raise errors.InvalidArgument(family, self.name, f"is a {type(value).__name__}, not a bool")
        return "bool"

    def argument(self, chosen: str, marking: Marking) -> Argument | None:
        """Return the kernel's parameter."""
        return Argument(name=self.name, dtype="bool", is_pointer=False, alignment=1)

    def constant(self, chosen: str) -> tuple[object, ...]:
        """Return nothing: it is always a parameter."""
        return ()


Parameter = Tensor | Integer | Real | Flag


@functools.lru_cache(maxsize=64)
def dtype_name(dtype: object) -> str:
    """Return what planfreeze calls a tensor's dtype: torch's, or one that has such a name already."""
    stated = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(stated, stated)


def is_aligned_never(marking: Marking) -> bool:
    """Tell whether Triton leaves an address' alignment alone: either mark on a tensor does that."""
    return marking in ("free", "unaligned")
