"""Layers on a device without a GPU: real programs of a frozen session, run by their references."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.sessions import Session

from ...layer_calls import same_bits
from .conftest import (
    ARMS,
    EXPERTS,
    HIDDEN,
    ID_DTYPES,
    POISON,
    WHOLE,
    WHOLE_ARMS,
    Weights,
    expected,
    inputs,
    launches,
    plan,
)


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9, 20, 21, 40, 41, 200])
def test_all_arms_compute_the_reference_over_poisoned_scratch(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int, dtype: torch.dtype
) -> None:
    x, ids, factors = inputs(tokens, dtype)
    for arm in ARMS:
        layer = make_layer(arm)
        layer.workspace.fill_(POISON)
        out = torch.full((tokens, HIDDEN), torch.nan, dtype=torch.bfloat16)
        assert layer.run(x, ids, factors, out) is out
        assert out.any()
        assert same_bits(out, expected(weights, x, ids, factors, layer.experts))


@pytest.mark.parametrize("tokens", [1, 8, 17, 64])
def test_whole_row_tiles_are_grouped_at_every_capacity(frozen: Session, whole_weights: Weights, tokens: int) -> None:
    x, ids, factors = inputs(tokens)
    for arm in WHOLE_ARMS:
        layer = bind(plan(arm, model=WHOLE), frozen, whole_weights.prepare(arm))
        layer.workspace.fill_(POISON)
        found = layer.run(x, ids, factors)
        assert same_bits(found, expected(whole_weights, x, ids, factors, layer.experts, is_grouped=True))
        assert "split_fc1" in [name for name, _ in launches(layer)]


@pytest.mark.parametrize("tokens", [8, 20, 40])
def test_factors_of_experts_reach_the_projection_they_belong_to(frozen: Session, weights: Weights, tokens: int) -> None:
    experts = weights.prepare("inline")
    changed = replace(experts, alpha1=torch.tensor([0.5, 1.0, 2.0, 3.0]), alpha2=torch.tensor([1.5, 0.25, 1.0, -1.0]))
    layer = bind(plan(), frozen, changed)
    x, ids, factors = inputs(tokens)
    assert same_bits(layer.run(x, ids, factors), expected(weights, x, ids, factors, changed))
    assert not same_bits(layer.run(x, ids, factors), expected(weights, x, ids, factors, experts))


@pytest.mark.parametrize("tokens", [8, 20, 40])
def test_routes_to_no_expert_contribute_zero(make_layer: Callable[..., MoELayer], tokens: int) -> None:
    for arm in ARMS:
        layer = make_layer(arm)
        for invalid in (-1, EXPERTS, 2**40):
            x, ids, factors = inputs(tokens, torch.int64)
            layer.workspace.fill_(POISON)
            out = torch.full_like(x, torch.nan)
            assert not layer.run(x, ids.fill_(invalid), factors, out).any()


def test_all_routes_may_go_to_one_expert(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    for arm in ARMS:
        layer = make_layer(arm)
        for tokens in (20, 40, 200):
            x, ids, factors = inputs(tokens)
            layer.workspace.fill_(POISON)
            found = layer.run(x, ids.fill_(3), factors)
            assert same_bits(found, expected(weights, x, ids, factors, layer.experts))


def test_a_smaller_capacity_computes_the_same_as_a_larger_one_of_its_backend(frozen: Session, weights: Weights) -> None:
    experts = weights.prepare("inline")
    small, large = plan(), plan(capacities=(200,))
    assert small.choose(12).counts != large.choose(12).counts
    values = inputs(12)
    assert same_bits(bind(small, frozen, experts).run(*values), bind(large, frozen, experts).run(*values))


def test_layers_share_a_workspace(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    size = max(plan(arm).scratch.workspace for arm in ARMS)
    workspace = torch.full((size + 64,), POISON, dtype=torch.uint8)
    layers = [make_layer(arm, workspace=workspace) for arm in ARMS]
    for tokens in (8, 40, 1, 20, 5, 9):
        x, ids, factors = inputs(tokens)
        for layer in layers:
            found = layer.run(x, ids, factors)
            assert same_bits(found, expected(weights, x, ids, factors, layer.experts))
    assert (workspace[size:] == POISON).all()
    assert {layer.scratch.a8.data_ptr() for layer in layers} == {workspace.data_ptr()}


def test_inference_mode_changes_nothing(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    x, ids, factors = inputs(3)
    with torch.inference_mode():
        layer = make_layer()
        out = layer.run(x, ids, factors)
    assert same_bits(out, expected(weights, x, ids, factors, layer.experts))
    assert same_bits(make_layer().run(x, ids, factors), out)


def test_the_result_may_replace_the_input(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(4)
    wanted = layer.run(x, ids, factors)
    assert same_bits(layer.run(x, ids, factors, out=x), wanted)
