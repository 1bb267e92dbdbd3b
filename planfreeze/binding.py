"""Binding: the arguments of a call, checked against what the kernel takes."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from planfreeze.declared.specialization import INTEGER_LIMITS
from planfreeze.device import Device
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument, Scalars

__all__ = ["Signature"]


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
        scalars = [(i, a) for i, a in enumerate(arguments) if not a.is_pointer]
        self._integers = tuple(
            (i, a, a.minimum, largest_value(a), a.multiple_of) for i, a in scalars if a.dtype in INTEGER_LIMITS
        )
        self._others = tuple((i, a) for i, a in scalars if a.dtype not in INTEGER_LIMITS)
        self._pointers = tuple((i, a, device.dtypes[a.dtype]) for i, a in enumerate(arguments) if a.is_pointer)

    def check(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[int], Scalars, tuple[Any, ...]]:
        """Check a call; return one 64-bit word per parameter, the scalars by name, and the tensors.

        Raises
        ------
        InvalidArgument
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's.
        """
        if named or len(values) != len(self.arguments):
            values = self._in_order(values, named)
        scalars: dict[str, int] = {}
        words = list(values)
        for index, argument, low, high, step in self._integers:
            value = values[index]
            if type(value) is not int or not low <= value <= high or (step != 1 and value % step):
                self._explain_integer(argument, value)
            scalars[argument.name] = value
        for index, argument in self._others:
            words[index] = self._bits(argument, values[index])
        for index, argument, dtype in self._pointers:
            words[index] = self._address(argument, dtype, values[index], scalars)
        return words, scalars, tuple(values[index] for index, _, _ in self._pointers)

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

    def _address(self, argument: Argument, dtype: Any, value: Any, scalars: Scalars) -> int:
        if (
            isinstance(value, self._tensor)
            and value.dtype is dtype
            and value.device == self.device.torch_device
            and (not argument.is_contiguous or value.is_contiguous())
        ):
            address: int = value.data_ptr()
            elements = argument.elements
            if address % argument.alignment == 0 and (
                elements is None or count_elements(value, argument) >= elements(scalars)
            ):
                return address
        self._explain_tensor(argument, dtype, value, scalars)

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

    def _explain_tensor(self, argument: Argument, dtype: Any, value: Any, scalars: Scalars) -> NoReturn:
        name = argument.name
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
        assert argument.elements is not None
        count = count_elements(value, argument)
        self._refuse(name, f"has {count} elements, the kernel may touch {argument.elements(scalars)}")

    def _refuse(self, argument: str, reason: str) -> NoReturn:
        raise InvalidArgument(self.name, argument, reason)


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
