"""The references of the grouped path, against independent computations."""

import math

import pytest
import torch

from planfreeze.kernels.moe.geometry import LAYOUTS
from planfreeze.kernels.moe.reference import (
    dequantise_mxfp4,
    dequantise_mxfp8,
    exact_layer,
    micro_layer,
    quantise_intermediate,
    quantise_mxfp8,
    sum_routes,
)
from planfreeze.kernels.moe.reference_grouped import (
    grouped_layer,
    place_routes,
    split_activation,
    split_fc1,
    split_fc2,
)
from planfreeze.kernels.moe.reference_rows import arrange_rows, read_rows

from ..layer_calls import relative_l2
from .layer_by_route import Layer, exactly, to_bf16, to_mxfp8


@pytest.mark.parametrize("tile_m", [1, 8, 16])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_routes_are_placed_by_expert_in_pair_order(tile_m, dtype):
    experts = 5
    ids = torch.tensor([4, 1, -1, 1, 4, 5, 1, 0] + [1] * 20 + [4]).view(1, -1).to(dtype)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1))
    routes = place_routes(ids, weights, experts=experts, tile_m=tile_m)
    rows, owners, valid = [], [], []
    for expert in range(experts):
        pairs = [pair for pair, found in enumerate(ids.flatten().tolist()) if found == expert]
        for first in range(0, len(pairs), tile_m):
            part = pairs[first : first + tile_m]
            rows += part + [-1] * (tile_m - len(part))
            owners.append(expert)
            valid.append(len(part))
    assert routes.token_map.tolist() == rows and routes.token_map.dtype == torch.int32
    assert routes.tile_expert.tolist() == owners and routes.tile_valid.tolist() == valid
    assert {routes.tile_expert.dtype, routes.tile_valid.dtype} == {torch.int32}
    assert (routes.tiles, routes.rows) == (len(owners), len(rows))
    expected = [0.0 if pair < 0 else weights.flatten()[pair].item() for pair in rows]
    assert routes.row_weight.tolist() == expected and routes.row_weight.dtype == torch.float32
    assert routes.is_live.tolist() == [pair >= 0 for pair in rows]
    by_expert = {expert: routes.token_map[found].tolist() for expert, found in routes.by_expert()}
    assert by_expert == {0: [7], 1: [1, 3, 6, *range(8, 28)], 4: [0, 4, 28]}


def test_no_valid_route_gives_no_tile():
    ids = torch.tensor([[-1, 3], [7, -5]])
    routes = place_routes(ids, torch.ones(2, 2), experts=3, tile_m=16)
    assert (routes.tiles, routes.rows) == (0, 0)
    assert not list(routes.by_expert())
    codes = torch.zeros(3, 256, 32, dtype=torch.uint8)
    scales = torch.zeros(3, 256, 2, dtype=torch.uint8)
    payload = torch.zeros(0, 128, dtype=torch.uint8)
    found = split_fc2(payload, payload[:, :4], codes, scales, routes, 4)
    assert found.shape == (4, 256) and not found.any()


def test_activation_equals_the_formula_and_rounds_once():
    generator = torch.Generator().manual_seed(8)
    gate, up = 4 * torch.randn(2, 5, 64, generator=generator, dtype=torch.float64)
    for limit in (None, 3.0):
        found = split_activation(gate, up, limit=limit)
        for row in range(5):
            for column in range(64):
                g, u = gate[row, column].item(), up[row, column].item()
                if limit is not None:
                    g, u = min(g, limit), min(max(u, -limit), limit)
                expected = torch.tensor(g / (1 + math.exp(-g)) * u, dtype=torch.float64).bfloat16()
                assert found[row, column] == expected
    rounded = split_activation(gate.bfloat16(), up.bfloat16())
    assert (rounded != split_activation(gate, up)).double().mean() > 0.2


@pytest.mark.parametrize("arch", sorted(LAYOUTS))
@pytest.mark.parametrize("tile_m", [8, 16, 32])
def test_reading_rows_inverts_arranging_them(arch, tile_m):
    generator = torch.Generator().manual_seed(9)
    activations = torch.randn(3, 192, generator=generator).bfloat16()
    activations[1, 64:96] = 0
    activations[2, 5] = torch.nan
    payload, scales = quantise_intermediate(activations)
    rows = 2 * tile_m
    stored = arrange_rows(payload, scales, arch, rows + 1, tile_m)
    found, found_scales = read_rows(stored, arch, rows + 1, 192, tile_m)
    assert found.shape == (rows, 256) and found_scales.shape == (rows, 8) and found_scales.dtype == torch.uint8
    assert found[:3].equal(payload) and found_scales[:3].equal(scales)
    assert (found[3:] == 255).all()


