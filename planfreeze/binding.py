"""Binding: the arguments of a call, checked against what the kernel takes."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NoReturn

from planfreeze.device import Device
from planfreeze.dtypes import INTEGER_LIMITS
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument, Scalars

__all__ = ["Layout", "Signature"]

LAYOUTS = 1024
"""How many layouts are kept of each program: the token counts of calls recur."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What the integers of a call decide: checked once, and kept for the calls that pass the same.

    Parameters
    ----------
    scalars : mapping
        The integers by name.
    elements : tuple of int
        Elements that each tensor which has to be contiguous must have at least.
    """

    scalars: Scalars
    elements: tuple[int, ...]


class Signature:
    """A program's arguments on a device, laid out once so that checking a call costs little.

    Parameters
    ----------
    name : str
        The program, for messages.
    arguments : tuple of Argument
        The kernel's parameters in order.
    device : Device
        Where tensors have to be.
    """

    def __init__(self, name: str, arguments: tuple[Argument, ...], device: Device) -> None:
        self.name = name
        self.arguments = arguments
        self.device = device
        self._tensor = device.torch.Tensor
        integers = [i for i, a in enumerate(arguments) if not a.is_pointer and a.dtype in INTEGER_LIMITS]
        dense = [i for i, a in enumerate(arguments) if a.is_pointer and a.is_contiguous]
        self._integers = tuple(arguments[i] for i in integers)
        self._dense = tuple(arguments[i] for i in dense)
        self._pick_integers, self._pick_dense = picker(integers), picker(dense)
        self._places = tuple(dense)
        self._dtypes = tuple(device.dtypes[a.dtype] for a in self._dense)
        self._alignments = tuple(a.alignment for a in self._dense)
        self._others = tuple((i, a) for i, a in enumerate(arguments) if i not in integers and not a.is_pointer)
        self._strided = tuple((i, a) for i, a in enumerate(arguments) if a.is_pointer and i not in dense)
        self._known_layout = lru_cache(LAYOUTS)(self._lay_out)

    def check(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[int], Layout, tuple[Any, ...]]:
        """Check a call; return one 64-bit word per parameter, what its integers decide, and the tensors.

        Raises
        ------
        InvalidArgument
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's.
        """
        if named or len(values) != len(self.arguments):
            values = self._in_order(values, named)
        integers = self._pick_integers(values)
        for value in integers:  # a truth value and a float are equal to an int and so would find its layout
            if type(value) is not int:
                self._lay_out(*integers)
        layout = self._known_layout(*integers)
        words = list(values)
        for index, argument in self._others:
            words[index] = self._bits(argument, values[index])
        tensors = self._pick_dense(values)
        kind, where = self._tensor, self.device.torch_device
        for value, place, dtype, alignment, elements in zip(
            tensors, self._places, self._dtypes, self._alignments, layout.elements, strict=True
        ):
            if (
                not isinstance(value, kind)
                or value.dtype is not dtype
                or value.device != where
                or not value.is_contiguous()
                or value.numel() < elements
                or (address := value.data_ptr()) % alignment
            ):
                self._explain_tensor(self.arguments[place], value, elements)
            words[place] = address
        for index, argument in self._strided:
            words[index] = self._strided_address(argument, values[index], layout.scalars)
            tensors += (values[index],)
        return words, layout, tensors

    def _lay_out(self, *integers: Any) -> Layout:
        """Check the integers of a call and return what they decide."""
        for argument, value in zip(self._integers, integers, strict=True):
            is_inside = type(value) is int and argument.minimum <= value <= largest_value(argument)
            if not is_inside or value % argument.multiple_of:
                self._explain_integer(argument, value)
        scalars = MappingProxyType({a.name: value for a, value in zip(self._integers, integers, strict=True)})
        elements = (0 if a.elements is None else a.elements(scalars) for a in self._dense)
        return Layout(scalars, tuple(elements))

    def _bits(self, argument: Argument, value: Any) -> int:
        """Return a truth value or the bits of a floating-point number as the word that the driver reads."""
        if argument.dtype == "bool":
            if type(value) is not bool:
                self._refuse(argument.name, f"is a {type(value).__name__}, not a bool")
            return int(value)
        if type(value) is not float:
            self._refuse(argument.name, f"is a {type(value).__name__}, not a float")
        if argument.dtype == "f32":  # rounded as C does, so that large values become infinite
            return ctypes.c_uint32.from_buffer_copy(ctypes.c_float(value)).value
        return ctypes.c_int64.from_buffer_copy(ctypes.c_double(value)).value

    def _strided_address(self, argument: Argument, value: Any, scalars: Scalars) -> int:
        """Return the address of a tensor that need not be contiguous."""
        elements = 0 if argument.elements is None else argument.elements(scalars)
        if (
            isinstance(value, self._tensor)
            and value.dtype is self.device.dtypes[argument.dtype]
            and value.device == self.device.torch_device
            and count_elements(value, argument) >= elements
        ):
            address: int = value.data_ptr()
            if address % argument.alignment == 0:
                return address
        self._explain_tensor(argument, value, elements)

    def _in_order(self, values: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names = [argument.name for argument in self.arguments]
        if len(values) > len(names):
            self._refuse(f"number {len(names) + 1}", f"is one too many: it takes {', '.join(names)}")
        given = dict(zip(names, values, strict=False))
        for name in named:
            if name not in names:
                self._refuse(name, f"is unknown: it takes {', '.join(names)}")
            if name in given:
                self._refuse(name, "is given twice")
        given.update(named)
        for name in names:
            if name not in given:
                self._refuse(name, f"is missing: it takes {', '.join(names)}")
        return [given[name] for name in names]

    def _explain_integer(self, argument: Argument, value: Any) -> NoReturn:
        if type(value) is not int:
            self._refuse(argument.name, f"is a {type(value).__name__}, not an int")
        if value < 0 <= argument.minimum:
            self._refuse(argument.name, f"= {value} is negative, and no count is")
        if value < argument.minimum:
            self._refuse(argument.name, f"= {value} is less than {argument.minimum}")
        if value > largest_value(argument):
            self._refuse(argument.name, f"= {value} is more than {largest_value(argument)}")
        self._refuse(argument.name, f"= {value} is no multiple of {argument.multiple_of}")

    def _explain_tensor(self, argument: Argument, value: Any, elements: int) -> NoReturn:
        name, dtype = argument.name, self.device.dtypes[argument.dtype]
        if not isinstance(value, self._tensor):
            self._refuse(name, f"is a {type(value).__name__}, not a torch tensor")
        if value.dtype is not dtype:
            self._refuse(name, f"has dtype {value.dtype}, not {dtype}")
        if value.device != self.device.torch_device:
            self._refuse(name, f"is on {value.device}, the program on {self.device.torch_device}")
        if argument.is_contiguous and not value.is_contiguous():
            self._refuse(name, f"is not contiguous: shape {tuple(value.shape)}, strides {value.stride()}")
        if value.data_ptr() % argument.alignment:
            self._refuse(name, f"at {value.data_ptr():#x} is not aligned to {argument.alignment} bytes")
        self._refuse(name, f"has {count_elements(value, argument)} elements, the kernel may touch {elements}")

    def _refuse(self, argument: str, reason: str) -> NoReturn:
        raise InvalidArgument(self.name, argument, reason)


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return what takes the values at some places out of all values."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def largest_value(argument: Argument) -> int:
    """Return the largest value of an integer."""
    return INTEGER_LIMITS[argument.dtype][1] if argument.maximum is None else argument.maximum


def count_elements(tensor: Any, argument: Argument) -> int:
    """Return how many elements a tensor has, or, if it need not be contiguous, from its first to its last one."""
    count: int = tensor.numel()
    if argument.is_contiguous or count == 0:
        return count
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    spanned: int = 1 + sum(steps)
    return spanned
