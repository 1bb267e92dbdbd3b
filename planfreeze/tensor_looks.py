"""Looks of tensors: whether those of a call look as those of one that was checked, by a single call into torch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

__all__ = ["TensorLooks", "find_guards"]


class TensorLooks:
    """What is known of the tensors of calls that passed a check.

    ``match(*tensors)`` is true of none but tensors that look as those that were learnt last: the same types, and of
    each the same kind and number of device, layout, dtype, sizes and strides. It says nothing of addresses. No tensor
    is kept alive. False is no verdict: the tensors have to be looked at one by one.

    Parameters
    ----------
    guards : callable, optional
        What :func:`find_guards` returns; without it nothing ever matches.
    """

    __slots__ = ("_guards", "_unknown", "match")

    def __init__(self, guards: Callable[..., Any] | None) -> None:
        self._guards = guards
        self._unknown = 0
        self.match: Callable[..., bool] = match_nothing

    def learn(self, tensors: Sequence[Any]) -> None:
        """Hear of tensors that did not match and passed the check.

        They are learnt at the first, second, fourth, eighth... of these calls alone: calls whose tensors never look
        alike pay next to nothing for it, and those that do are known after as many calls as there were before.
        """
        self._unknown = unknown = self._unknown + 1
        if self._guards is not None and unknown & (unknown - 1) == 0:
            self.match = self._guards(tensors) or self.match


def match_nothing(*tensors: Any) -> bool:
    """Match no tensors."""
    return False


@cache
def find_guards(torch: Any) -> Callable[[Sequence[Any]], Callable[..., bool] | None] | None:
    """Return what makes a match of tensors, or None where this torch has nothing that can.

    torch guards the calls of its compiled functions with it; since it is none of torch's public names, it is tried
    first. What it makes is None for a subclass of tensors, whose facts are what its own code says at every call, for
    tensors without strides, and for one tensor in two places, which torch never takes for the same as before.

    Notes
    -----
    A nested tensor of strided layout, which torch has given up, has no strides to compare: asked of one, a match ends
    the process, as torch lets the error through.
    """
    made = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    guards = getattr(made, "TensorGuards", None)
    if guards is None:
        return None
    plain = {torch.Tensor, torch.nn.Parameter}

    def make_match(tensors: Sequence[Any]) -> Callable[..., bool] | None:
        is_strided = all(tensor.layout is torch.strided and not tensor.is_nested for tensor in tensors)
        if not is_strided or not plain.issuperset(map(type, tensors)):
            return None
        # Both names have to be there, and None says that sizes and strides are those of the tensors (2.4 to 2.13).
        match: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return match if match(*tensors) else None

    return make_match if is_exact(torch, make_match) else None


def is_exact(torch: Any, make_match: Callable[[Sequence[Any]], Callable[..., bool] | None]) -> bool:
    """Tell whether a match takes what looks the same and refuses what differs in any one way."""
    known, same, partner = (torch.empty(2, 3, device="cpu") for _ in range(3))
    others = (
        known.int(),
        known.to("meta"),
        known.view(3, 2),
        known.view(3, 2).T,
        known.view(6),
        known.as_subclass(type("Subclass", (torch.Tensor,), {})),
    )
    try:
        match = make_match((known, partner))
        if match is None or not match(same, partner):
            return False
        return not any(match(other, partner) or match(partner, other) for other in others)
    except (AttributeError, TypeError):  # of a torch where it is called otherwise
        return False
