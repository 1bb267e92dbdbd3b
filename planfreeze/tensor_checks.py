"""Checks of tensors: all those of a call in one go, by an extension in C, where torch and the installation allow it."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

__all__ = ["TakeTensors", "find_obstacle", "make_check"]

TakeTensors: TypeAlias = Callable[[tuple[Any, ...], bytes, memoryview], bool]
"""Takes the values of a call, the elements that each tensor must have with the words behind those of tensors, and where
words go. Writes them all and returns True where every tensor is known to be right. False is no verdict."""


def make_check(torch: Any, rows: Sequence[tuple[int, Any, int, bool]]) -> TakeTensors:
    """Return what takes the tensors of calls; where that is not possible, something that takes none.

    It takes plain tensors and parameters alone: the facts of any other class are what its own code says.

    Parameters
    ----------
    torch : module
        torch.
    rows : sequence of (int, tensor, int, bool)
        For each tensor its place among the values of a call, a tensor of the dtype and on the device that are wanted,
        the alignment in bytes, and whether it must be contiguous.
    """
    try:
        return take_nothing if find_obstacle(torch) else build_check(torch, rows)
    except (TypeError, RuntimeError):  # torch exports no such dtype, or what it makes here are not plain tensors
        return take_nothing


@cache
def find_obstacle(torch: Any) -> str:
    """Return why tensors are looked at one by one here, or "" where they are taken in one go.

    torch hands out views of tensors to C from 2.10 on. Without a C compiler, an installation from source lacks the
    extension.
    """
    try:
        build_check(torch, [(0, torch.empty(0, device="cpu"), 1, True)])
    except ImportError as error:
        return f"the extension is not installed: {error}"
    except AttributeError:
        return f"torch {torch.__version__} hands out no views of tensors to C; 2.10 is the first that does"
    except ValueError as error:
        return f"torch {torch.__version__} hands out views of tensors that are not known here: {error}"
    return ""


def build_check(torch: Any, rows: Sequence[tuple[int, Any, int, bool]]) -> TakeTensors:
    """Return what the extension makes of rows."""
    from planfreeze._tensors import TensorCheck

    classes = (torch.Tensor, torch.nn.Parameter)
    return TensorCheck(torch.Tensor.__dlpack_c_exchange_api__, classes, tuple(rows)).take


def take_nothing(values: tuple[Any, ...], numbers: bytes, words: memoryview) -> bool:
    """Take no tensors."""
    return False
