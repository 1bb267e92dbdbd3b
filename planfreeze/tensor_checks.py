"""Checks of tensors: all those of a call in one go, by an extension in C, where torch and the installation allow it."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

__all__ = ["TakeTensors", "find_obstacle", "make_check"]

TakeTensors: TypeAlias = Callable[[tuple[Any, ...], bytes, memoryview], bool]
"""Takes the values of a call, the elements that each tensor must have with the words behind those of tensors, and where
words go. Writes them all and returns True where every tensor is known to be right. False is no verdict."""


Row: TypeAlias = tuple[int, Any, int, bool]
"""What a tensor has to be: its place among the values of a call, its dtype, its alignment in bytes, and whether it must
be contiguous."""


def make_check(torch: Any, device: Any, rows: Sequence[Row]) -> TakeTensors:
    """Return what takes the tensors of calls; where that is not possible, something that takes none.

    It takes plain tensors and parameters alone: the facts of any other class are what its own code says.

    Parameters
    ----------
    torch : module
        torch.
    device : torch.device
        Where tensors have to be.
    rows : sequence of Row
        What they have to be.
    """
    try:
        return take_nothing if find_obstacle(torch) else build_check(torch, device, rows)
    except (TypeError, RuntimeError):  # torch exports no such dtype, or what it makes here are not plain tensors
        return take_nothing


@cache
def find_obstacle(torch: Any) -> str:
    """Return why tensors are looked at one by one here, or "" where they are taken in one go.

    torch hands out views of tensors to C from 2.10 on. Without a C compiler, an installation from source lacks the
    extension.
    """
    try:
        build_check(torch, "cpu", [(0, torch.float32, 1, True)])
    except ImportError as error:
        return f"the extension is not installed: {error}"
    except AttributeError:
        return "this torch hands out no views of tensors to C; 2.10 is the first that does"
    except ValueError as error:
        return f"this torch hands out views of tensors that are not known here: {error}"
    return ""


def build_check(torch: Any, device: Any, rows: Sequence[Row]) -> TakeTensors:
    """Return what the extension makes of rows, by a tensor without elements for each dtype."""
    from planfreeze._tensors import TensorCheck

    exchange = torch.Tensor.__dlpack_c_exchange_api__
    likes = {dtype: torch.empty(0, dtype=dtype, device=device) for dtype in {dtype for _, dtype, _, _ in rows}}
    found = tuple((place, likes[dtype], alignment, is_strict) for place, dtype, alignment, is_strict in rows)
    return TensorCheck(exchange, (torch.Tensor, torch.nn.Parameter), found).take


def take_nothing(values: tuple[Any, ...], numbers: bytes, words: memoryview) -> bool:
    """Take no tensors."""
    return False
