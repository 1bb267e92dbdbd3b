"""What may become of a tensor between two calls, and the modes of torch that calls may be made in."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Subclass(torch.Tensor):  # type: ignore[misc]
    """Tensors whose facts are what Python says."""


class Dispatching(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation, and lets it be."""

    def __torch_dispatch__(self, call: Any, types: Any, values: Any = (), named: Any = None) -> Any:
        return call(*values, **(named or {}))


class Calling(TorchFunctionMode):  # type: ignore[misc]
    """Sees every call of torch, and lets it be."""

    def __torch_function__(self, call: Any, types: Any, values: Any = (), named: Any = None) -> Any:
        return call(*values, **(named or {}))


def resize(tensor: Any) -> Any:
    return tensor.resize_(max(1, tensor.numel() - 1))


def set_data(tensor: Any) -> Any:
    tensor.data = torch.zeros(2 * tensor.numel() + 1, dtype=tensor.dtype)[1:].double()
    return tensor


def set_other_data(tensor: Any) -> Any:
    tensor.data = torch.zeros(2 * tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return tensor


def free(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


def move(tensor: Any) -> Any:
    return tensor.set_(torch.zeros(200, dtype=tensor.dtype).untyped_storage(), 1, tensor.size(), tensor.stride())


def make_fake(tensor: Any) -> Any:
    with FakeTensorMode():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)


def turn(tensor: Any) -> Any:
    return tensor.transpose_(0, -1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda t: t,
    "another like it": lambda t: torch.zeros_like(t),
    "a view of it": lambda t: t.view(t.shape),
    "one element later": lambda t: torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape),
    "four elements later": lambda t: torch.zeros(t.numel() + 4, dtype=t.dtype)[4:].view(t.shape),
    "longer": lambda t: torch.zeros(2 * t.numel(), dtype=t.dtype),
    "shorter": lambda t: torch.zeros(t.numel() - 1, dtype=t.dtype),
    "empty": lambda t: torch.zeros(0, dtype=t.dtype),
    "first row": lambda t: t[:1],
    "transposed": lambda t: t.reshape(2, -1).T,
    "every second": lambda t: torch.zeros(2 * t.numel(), dtype=t.dtype)[::2],
    "expanded": lambda t: torch.zeros(1, dtype=t.dtype).expand(t.shape),
    "another dtype": lambda t: t.double(),
    "the same bits of another dtype": lambda t: t.view(torch.int32 if t.dtype == torch.float32 else torch.float32),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "compressed": lambda t: t.reshape(2, -1).to_sparse_csr(),
    "needs a gradient": lambda t: torch.zeros(t.shape, dtype=t.dtype).requires_grad_(t.is_floating_point()),
    "parameter": lambda t: torch.nn.Parameter(torch.zeros(t.shape, dtype=t.dtype), requires_grad=False),
    "subclass": lambda t: torch.zeros(t.shape, dtype=t.dtype).as_subclass(Subclass),
    "buffer": lambda t: torch.nn.Buffer(torch.zeros(t.shape, dtype=t.dtype)),
    "negated lazily": lambda t: torch._neg_view(torch.zeros(t.shape, dtype=t.dtype)),
    "imaginary part": lambda t: torch.zeros(t.shape, dtype=torch.complex64).conj().imag,
    "conjugated lazily": lambda t: torch.zeros(t.shape, dtype=torch.complex64).conj(),
    "copied lazily": lambda t: torch._lazy_clone(torch.zeros(t.shape, dtype=t.dtype)),
    "functional": lambda t: torch._to_functional_tensor(torch.zeros(t.shape, dtype=t.dtype)),
    "fake": make_fake,
    "nested": lambda t: torch.nested.nested_tensor([torch.zeros(t.numel()), torch.zeros(t.numel())]),
    "jagged": lambda t: torch.nested.nested_tensor([torch.zeros(t.numel())] * 2, layout=torch.jagged),
    "of another library": lambda t: t.float().contiguous().to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "one element": lambda t: torch.zeros((), dtype=t.dtype),
    "odd strides of sizes 1": lambda t: torch.zeros(99, dtype=t.dtype).as_strided((1, t.numel(), 1), (7, 1, 9)),
    "odd strides without elements": lambda t: torch.zeros(99, dtype=t.dtype).as_strided((3, 0, 2), (5, 7, 11)),
    "overlapping": lambda t: torch.zeros(99, dtype=t.dtype).as_strided((5, t.numel()), (1, 1)),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "resized in place": resize,
    "other data of another dtype": set_data,
    "other data": set_other_data,
    "freed": free,
    "freed in part of another": lambda t: free(torch.zeros(t.numel() + 4, dtype=t.dtype)[4:].view(t.shape)),
    "freed without elements": lambda t: free(torch.zeros(8, dtype=t.dtype)[4:4]),
    "functional part of another": lambda t: torch._to_functional_tensor(torch.zeros(t.numel() + 4, dtype=t.dtype))[4:],
    "moved in place": move,
    "turned in place": turn,
    "no tensor": lambda t: "rows",
    "an address": lambda t: t.data_ptr(),
    "none": lambda t: None,
}
UNREADABLE = {
    "compressed",
    "copied lazily",
    "fake",
    "freed",
    "freed in part of another",
    "freed without elements",
    "functional",
    "functional part of another",
    "jagged",
    "nested",
    "of another library",
    "quantized",
    "sparse",
    "zeros without memory",
}
"""What no other change is made from: their elements are nowhere."""
MODES = {
    "plain": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another default device": lambda: torch.device("meta"),
    "dispatching": Dispatching,
    "calling": Calling,
    "fake tensors": FakeTensorMode,
}
