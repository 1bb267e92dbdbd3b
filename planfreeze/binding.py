"""Binding: the arguments of a call, checked against what the kernel takes."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec

from planfreeze import errors
from planfreeze.device import Device
from planfreeze.dtypes import INTEGER_LIMITS
from planfreeze.family import Argument, Grid, Scalars
from planfreeze.tensor_checks import make_check

__all__ = ["Layout", "Signature"]

LAYOUTS = 1024
"""How many layouts are kept of each program: the token counts of calls recur."""

MOST_ELEMENTS = 2**63 - 1
"""No tensor has more: a kernel that may touch more is given none."""


class Layout(msgspec.Struct, eq=False):
    """What the integers of a call decide: checked once, and kept for the calls that pass the same.

    It is a memo, the one structure here that changes: its grid is filled in by the first call that asks for it. The
    rule of a family is a pure function of the integers, so that calls of several threads fill in the same.

    Parameters
    ----------
    scalars : mapping
        The integers by name.
    elements : tuple of int
        Elements that each tensor must have at least.
    numbers : bytes
        These, and behind them the integers as the driver reads them, eight bytes each.
    grid : (int, int, int), optional
        The blocks that the program's family gives these integers; None until they are asked for.
    """

    scalars: Scalars
    elements: tuple[int, ...]
    numbers: bytes
    grid: Grid | None = None


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

    Attributes
    ----------
    places : tuple of int
        The arguments' places in the order of a call's words: tensors, integers, and other numbers.
    """

    def __init__(self, name: str, arguments: tuple[Argument, ...], device: Device) -> None:
        self.name = name
        self.arguments = arguments
        self.device = device
        tensors = [i for i, a in enumerate(arguments) if a.is_pointer]
        integers = [i for i, a in enumerate(arguments) if not a.is_pointer and a.dtype in INTEGER_LIMITS]
        others = [i for i in range(len(arguments)) if i not in tensors and i not in integers]
        self.places = (*tensors, *integers, *others)
        self._tensors, self._integers, self._others = (
            tuple(arguments[i] for i in places) for places in (tensors, integers, others)
        )
        self._pick_tensors, self._pick_integers, self._pick_others = map(picker, (tensors, integers, others))
        self._pack_addresses, self._pack_integers, self._pack_others = map(
            packer, (self._tensors, self._integers, self._others)
        )
        # What a call's words are made of: addresses, integers, and from here on the other numbers.
        self._first_other = 8 * (len(tensors) + len(integers))
        self._dtypes = tuple(device.dtypes[a.dtype] for a in self._tensors)
        rows = zip(tensors, self._dtypes, self._tensors, strict=True)
        self._take = make_check(
            device.torch,
            device.torch_device,
            [(place, dtype, argument.alignment, argument.is_contiguous) for place, dtype, argument in rows],
        )
        # Typed, because a truth value and a float are equal to an int and so would find its layout.
        self._known_layout = lru_cache(LAYOUTS, typed=True)(self._lay_out)

    def check(self, values: tuple[Any, ...], named: Mapping[str, Any], words: memoryview) -> Layout:
        """Check a call, write its words as the driver reads them, and return what its integers decide.

        Raises
        ------
        InvalidArgument
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's, or that has
            no memory. What was written until then is part of no call.
        """
        if named or len(values) != len(self.arguments):
            values = self._in_order(values, named)
        integers = self._pick_integers(values)
        try:
            layout = self._known_layout(*integers)
        except TypeError:  # what has no hash is no integer
            layout = self._lay_out(*integers)
        if self._others:
            words[self._first_other :] = self._pack_others(*map(self._bits, self._others, self._pick_others(values)))
        if not self._take(values, layout.numbers, words):
            addresses = self._pack_addresses(*self._check_tensors(self._pick_tensors(values), layout))
            words[: self._first_other] = addresses + layout.numbers[len(addresses) :]
        return layout

    def _lay_out(self, *integers: Any) -> Layout:
        """Check the integers of a call and return what they decide."""
        for argument, value in zip(self._integers, integers, strict=True):
            is_inside = type(value) is int and argument.minimum <= value <= largest_value(argument)
            if not is_inside or value % argument.multiple_of:
                self._explain_integer(argument, value)
        scalars = MappingProxyType({a.name: value for a, value in zip(self._integers, integers, strict=True)})
        elements = tuple(0 if a.elements is None else a.elements(scalars) for a in self._tensors)
        packed = Struct(f"@{len(elements)}q").pack(*(min(count, MOST_ELEMENTS) for count in elements))
        return Layout(scalars, elements, packed + self._pack_integers(*integers))

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

    def _check_tensors(self, tensors: Sequence[Any], layout: Layout) -> list[int]:
        """Check every tensor of a call and return their addresses."""
        kind, where, addresses = self.device.torch.Tensor, self.device.torch_device, []
        for value, argument, dtype, elements in zip(tensors, self._tensors, self._dtypes, layout.elements, strict=True):
            if (
                not isinstance(value, kind)
                or value.dtype is not dtype
                or value.device != where
                or (argument.is_contiguous and not value.is_contiguous())
                or count_elements(value, argument) < elements
                or (address := value.data_ptr()) % argument.alignment
                or not has_memory(value, address)
            ):
                self._explain_tensor(argument, value, elements)
            addresses.append(address)
        return addresses

    def _in_order(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
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
        return tuple(given[name] for name in names)

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
        if not isinstance(value, self.device.torch.Tensor):
            self._refuse(name, f"is a {type(value).__name__}, not a torch tensor")
        if value.dtype is not dtype:
            self._refuse(name, f"has dtype {value.dtype}, not {dtype}")
        if value.device != self.device.torch_device:
            self._refuse(name, f"is on {value.device}, the program on {self.device.torch_device}")
        if argument.is_contiguous and not value.is_contiguous():
            self._refuse(name, f"is not contiguous: shape {tuple(value.shape)}, strides {value.stride()}")
        if not has_memory(value, value.data_ptr()):
            self._refuse(name, f"has no memory here for its {value.numel()} elements")
        if value.data_ptr() % argument.alignment:
            self._refuse(name, f"at {value.data_ptr():#x} is not aligned to {argument.alignment} bytes")
        self._refuse(name, f"has {count_elements(value, argument)} elements, the kernel may touch {elements}")

    def _refuse(self, argument: str, reason: str) -> NoReturn:
        raise errors.InvalidArgument(self.name, argument, reason)


def picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what takes the values at some places out of all values."""
    first, behind = (places[0], places[-1] + 1) if places else (0, 0)
    is_row = list(places) == list(range(first, behind))
    return itemgetter(slice(first, behind)) if is_row else itemgetter(*places)


def packer(arguments: Sequence[Argument]) -> Callable[..., bytes]:
    """Return what packs the words of arguments: sizes of C, since they pack several times as fast as long integers."""
    codes = ("N" if a.is_pointer or a.dtype.startswith("u") else "n" for a in arguments)
    return Struct(f"@{''.join(codes)}").pack


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


def has_memory(tensor: Any, address: int) -> bool:
    """Return whether there is memory behind the elements of a tensor, if it has any.

    A storage that was resized to nothing is at 0, and its tensors are where they begin in it. So are those inside
    torch's functionalization.
    """
    return tensor.numel() == 0 or address not in (0, tensor.storage_offset() * tensor.itemsize)
