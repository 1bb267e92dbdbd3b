"""Checks of tensors, all those of a call in one go; written in C, in tensors.c and headers beside it."""

from typing import Any

__all__ = ["NoView", "TensorCheck"]

class NoView(Exception):
    """torch hands out no view of a tensor that a row is like, or it is no plain tensor."""

class TensorCheck:
    """What the tensors of a program's calls have to be.

    Parameters
    ----------
    exchange : capsule
        ``torch.Tensor.__dlpack_c_exchange_api__``.
    classes : tuple of type
        Types whose tensors are nothing but what torch says of them.
    rows : tuple of (int, tensor, int, bool)
        For each tensor its place among the values of a call, one of the dtype and on the device wanted, the alignment
        in bytes, and whether it must be contiguous.

    Raises
    ------
    NoView
        A row is like no plain tensor, or like one that torch has no view of.
    ValueError
        The table is of no version that is known here, or has no function for views; a row has a negative place, or an
        alignment of 0.
    """

    def __new__(
        cls, exchange: Any, classes: tuple[type, ...], rows: tuple[tuple[int, Any, int, bool], ...], /
    ) -> TensorCheck: ...
    def take(self, values: tuple[Any, ...], numbers: bytes, words: Any, /) -> bool:
        """Write the words of a call and return True where every tensor is known to be what its row wants.

        ``numbers`` holds the elements that each tensor must have at least, as int64, and behind them words that are
        taken as they are. False says nothing but that the tensors have to be looked at one by one.
        """
