"""What a call of a layer launches, with which arguments, and what it computes above the limit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import asdict
from torch import Tensor

from planfreeze.kernels.moe.op import MoELayer
from planfreeze.models import Arm

from ...layer_calls import same_bits
from .conftest import EXPERTS, HIDDEN, POISON, Weights, expected, inputs, launches, native_planes

MICRO = ["micro_fc1", "micro_act", "micro_fc2"]
GROUPED = ["route_plan", "split_fc1", "split_fc2"]
DECODE = ["csf_presence", "csf_decode", "csf_decode"]


@pytest.mark.parametrize(
    ("arm", "tokens", "names"),
    [
        ("inline", 3, MICRO),
        ("inline", 9, GROUPED),
        ("inline", 21, ["expand", "expand", *GROUPED]),
        ("expand", 3, [*DECODE, *MICRO]),
        ("expand", 9, [*DECODE, *GROUPED]),
        ("expand", 41, [*DECODE, *GROUPED]),
        ("native", 3, MICRO),
        ("native", 41, GROUPED),
    ],
)
def test_the_launches_of_a_call_are_those_of_its_arm_and_its_count(
    make_layer: Callable[..., MoELayer], arm: Arm, tokens: int, names: list[str]
) -> None:
    layer = make_layer(arm)
    layer.run(*inputs(tokens))
    assert [name for name, _ in launches(layer)] == ["act_quant", *names, "topk_sum"]


def test_kernels_get_live_counts_and_the_rows_of_the_capacity(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    layer.run(*inputs(3))
    found = launches(layer)
    assert [words.get("tokens", words.get("pairs")) for _, words in found] == [3, 6, 6, 6, 3]
    assert [found[i][1]["rows"] for i in (2, 3)] == [8, 8]
    layer.run(*inputs(5))
    assert [found[i][1]["rows"] for i in (7, 8)] == [16, 16]
    layer.run(*inputs(9))
    assert [words.get("tokens", words.get("pairs")) for _, words in found[10:]] == [9, 18, 9, 18, 9]
    # 40 routes of 4 experts take at most 5 + 3 tiles of 8 rows.
    assert [(words["rows"], words["m_tiles"]) for _, words in found[11:14]] == [(64, 8)] * 3


SCALARS = {"tokens", "pairs", "experts", "rows", "m_tiles", "hidden"}


@pytest.mark.parametrize("tokens", [1, 8, 9, 20])
def test_an_inline_call_points_to_its_inputs_scratch_weights_and_compressed_scales_alone(
    make_layer: Callable[..., MoELayer], tokens: int
) -> None:
    layer = make_layer()
    x, ids, factors = inputs(tokens)
    out = torch.empty_like(x)
    layer.run(x, ids, factors, out)
    experts = layer.experts
    used = [part for name, part in vars_of(layer.scratch).items() if name not in ("w13_plane", "w2_plane", "presence")]
    owners = [x, ids, factors, out, *used, experts.w13, experts.w2, experts.alpha1, experts.alpha2]
    owners += [experts.w13_scales.storage, experts.w2_scales.storage]
    spans = [range(owner.data_ptr(), owner.data_ptr() + owner.nbytes) for owner in owners]
    for name, words in launches(layer):
        for argument, address in words.items():
            assert argument in SCALARS or any(address in span for span in spans), (name, argument)


def vars_of(scratch: Any) -> dict[str, Tensor]:
    return asdict(scratch)


@pytest.mark.parametrize("tokens", [1, 8, 9, 20])
def test_inline_calls_leave_the_planes_of_expanding_capacities_alone(
    make_layer: Callable[..., MoELayer], tokens: int
) -> None:
    layer = make_layer()
    assert len(layer.scratch.w13_plane) == EXPERTS * 128 * 8
    layer.workspace.fill_(POISON)
    layer.run(*inputs(tokens))
    assert (layer.scratch.w13_plane == POISON).all()
    assert (layer.scratch.w2_plane == POISON).all()


@pytest.mark.parametrize("tokens", [21, 41])
def test_above_the_limit_a_call_expands_all_experts_into_the_shared_planes(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int
) -> None:
    layer = make_layer()
    for _ in range(2):
        layer.workspace.fill_(POISON)
        layer.run(*inputs(tokens))
        w13, w2 = native_planes(layer, weights)
        assert torch.equal(layer.scratch.w13_plane, w13)
        assert torch.equal(layer.scratch.w2_plane, w2)


@pytest.mark.parametrize("tokens", [8, 20])
def test_the_expansion_arm_decodes_the_experts_of_a_call_alone(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int
) -> None:
    layer = make_layer("expand")
    x, ids, factors = inputs(tokens)
    ids.fill_(-1)
    ids[0] = torch.tensor([2, 1])
    layer.workspace.fill_(POISON)
    found = layer.run(x, ids, factors)
    assert same_bits(found, expected(weights, x, ids, factors, layer.experts))
    assert layer.scratch.presence.tolist() == [0, 1, 1, 0]
    for plane, native in zip(
        (layer.scratch.w13_plane, layer.scratch.w2_plane), native_planes(layer, weights), strict=True
    ):
        by_expert, wanted = plane.view(EXPERTS, -1), native.view(EXPERTS, -1)
        assert torch.equal(by_expert[1:3], wanted[1:3])
        assert (by_expert[::3] == POISON).all()


def test_a_call_without_tokens_launches_nothing(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    out = layer.run(*inputs(0))
    assert (out.shape, out.dtype, launches(layer)) == ((0, HIDDEN), torch.bfloat16, [])
