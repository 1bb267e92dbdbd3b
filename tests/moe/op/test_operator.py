"""The operator of torch: traced, compiled into whole graphs, and with handles of its own."""

import dataclasses
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from planfreeze.errors import (
    LayerReleased,
)
from planfreeze.kernels.moe.op import MoELayer, moe_layer
from planfreeze.models import Arm
from planfreeze.sessions import Session

from ...layer_calls import same_bits
from .conftest import ARMS, POISON, inputs


@contextmanager
def unguarded(frozen: Session) -> Iterator[None]:
    """What torch compiles, it compiles before the freeze: for as long the roads are open again."""
    guard = frozen._guard
    assert guard is not None
    guard.release()
    yield
    guard.arm()


def test_the_operator_returns_a_new_tensor_of_the_layer(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(5)
    found = moe_layer(x, ids, factors, layer.handle)
    assert same_bits(found, layer.run(x, ids, factors))
    assert same_bits(torch.ops.planfreeze.moe_layer(x, ids, factors, layer.handle), found)


@pytest.mark.parametrize("arm", ARMS)
def test_torch_finds_nothing_wrong_with_the_operator(make_layer: Callable[..., MoELayer], arm: Arm) -> None:
    layer = make_layer(arm)
    layer.workspace.fill_(POISON)
    passed = torch.library.opcheck(moe_layer, (*inputs(3), layer.handle))
    assert set(passed.values()) == {"SUCCESS"}


def test_the_operator_is_traced_on_tensors_without_memory() -> None:
    x, ids, factors = (value.to("meta") for value in inputs(7))
    found = moe_layer(x, ids, factors, torch.tensor(123))
    assert (found.shape, found.dtype, found.device.type) == (x.shape, x.dtype, "meta")


def test_a_whole_graph_of_layers_is_compiled_once_for_all_handles_and_token_counts(
    frozen: Session, make_layer: Callable[..., MoELayer]
) -> None:
    layers = [make_layer(arm) for arm in (*ARMS, *ARMS)]
    counts = (3, 8, 5, 4, 21, 9)
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=keep, dynamic=True)
    def call(x: Tensor, ids: Tensor, factors: Tensor, handle: Tensor) -> Tensor:
        return moe_layer(x * 2, ids, factors, handle) + 1

    def check() -> None:
        for layer, tokens in zip(layers, counts, strict=True):
            x, ids, factors = inputs(tokens)
            assert same_bits(call(x, ids, factors, layer.handle), layer.run(x * 2, ids, factors) + 1)
        assert len(graphs) == 1

    torch._dynamo.reset()
    with unguarded(frozen):
        check()
    check()
    assert not any(frozen.attempts.values())


def test_the_operator_traces_under_inference_mode_with_the_eager_backend(
    frozen: Session, make_layer: Callable[..., MoELayer]
) -> None:
    layer = make_layer()
    x, ids, factors = inputs(3)
    torch._dynamo.reset()
    with unguarded(frozen), torch.inference_mode():
        call = torch.compile(lambda *values: moe_layer(*values, layer.handle), fullgraph=True, backend="eager")
        assert same_bits(call(x, ids, factors), layer.run(x, ids, factors))


def test_layers_as_modules_compile_to_one_graph(frozen: Session, make_layer: Callable[..., MoELayer]) -> None:
    class Block(torch.nn.Module):
        def __init__(self, layer: MoELayer) -> None:
            super().__init__()
            self.handle = layer.handle

        def forward(self, x: Tensor, ids: Tensor, factors: Tensor) -> Tensor:
            return moe_layer(x, ids, factors, self.handle)

    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    layers = [make_layer() for _ in range(12)]
    values = inputs(3)
    with unguarded(frozen):
        for layer in layers:
            block = Block(layer)
            block.compile(fullgraph=True, backend=keep)
            assert same_bits(block(*values), layer.run(*values))
    assert len(graphs) <= 2


def test_a_copy_of_a_layer_has_a_handle_of_its_own(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    copied = dataclasses.replace(layer)
    assert copied.handle != layer.handle
    del copied
    gc.collect()
    moe_layer(*inputs(1), layer.handle)


def test_a_handle_lives_as_long_as_its_layer(make_layer: Callable[..., MoELayer]) -> None:
    layer, other = make_layer(), make_layer()
    handle = layer.handle
    assert handle != other.handle
    del layer
    gc.collect()
    with pytest.raises(LayerReleased, match=f"handle {int(handle)}"):
        moe_layer(*inputs(1), handle)
    moe_layer(*inputs(1), other.handle)


def test_serving_a_layer_imports_no_compiler() -> None:
    program = "import sys, planfreeze.kernels.moe.op; print(sorted({'triton', 'cutlass'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
