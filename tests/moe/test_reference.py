"""The references of single stages, against independent computations."""

import math

import pytest
import torch

from planfreeze.errors import InvalidWeights, UnknownArch
from planfreeze.kernels.moe.geometry import LAYOUTS, intermediate_bytes, intermediate_scale_offset
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    arrange_intermediate,
    dequantise_mxfp4,
    dequantise_mxfp8,
    intermediate_planes,
    micro_activation,
    micro_fc1,
    micro_fc2,
    quantise_intermediate,
    quantise_mxfp8,
    scale_values,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def e4m3_values() -> list[float]:
    """Finite non-negative E4M3 numbers, from the format's definition."""
    values = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        values.append((8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9)
    return values


def quantise_block(block: list[float]) -> tuple[list[int], int]:
    """Quantise 32 finite numbers by searching, in exact arithmetic but for the one product the rule rounds."""
    amax = max(abs(value) for value in block)
    scaled = (torch.tensor(amax, dtype=torch.float32) * torch.tensor(1 / 448, dtype=torch.float32)).item()
    byte = 127 if amax == 0 else max(1, math.ceil(math.log2(scaled)) + 127)
    payload = []
    for value in block:
        target = abs(value) * 2.0 ** (127 - byte)
        code = min(range(127), key=lambda c: (abs(e4m3_values_table[c] - target), c & 1))
        payload.append(code | (128 if math.copysign(1, value) < 0 else 0))
    return payload, byte


e4m3_values_table = e4m3_values()


def test_quantiser_equals_a_search_over_all_codes():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 20 * 32, generator=generator).view(1, 20, 32)
    x = (x * torch.exp2(torch.randint(-100, 100, (1, 20, 1), generator=generator).float())).bfloat16()
    x[0, 0] = 0
    x[0, 1] = 448 * torch.exp2(torch.arange(32) - 40.0)
    x[0, 2] = torch.arange(32).to(torch.int16).view(torch.bfloat16)
    payload, scales = quantise_mxfp8(x.flatten(1))
    for i, block in enumerate(x[0].double().tolist()):
        assert (payload[0, 32 * i : 32 * i + 32].tolist(), scales[0, i].item()) == quantise_block(block), i


def test_ties_round_to_even_and_nothing_finite_saturates():
    # amax 448 * 1 gives scale 1: 17 lies halfway between 16 and 18, 19 between 18 and 20.
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([448.0, 17.0, 19.0, -17.0])
    payload, scales = quantise_mxfp8(x)
    assert scales.item() == 127
    assert dequantise_mxfp8(payload, scales)[0, :4].tolist() == [448.0, 16.0, 20.0, -16.0]
    x[0, 0] = 450.0  # bf16 has no 449; the scale doubles instead of saturating
    payload, scales = quantise_mxfp8(x.bfloat16())
    assert scales.item() == 128
    assert dequantise_mxfp8(payload, scales)[0, 0].item() == 448.0


def test_zero_blocks_and_non_finite_blocks():
    x = torch.ones(1, 128)
    x[0, :32] = 0
    x[0, 40] = torch.inf
    x[0, 70] = torch.nan
    payload, scales = quantise_mxfp8(x.bfloat16())
    assert scales.tolist() == [[127, 255, 255, 119]]
    assert not payload[0, :32].any()
    assert (payload[0, 32:96] == 0x7F).all()
    values = dequantise_mxfp8(payload, scales)
    assert torch.isnan(values[0, 32:96]).all() and (values[0, 96:] == 1).all()


def test_float_scale_plane_is_exact_and_poison_is_not_finite():
    scales = torch.arange(256).to(torch.uint8)
    plane = activation_scales(scales, "sm_90a")
    assert (plane.view(torch.int32) == torch.arange(256) << 23).all()
    assert (plane[1:255].double() == torch.tensor([2.0 ** (b - 127) for b in range(1, 255)])).all()
    assert not torch.isfinite(plane[255]) and plane[0] == 0
    values = scale_values(scales)
    assert (values[:255] == plane[:255].double()).all() and torch.isnan(values[255])


