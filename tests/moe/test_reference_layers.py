"""The reference of whole layers, against loops over routes that round where the kernels do."""

import pytest
import torch

from planfreeze.kernels.moe.reference import (
    cosine,
    exact_layer,
    micro_activation,
    micro_fc1,
    micro_fc2,
    micro_layer,
    quantise_intermediate,
    sum_routes,
)

from ..layer_calls import relative_l2
from .layer_by_route import Layer, exactly, to_bf16, to_mxfp8


@pytest.mark.parametrize("limit", [None, 0.5])
def test_micro_layer_rounds_where_the_kernels_do(limit):
    layer = Layer()
    found = layer.run(micro_layer, limit=limit)
    assert found.dtype == torch.bfloat16 and found.shape == (layer.tokens, layer.hidden)
    roundings = {
        "round_input": to_mxfp8,
        "round_projections": to_bf16,
        "round_activations": to_mxfp8,
        "round_routes": to_bf16,
    }
    # The sums of three bf16 rows in float64 and in fp32 round to the same bf16, but for a last bit here and there.
    expected = layer.compute(limit=limit, **roundings).bfloat16()
    assert (found == expected).double().mean() > 0.99
    assert relative_l2(found, expected) < 4e-4
    # Every rounding counts: without it many results are others.
    for name in roundings:
        other = layer.compute(limit=limit, **{**roundings, name: exactly}).bfloat16()
        assert (found == other).double().mean() < 0.8, name


def test_micro_layer_is_close_to_the_exact_layer_and_no_closer_than_its_roundings():
    layer = Layer()
    exact = layer.run(exact_layer)
    assert exact.dtype == torch.float64
    own = layer.compute(round_input=exactly, round_projections=exactly, round_activations=exactly, round_routes=exactly)
    torch.testing.assert_close(exact, own, rtol=1e-12, atol=1e-12)
    found = layer.run(micro_layer)
    assert cosine(found, exact) >= 0.9975
    # Two quantisations to three fraction bits: well beyond the 4e-3 that kernels are held to.
    assert 1e-2 < relative_l2(found, exact) < 6e-2


def test_limit_reaches_both_layers():
    layer = Layer()
    own = layer.compute(
        round_input=exactly,
        round_projections=exactly,
        round_activations=exactly,
        round_routes=exactly,
        limit=0.5,
    )
    torch.testing.assert_close(layer.run(exact_layer, limit=0.5), own, rtol=1e-12, atol=1e-12)
    assert relative_l2(layer.run(micro_layer, limit=0.5), layer.run(micro_layer)) > 0.1


@pytest.mark.parametrize("layer_of", [micro_layer, exact_layer])
def test_token_without_a_valid_route_is_zero(layer_of):
    layer = Layer()
    before = layer.run(layer_of)
    layer.ids[2] = torch.tensor([-1, layer.experts, -7])
    found = layer.run(layer_of)
    assert before[2].any() and not found[2].any()
    others = [token for token in range(layer.tokens) if token != 2]
    torch.testing.assert_close(found[others], before[others], rtol=1e-12 if layer_of is exact_layer else 0, atol=1e-12)


def test_stages_make_up_the_layer():
    layer = Layer()
    projections = micro_fc1(layer.x, *layer.w13, layer.ids, alpha=layer.alpha1)
    activations = micro_activation(projections, layer.ids, layer.experts)
    routes = micro_fc2(*quantise_intermediate(activations), *layer.w2, layer.ids, layer.weights, alpha=layer.alpha2)
    assert sum_routes(routes, layer.top_k).equal(layer.run(micro_layer))
    assert not routes[5].any() and not routes[12].any() and routes[4].any()


def test_cosine():
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert cosine(a, -2 * a) == pytest.approx(-1, abs=1e-15)
    assert cosine(a, torch.tensor([[5.0, 0.0], [0.0, 0.0]])) == pytest.approx(0.6, abs=1e-15)
    assert cosine(a.bfloat16(), torch.tensor([[0.0, 0.0], [1.0, 0.0]])) == 0


@pytest.mark.gpu
def test_layers_on_a_device_equal_those_on_the_host():
    layer = Layer()
    for layer_of, tolerance in ((micro_layer, 4e-3), (exact_layer, 1e-12)):
        found = layer.run(layer_of, device="cuda")
        assert found.is_cuda
        assert relative_l2(found.cpu(), layer.run(layer_of)) <= tolerance
