"""Checks of tensors: all those of a call in one go, by an extension in C, where torch and the installation allow it."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeAlias

__all__ = ["TakeTensors", "find_obstacle", "make_check", "prepare_checks"]

TakeTensors: TypeAlias = Callable[[tuple[Any, ...], bytes, memoryview], bool]
"""Takes the values of a call, the elements that each tensor must have with the words behind those of tensors, and where
words go. Writes them all and returns True where every tensor is known to be right. False is no verdict."""


Row: TypeAlias = tuple[int, Any, int, bool]
"""What a tensor has to be: its place among the values of a call, its dtype, its alignment in bytes, and whether it must
be contiguous."""

EXCHANGE = "__dlpack_c_exchange_api__"
"""The attribute of torch.Tensor that holds its table of functions for C."""


def prepare_checks(torch: Any, device: Any, dtypes: Iterable[Any]) -> None:
    """Make at once what checks of tensors of these types on a device share: it takes a thread each time.

    Raises
    ------
    RuntimeError
        torch makes no tensor on the device: the error is torch's own.
    """
    if not find_obstacle(torch):
        make_likes(torch, device, set(dtypes))


def make_check(torch: Any, device: Any, rows: Sequence[Row]) -> TakeTensors:
    """Return what takes the tensors of calls; where that is not possible, something that takes none.

    It takes plain tensors and parameters alone: the facts of any other class are what its own code says.

    Parameters
    ----------
    torch : module
        torch.
    device : torch.device
        Where tensors have to be, with its ordinal.
    rows : sequence of Row
        What they have to be.

    Raises
    ------
    RuntimeError
        torch makes no tensor on the device: the error is torch's own.
    """
    if find_obstacle(torch):
        return take_nothing
    from planfreeze._tensors import NoView

    try:
        return build_check(torch, device, rows)
    except NoView:  # of some types, as those that are bits and nothing else
        return take_nothing


@cache
def find_obstacle(torch: Any) -> str:
    """Return why tensors are looked at one by one here, or "" where they are taken in one go.

    torch hands out views of tensors to C from 2.10 on. Without a C compiler, an installation from source lacks the
    extension. No tensor is made, so that the answer is the same in every mode of torch.
    """
    try:
        from planfreeze._tensors import TensorCheck
    except ImportError as error:
        return f"the extension is not installed: {error}"
    if not hasattr(torch.Tensor, EXCHANGE):
        return "this torch hands out no views of tensors to C; 2.10 is the first that does"
    try:
        TensorCheck(getattr(torch.Tensor, EXCHANGE), (), ())
    except ValueError as error:
        return f"this torch hands out views of tensors that are not known here: {error}"
    return ""


def build_check(torch: Any, device: Any, rows: Sequence[Row]) -> TakeTensors:
    """Return what the extension makes of rows.

    Raises
    ------
    NoView
        torch gives no view of a plain tensor of one of the types.
    RuntimeError
        torch makes no tensor on the device: the error is torch's own.
    """
    from planfreeze._tensors import TensorCheck

    likes = make_likes(torch, device, {dtype for _, dtype, _, _ in rows})
    found = tuple((place, likes[dtype], alignment, is_strict) for place, dtype, alignment, is_strict in rows)
    return TensorCheck(getattr(torch.Tensor, EXCHANGE), (torch.Tensor, torch.nn.Parameter), found).take


def make_likes(torch: Any, device: Any, dtypes: Set[Any]) -> Mapping[Any, Any]:
    """Return tensors without elements for some types at least, each made once.

    They are made in a thread of their own, because modes and transforms of torch belong to a thread: what is kept is
    plain, whatever the caller is in.
    """
    likes = known_likes(torch, device)
    missing = dtypes - likes.keys()
    if missing:
        with ThreadPoolExecutor(1) as threads:
            made = threads.map(lambda dtype: torch.empty(0, dtype=dtype, device=device), missing)
            likes.update(zip(missing, made, strict=True))
    return likes


@cache
def known_likes(torch: Any, device: Any) -> dict[Any, Any]:
    """Return the memo of tensors without elements on a device, by type: they hold no memory of it."""
    return {}


def take_nothing(values: tuple[Any, ...], numbers: bytes, words: memoryview) -> bool:
    """Take no tensors."""
    return False
