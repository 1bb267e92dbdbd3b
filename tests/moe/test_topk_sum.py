"""Family topk_sum: its rules, and its compiled kernels against the torch reference, bit for bit."""

import numpy as np
import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.moe.reference import sum_routes
from planfreeze.kernels.moe.topk_sum import TopkSumPayload, topk_sum
from planfreeze.target import ARCHS, target


@pytest.mark.parametrize(
    ("arch", "hidden", "top_k", "tokens"),
    [*((arch, 768, 6, 3) for arch in ARCHS), ("sm_90a", 256, 1, 5), ("sm_90a", 256, 32, 2)],
)
def test_compiled_kernel_equals_the_reference_bit_for_bit(ptx_machine, compile_cute, arch, hidden, top_k, tokens):
    generator = torch.Generator().manual_seed(top_k)
    routes = torch.randn(tokens * top_k, hidden, generator=generator)
    routes *= torch.exp2(torch.randint(-8, 8, routes.shape, generator=generator).float())
    routes = routes.bfloat16()
    definition = topk_sum.define(TopkSumPayload(hidden=hidden, top_k=top_k), target(arch))
    assert isinstance(definition.source, CuteSource)
    memory = ptx_machine.Memory()
    out = np.full((tokens, hidden), 0x7FC1, np.int16)
    addresses = [memory.put(routes.view(torch.int16).numpy()), memory.put(out)]
    kernel = ptx_machine.Kernel(compile_cute(definition.source, arch, 2, 1).ptx)
    grid = definition.grid({"tokens": tokens}, 1)[0]
    kernel.run(memory, [*addresses, tokens], grid=grid, block=definition.source.launch.block[0])
    expected = sum_routes(routes, top_k).view(torch.int16).numpy()
    np.testing.assert_array_equal(memory.get(addresses[1], out), expected)


def test_reference_adds_in_route_order_with_one_rounding():
    routes = torch.tensor([[2.0**24], [1.0], [1.0], [-(2.0**24)]]).bfloat16()
    assert sum_routes(routes, 4).item() == 0.0
    assert sum_routes(routes[[0, 3, 1, 2]], 4).item() == 2.0
    thirds = torch.tensor([[1.0], [2.0**-8], [2.0**-8]]).bfloat16()
    assert sum_routes(thirds, 3).item() == 1.0 + 2.0**-7


def test_arguments_and_grid_follow_the_live_tokens():
    payload = TopkSumPayload(hidden=768, top_k=6)
    definition = family_of(payload).define(payload, target("sm_90a"))
    sizes = {a.name: a.elements({"tokens": 5}) for a in definition.arguments if a.elements}
    assert sizes == {"route_output": 30 * 768, "out": 5 * 768}
    assert [definition.grid({"tokens": n}, 1)[0] for n in (1, 4, 5)] == [1, 3, 4]


@pytest.mark.parametrize(("hidden", "top_k"), [(300, 6), (256, 0), (256, 33)])
def test_sizes_out_of_range_are_refused(hidden, top_k):
    with pytest.raises(InvalidPayload):
        TopkSumPayload(hidden=hidden, top_k=top_k)