def test_activation_order_of_each_arch():
    payload = torch.arange(64).to(torch.uint8).view(1, 64)
    assert arrange_activations(payload, "sm_120a").equal(payload)
    found = arrange_activations(payload, "sm_90a")[0].tolist()
    for group in range(2):
        for c in range(4):
            for i in range(4):
                assert found[32 * group + 4 * c + i] == 32 * group + 8 * c + 2 * i
                assert found[32 * group + 16 + 4 * c + i] == 32 * group + 8 * c + 2 * i + 1
    with pytest.raises(UnknownArch):
        arrange_activations(payload, "sm_90")


def test_dequantised_weights_equal_the_definition():
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 256, (3, 48), generator=generator).to(torch.uint8)
    scales = torch.randint(1, 248, (3, 6), generator=generator).to(torch.uint8)
    found = dequantise_mxfp4(codes, scales[:, :3])
    for row in range(3):
        for k in range(96):
            code = codes[row, k // 2].item() >> 4 * (k % 2) & 15
            value = E2M1[code & 7] * (-1 if code & 8 else 1)
            assert found[row, k].item() == value * 2.0 ** (scales[row, k // 32].item() - 127)
    with pytest.raises(InvalidWeights, match="scales"):
        dequantise_mxfp4(codes, scales)


def test_micro_fc1_equals_a_dense_product_per_route():
    generator = torch.Generator().manual_seed(6)
    tokens, experts, hidden, intermediate = 3, 4, 256, 64
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    codes = torch.randint(0, 256, (experts, 2 * intermediate, hidden // 2), generator=generator).to(torch.uint8)
    scales = torch.randint(120, 126, (experts, 2 * intermediate, hidden // 32), generator=generator).to(torch.uint8)
    ids = torch.tensor([[3, 0], [-1, 2], [4, 3]], dtype=torch.int32)
    alpha = torch.tensor([1.0, 2.0, 0.75, 0.5])
    found = micro_fc1(x, codes, scales, ids, alpha=alpha)
    activations = dequantise_mxfp8(*quantise_mxfp8(x))
    for pair, expert in enumerate(ids.flatten().tolist()):
        if not 0 <= expert < experts:
            assert torch.isnan(found[pair]).all()
            continue
        weights = dequantise_mxfp4(codes[expert], scales[expert])
        for column in (0, 17, 63):
            gate = (weights[intermediate + column] * activations[pair // 2]).sum() * alpha[expert].double()
            up = (weights[column] * activations[pair // 2]).sum() * alpha[expert].double()
            assert found[pair, column] == gate.bfloat16()
            assert found[pair, intermediate + column] == up.bfloat16()


def test_micro_fc1_sees_the_quantised_activations():
    x = torch.full((1, 256), 1.03125).bfloat16()
    x[0, 0] = 448.0
    codes = torch.full((1, 128, 128), 0x22, dtype=torch.uint8)
    scales = torch.full((1, 128, 8), 127, dtype=torch.uint8)
    found = micro_fc1(x, codes, scales, torch.tensor([[0]]))
    # First group at scale 1: 1.03125 rounds to 1.0; the other groups at scale 2^-8, where 264 rounds to 256.
    assert found[0, 0].item() == torch.tensor(448.0 + 31 + 7 * 32 * 1.0).bfloat16().item()


def test_micro_activation_equals_the_formula_element_by_element():
    generator = torch.Generator().manual_seed(8)
    projections = (4 * torch.randn(5, 128, generator=generator)).bfloat16()
    ids = torch.tensor([0, -1, 2, 3, 1])
    for limit in (None, 3.0):
        found = micro_activation(projections, ids, 3, limit=limit)
        assert found.dtype == torch.bfloat16 and found.shape == (5, 64)
        for pair, row in enumerate(projections.double().tolist()):
            if pair in (1, 3):
                assert torch.isnan(found[pair]).all()
                continue
            for column in range(64):
                gate, up = row[column], row[64 + column]
                if limit is not None:
                    gate, up = min(gate, limit), min(max(up, -limit), limit)
                value = gate / (1 + math.exp(-gate)) * up
                assert found[pair, column] == torch.tensor(value, dtype=torch.float64).bfloat16()


def test_limit_bounds_gate_from_above_only_and_keeps_nan():
    # gate, then up, of 32 columns each
    projections = torch.zeros(1, 64).bfloat16()
    projections[0, :4] = torch.tensor([100.0, -100.0, 1.0, torch.nan])
    projections[0, 32:36] = torch.tensor([1.0, 1.0, -100.0, 1.0])
    found = micro_activation(projections, torch.tensor([0]), 1, limit=7.0).double()[0]
    assert found[0].item() == pytest.approx(7 / (1 + math.exp(-7)), rel=2**-8)
    assert found[1].item() == pytest.approx(-100 * math.exp(-100), rel=2**-8)
    assert found[2].item() == pytest.approx(-7 / (1 + math.exp(-1)), rel=2**-8)
    assert math.isnan(found[3].item())


def test_intermediate_pads_with_zeros_but_marks_real_zero_blocks():
    activations = torch.ones(2, 192).bfloat16()
    activations[1, 160:] = 0
    payload, scales = quantise_intermediate(activations)
    assert payload.shape == (2, 256) and scales.shape == (2, 8)
    assert (payload[:, :160] != 0).all() and not payload[1, 160:].any() and not payload[:, 192:].any()
    assert scales.tolist() == [[119] * 6 + [0, 0], [119] * 5 + [127, 0, 0]]


@pytest.mark.parametrize("arch", sorted(LAYOUTS))
def test_stored_intermediate_has_every_byte_in_its_place(arch):
    pairs, rows, intermediate = 3, 5, 192
    generator = torch.Generator().manual_seed(9)
    payload, scales = quantise_intermediate(torch.randn(pairs, intermediate, generator=generator).bfloat16())
    buffer = arrange_intermediate(payload, scales, arch, rows)
    assert buffer.numel() == intermediate_bytes(arch, rows, intermediate)
    found = LAYOUTS[arch]
    is_untouched = torch.ones_like(buffer, dtype=torch.bool)
    for pair in range(pairs):
        for position in range(256):
            k = position // 32 * 32 + found.activation_order[position % 32]
            assert buffer[pair * 256 + position] == payload[pair, k]
        is_untouched[pair * 256 : pair * 256 + 256] = False
        for group in range(8):
            first = intermediate_scale_offset(arch, rows, intermediate, pair, group // 4)
            first += group % 4 * found.activation_scale_bytes
            stored = buffer[first : first + found.activation_scale_bytes]
            byte = int(scales[pair, group])
            expected = [byte] if len(stored) == 1 else list((byte << 23).to_bytes(4, "little"))
            assert stored.tolist() == expected
            is_untouched[first : first + found.activation_scale_bytes] = False
    assert (buffer[is_untouched] == 0xFF).all()
    stored, stored_scales = intermediate_planes(buffer, arch, rows, intermediate)
    assert stored[:pairs].equal(arrange_activations(payload, arch))
    assert stored_scales[:pairs].equal(activation_scales(scales, arch).view(pairs, 2, 4))
    stored[4, 7], stored_scales[4, 1, 3] = 17, 64
    assert buffer[4 * 256 + 7] == 17, "the planes are views"
    assert intermediate_planes(buffer, arch, rows, intermediate)[1][4, 1, 3] == 64


def test_micro_fc2_equals_a_dense_product_per_route():
    generator = torch.Generator().manual_seed(10)
    experts, hidden, intermediate = 3, 256, 192
    ids = torch.tensor([[2, -1], [3, 0]], dtype=torch.int32)
    weights = torch.rand(2, 2, generator=generator)
    alpha = torch.tensor([1.0, 2.0, 0.75])
    payload, payload_scales = quantise_intermediate(torch.randn(4, intermediate, generator=generator).bfloat16())
    payload_scales[1:3] = 255  # rows of invalid routes are not read
    codes = torch.randint(0, 256, (experts, hidden, intermediate // 2), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 126, (experts, hidden, intermediate // 32), generator=generator).to(torch.uint8)
    found = micro_fc2(payload, payload_scales, codes, scales, ids, weights, alpha=alpha)
    assert found.shape == (4, hidden) and found.dtype == torch.bfloat16
    assert not found[1:3].any()
    for pair, expert in ((0, 2), (3, 0)):
        row = dequantise_mxfp8(payload, payload_scales)[pair, :intermediate]
        for column in (0, 17, 255):
            product = (dequantise_mxfp4(codes[expert], scales[expert])[column] * row).sum()
            factor = alpha[expert].double() * weights.flatten()[pair].double()
            assert found[pair, column] == (product * factor).bfloat16()
