"""Binding: the arguments of a call, checked against what the kernel takes."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from planfreeze.device import Device
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument, Scalars

__all__ = ["Signature"]

INTEGER_LIMITS = {"i32": 2**31 - 1, "i64": 2**63 - 1}


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
        self._scalars = tuple((i, a, largest_value(a)) for i, a in enumerate(arguments) if not a.is_pointer)
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
        for index, argument, limit in self._scalars:
            value = values[index]
            if type(value) is not int or not 0 <= value <= limit:
                self._explain_scalar(argument, value)
            scalars[argument.name] = value
        for index, argument, dtype in self._pointers:
            words[index] = self._address(argument, dtype, values[index], scalars)
        return words, scalars, tuple(values[index] for index, _, _ in self._pointers)

    def _address(self, argument: Argument, dtype: Any, value: Any, scalars: Scalars) -> int:
        assert argument.elements is not None
        if (
            isinstance(value, self._tensor)
            and value.dtype is dtype
            and value.device == self.device.torch_device
            and value.is_contiguous()
        ):
            address: int = value.data_ptr()
            if address % argument.alignment == 0 and value.numel() >= argument.elements(scalars):
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

    def _explain_scalar(self, argument: Argument, value: Any) -> NoReturn:
        if type(value) is not int:
            self._refuse(argument.name, f"is a {type(value).__name__}, not an int")
        if value < 0:
            self._refuse(argument.name, f"= {value} is negative, and no count is")
        self._refuse(argument.name, f"= {value} is more than {largest_value(argument)}")

    def _explain_tensor(self, argument: Argument, dtype: Any, value: Any, scalars: Scalars) -> NoReturn:
        name = argument.name
        if not isinstance(value, self._tensor):
            self._refuse(name, f"is a {type(value).__name__}, not a torch tensor")
        if value.dtype is not dtype:
            self._refuse(name, f"has dtype {value.dtype}, not {dtype}")
        if value.device != self.device.torch_device:
            self._refuse(name, f"is on {value.device}, the program on {self.device.torch_device}")
        if not value.is_contiguous():
            self._refuse(name, f"is not contiguous: shape {tuple(value.shape)}, strides {value.stride()}")
        if value.data_ptr() % argument.alignment:
            self._refuse(name, f"at {value.data_ptr():#x} is not aligned to {argument.alignment} bytes")
        assert argument.elements is not None
        self._refuse(name, f"has {value.numel()} elements, the kernel may touch {argument.elements(scalars)}")

    def _refuse(self, argument: str, reason: str) -> NoReturn:
        raise InvalidArgument(self.name, argument, reason)


def largest_value(argument: Argument) -> int:
    """Return the largest value of a scalar."""
    return INTEGER_LIMITS[argument.dtype] if argument.maximum is None else argument.maximum
