"""Family act_quant: its rules, and its compiled kernels against the torch reference, bit for bit."""

import numpy as np
import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.moe.act_quant import ActQuantPayload, act_quant
from planfreeze.kernels.moe.reference import activation_scales, arrange_activations, quantise_mxfp8
from planfreeze.target import ARCHS, target

SCALE_TYPES = {"sm_90a": np.float32, "sm_120a": np.uint8}


def edge_rows(hidden: int, tokens: int) -> torch.Tensor:
    """Random rows over many magnitudes, with every kind of special block at the front."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(tokens, hidden // 32, 32, generator=generator)
    x *= torch.exp2(torch.randint(-126, 118, (tokens, hidden // 32, 1), generator=generator).float())
    x = x.bfloat16()
    x[0, 0] = 0
    x[0, 1] = -0.0
    x[0, 2, 5] = torch.inf
    x[0, 3, 31] = -torch.nan
    x[0, 4] = torch.arange(32).to(torch.int16).view(torch.bfloat16)  # subnormals only
    x[0, 5] = torch.finfo(torch.bfloat16).max
    x[0, 6] = 448.0 * torch.exp2(torch.arange(32).float() - 31)  # amax / 448 is a power of two
    x[0, 7] = torch.tensor([(449 + i) / 448 for i in range(32)])
    return x.flatten(1)


def run(ptx_machine, compile_cute, arch: str, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    tokens, hidden = x.shape
    definition = act_quant.define(ActQuantPayload(hidden=hidden), target(arch))
    source = definition.source
    assert isinstance(source, CuteSource)
    memory = ptx_machine.Memory()
    payload = np.full((tokens, hidden), 0xEE, np.uint8)
    scales = np.full((tokens, hidden // 32), 9, SCALE_TYPES[arch])
    addresses = [memory.put(x.view(torch.int16).numpy()), memory.put(payload), memory.put(scales)]
    kernel = ptx_machine.Kernel(compile_cute(source, arch, 3, 1).ptx)
    grid = definition.grid({"tokens": tokens}, 1)[0]
    kernel.run(memory, [*addresses, tokens], grid=grid, block=source.launch.block[0])
    return memory.get(addresses[1], payload), memory.get(addresses[2], scales)


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(("hidden", "tokens"), [(256, 1), (768, 5)])
def test_compiled_kernel_equals_the_reference_bit_for_bit(ptx_machine, compile_cute, arch, hidden, tokens):
    x = edge_rows(hidden, tokens)
    payload, scales = quantise_mxfp8(x)
    found_payload, found_scales = run(ptx_machine, compile_cute, arch, x)
    np.testing.assert_array_equal(found_payload, arrange_activations(payload, arch).numpy())
    expected = activation_scales(scales, arch).numpy()
    np.testing.assert_array_equal(found_scales.view(np.uint8), expected.view(np.uint8))


def test_float_scale_plane_is_the_byte_in_the_exponent_field(ptx_machine, compile_cute):
    x = edge_rows(256, 1)
    _, scales = run(ptx_machine, compile_cute, "sm_90a", x)
    _, bytes_ = run(ptx_machine, compile_cute, "sm_120a", x)
    np.testing.assert_array_equal(scales.view(np.uint32), bytes_.astype(np.uint32) << 23)


@pytest.mark.parametrize("arch", list(ARCHS))
def test_arguments_cover_what_the_kernel_touches(arch):
    payload = ActQuantPayload(hidden=5120)
    definition = family_of(payload).define(payload, target(arch))
    sizes = {a.name: a.elements({"tokens": 7}) for a in definition.arguments if a.elements}
    assert sizes == {"x": 7 * 5120, "a8": 7 * 5120, "a_scale": 7 * 160}
    assert [a.dtype for a in definition.arguments][2] == {"sm_90a": "f32", "sm_120a": "u8"}[arch]


def test_grid_covers_a_ragged_last_block():
    definition = act_quant.define(ActQuantPayload(hidden=768), target("sm_90a"))
    assert [definition.grid({"tokens": n}, 1)[0] for n in (1, 3, 4)] == [1, 3, 3]
    assert definition.grid({"tokens": 5}, 1)[0] == 4


@pytest.mark.parametrize("hidden", [0, -256, 128, 5000])
def test_hidden_that_is_not_whole_tiles_is_refused(hidden):
    with pytest.raises(InvalidPayload, match=str(hidden)):
        ActQuantPayload(hidden=hidden)


def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute):
    source = act_quant.define(ActQuantPayload(hidden=256), target("sm_90a")).source
    first, second = (compile_cute(source, "sm_90a", 3, 1, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()