class GroupedLayer(Layer):
    """A layer of more tokens than the direct route takes, and its stages."""

    tokens = 9

    def stages(self, tile_m):
        """Run the stages over tiles of ``tile_m`` rows; return the activations and the route rows."""
        routes = place_routes(self.ids, self.weights, experts=self.experts, tile_m=tile_m)
        inputs = quantise_mxfp8(self.x)
        activations = split_fc1(*inputs, *self.w13, routes, self.top_k, alpha=self.alpha1)
        pairs = self.ids.numel()
        products = split_fc2(*quantise_intermediate(activations), *self.w2, routes, pairs, alpha=self.alpha2)
        return routes, activations, products


def to_mxfp8_at_once(values):
    return dequantise_mxfp8(*quantise_mxfp8(values.float().view(1, -1)))[0]


ROUNDINGS = {
    "round_input": to_mxfp8,
    "round_projections": exactly,
    "round_activations": to_mxfp8,
    "round_routes": to_bf16,
}


@pytest.mark.parametrize("limit", [None, 0.5])
def test_grouped_layer_rounds_where_the_kernels_do(limit):
    layer = GroupedLayer()
    found = layer.run(grouped_layer, limit=limit)
    assert found.dtype == torch.bfloat16 and found.shape == (layer.tokens, layer.hidden)
    # The sums of three bf16 rows in float64 and in fp32 round to the same bf16, but for a last bit here and there.
    expected = layer.compute(limit=limit, **ROUNDINGS).bfloat16()
    assert (found == expected).double().mean() > 0.99
    assert relative_l2(found, expected) < 4e-4
    # Every rounding counts, in its own place: with another one many results are others.
    others = [
        ("round_input", exactly),
        ("round_projections", to_bf16),
        ("round_activations", exactly),
        ("round_activations", to_mxfp8_at_once),
        ("round_routes", exactly),
    ]
    for name, rounding in others:
        other = layer.compute(limit=limit, **{**ROUNDINGS, name: rounding}).bfloat16()
        assert (found == other).double().mean() < 0.8, (name, rounding)


def test_tolerance_of_the_kernels_tells_the_grouped_layer_from_the_one_of_few_tokens():
    layer = GroupedLayer()
    assert relative_l2(layer.run(micro_layer), layer.run(grouped_layer)) > 4e-3


def test_grouped_layer_is_as_close_to_the_exact_layer_as_two_quantisations_allow():
    layer = GroupedLayer()
    assert 1e-2 < relative_l2(layer.run(grouped_layer), layer.run(exact_layer)) < 6e-2
    assert relative_l2(layer.run(grouped_layer, limit=0.5), layer.run(grouped_layer)) > 0.1


def test_token_without_a_valid_route_is_zero():
    layer = GroupedLayer()
    before = layer.run(grouped_layer)
    layer.ids[2] = torch.tensor([-1, layer.experts, -7])
    found = layer.run(grouped_layer)
    others = [token for token in range(layer.tokens) if token != 2]
    assert before[2].any() and not found[2].any()
    assert found[others].equal(before[others])


@pytest.mark.parametrize("tile_m", [4, 16])
def test_stages_make_up_the_layer_whatever_the_tiles(tile_m):
    layer = GroupedLayer()
    routes, activations, products = layer.stages(tile_m)
    assert 0 < routes.is_live.sum() < routes.rows
    assert torch.isnan(activations[~routes.is_live]).all() and not torch.isnan(activations[routes.is_live]).any()
    assert sum_routes(products, layer.top_k).equal(layer.run(grouped_layer))
    assert not products[5].any() and not products[12].any() and products[4].any()


def test_stages_equal_dense_products_per_route():
    layer = GroupedLayer()
    routes, activations, products = layer.stages(8)
    x = dequantise_mxfp8(*quantise_mxfp8(layer.x))
    inner = dequantise_mxfp8(*quantise_intermediate(activations))
    w13, w2 = dequantise_mxfp4(*layer.w13), dequantise_mxfp4(*layer.w2)
    for row, pair in enumerate(routes.token_map.tolist()):
        if pair < 0:
            continue
        token, j = divmod(pair, layer.top_k)
        expert = int(layer.ids[token, j])
        for column in (0, 17, 191):
            up = (w13[expert, column] * x[token]).sum() * layer.alpha1[expert].double()
            gate = (w13[expert, 192 + column] * x[token]).sum() * layer.alpha1[expert].double()
            expected = (gate * torch.sigmoid(gate) * up).item()
            assert activations[row, column].item() == pytest.approx(expected, rel=2**-8)
            value = (w2[expert, column] * inner[row, :192]).sum() * layer.alpha2[expert].double()
            expected = (value * layer.weights[token, j].double()).item()
            assert products[pair, column].item() == pytest.approx(expected, rel=2**-8)


@pytest.mark.gpu
def test_grouped_layer_on_a_device_equals_the_one_on_the_host():
    layer = GroupedLayer()
    found = layer.run(grouped_layer, device="cuda")
    assert found.is_cuda
    assert relative_l2(found.cpu(), layer.run(grouped_layer)) <= 4e-3
