"""The sm_120a kernel of micro_fc1: compiled, inspected, and its PTX run on the CPU against the float64 reference."""

import re

import numpy as np
import pytest
import torch

from planfreeze.family import CuteSource, Definition
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload, micro_fc1
from planfreeze.kernels.moe.reference import dequantise_mxfp4, dequantise_mxfp8, quantise_mxfp8
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

ARCH = "sm_120a"
EXPERTS = 3
UNTOUCHED = 0x7FC12345


def define(*, hidden: int, intermediate: int, top_k: int = 2, id_bits: int = 32, csf_inline: bool) -> Definition:
    payload = MicroFc1Payload(
        hidden=hidden, intermediate=intermediate, top_k=top_k, id_bits=id_bits, csf_inline=csf_inline
    )
    return micro_fc1.define(payload, target(ARCH))


def make_scales(experts: int, rows: int, columns: int) -> torch.Tensor:
    """Rows of base and base + 1; but for expert 0, exceptions here and there and four rows that make a tile raw."""
    generator = torch.Generator().manual_seed(11)
    scales = torch.randint(118, 126, (experts, rows, 1), generator=generator) + torch.randint(
        0, 2, (experts, rows, columns), generator=generator
    )
    sparse = scales[1:].view(-1)[::97]
    sparse.copy_(torch.randint(116, 130, sparse.shape, generator=generator))
    scales[1, 40:44] = torch.randint(114, 132, (4, columns), generator=generator)
    scales[1:, -1] = torch.randint(114, 132, (columns,), generator=generator)
    return scales.to(torch.uint8)


class Problem:
    """Random experts and tokens, with one invalid route at each end of the id range."""

    def __init__(self, *, hidden: int, intermediate: int, tokens: int, top_k: int = 2) -> None:
        generator = torch.Generator().manual_seed(5)
        self.hidden, self.intermediate, self.top_k = hidden, intermediate, top_k
        self.x = torch.randn(tokens, hidden, generator=generator).bfloat16()
        self.codes = torch.randint(
            0, 256, (EXPERTS, 2 * intermediate, hidden // 2), generator=generator, dtype=torch.uint8
        )
        self.scales = make_scales(EXPERTS, 2 * intermediate, hidden // 32)
        self.ids = torch.randint(0, EXPERTS, (tokens, top_k), generator=generator)
        self.ids[0, 0], self.ids[-1, -1] = 1, 2
        if tokens > 1:
            self.ids[0, 1], self.ids[-1, 0] = -1, EXPERTS
        self.geometry = ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate)
        self.plane = native_plane(self.geometry, self.scales)

    def run(
        self,
        ptx_machine,
        compile_cute,
        *,
        csf_inline: bool,
        id_bits: int,
        grid: int,
        is_serial: bool = False,
    ) -> np.ndarray:
        """Run the compiled kernel; return the f32 patterns of ``projections``."""
        definition = define(
            hidden=self.hidden,
            intermediate=self.intermediate,
            top_k=self.top_k,
            id_bits=id_bits,
            csf_inline=csf_inline,
        )
        source = definition.source
        assert isinstance(source, CuteSource)
        memory = ptx_machine.Memory()
        payload, activation_scales = quantise_mxfp8(self.x)
        scales = encode(self.geometry, self.plane).parts() if csf_inline else (self.plane,)
        ids = self.ids.flatten().to(torch.int32 if id_bits == 32 else torch.int64)
        projections = np.full((ids.numel(), 2 * self.intermediate), UNTOUCHED, np.int32)
        inputs = [payload, activation_scales, pack_w13(self.codes, ARCH), *scales, ids]
        addresses = [memory.put(tensor.numpy()) for tensor in inputs]
        addresses.append(memory.put(projections))
        pointers = sum(argument.is_pointer for argument in definition.arguments)
        assert len(addresses) == pointers
        kernel = ptx_machine.Kernel(compile_cute(source, ARCH, pointers, 2).ptx)
        products = kernel.run(
            memory,
            [*addresses, ids.numel(), EXPERTS],
            grid=grid,
            block=source.launch.block[0],
            shared_bytes=source.launch.shared_bytes,
            is_serial=is_serial,
        )
        valid = int(((ids >= 0) & (ids < EXPERTS)).sum())
        tasks = valid * 2 * -(-self.intermediate // 128)
        assert products == tasks * self.hidden // 32 * 16
        return memory.get(addresses[-1], projections)

    def expected(self) -> torch.Tensor:
        """Return float64 sums of products, one row per route, zeros for invalid ones."""
        activations = dequantise_mxfp8(*quantise_mxfp8(self.x))
        sums = torch.zeros(self.ids.numel(), 2 * self.intermediate, dtype=torch.float64)
        for pair, expert in enumerate(self.ids.flatten().tolist()):
            if 0 <= expert < EXPERTS:
                weights = dequantise_mxfp4(self.codes[expert], self.scales[expert])
                up, gate = (weights @ activations[pair // self.top_k]).chunk(2)
                sums[pair] = torch.cat((gate, up))
        return sums


def as_numbers(patterns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patterns).view(torch.float32)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "tokens", "csf_inline", "id_bits", "grid"),
    [
        (256, 192, 2, False, 32, 3),
        (256, 192, 2, True, 64, 5),
        (768, 64, 1, True, 32, 1),
        (256, 128, 2, False, 64, 2),
    ],
)
def test_compiled_kernel_matches_the_reference(
    ptx_machine, compile_cute, hidden, intermediate, tokens, csf_inline, id_bits, grid
):
    problem = Problem(hidden=hidden, intermediate=intermediate, tokens=tokens)
    found = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, id_bits=id_bits, grid=grid)
    expected = problem.expected()
    is_valid = ((problem.ids >= 0) & (problem.ids < EXPERTS)).flatten().numpy()
    assert (found[~is_valid] == UNTOUCHED).all()
    values, wanted = as_numbers(found[is_valid]).double(), expected[is_valid]
    # fp32 sums of exact products of 32.
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-4 * wanted.abs().mean().item())
    assert (values - wanted).norm() <= 1e-6 * wanted.norm()


def test_inline_and_native_scales_give_the_same_bits(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, tokens=2)
    inline = encode(problem.geometry, problem.plane)
    headers = inline.parts()[0].view(-1, 96)[:, 64:68].contiguous().view(torch.int32)
    assert inline.raw_tiles > 0 and ((headers > 0) & (headers <= 7)).any() and (headers == 0).any()
    native = problem.run(ptx_machine, compile_cute, csf_inline=False, id_bits=32, grid=4)
    found = problem.run(ptx_machine, compile_cute, csf_inline=True, id_bits=64, grid=7)
    np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("csf_inline", [False, True])
def test_warps_that_run_far_apart_give_the_same_bits(ptx_machine, compile_cute, csf_inline):
    problem = Problem(hidden=768, intermediate=64, tokens=2)
    together = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, id_bits=32, grid=1)
    apart = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, id_bits=32, grid=1, is_serial=True)
    np.testing.assert_array_equal(apart, together)


def test_poisoned_scale_is_not_finite_in_its_column_only(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, tokens=1)
    clean = problem.run(ptx_machine, compile_cute, csf_inline=False, id_bits=32, grid=4)
    # A prepared plane holds 0..247: 255 stands for bytes nobody wrote. Expert 1, up row 3, column 1.
    problem.plane[1, 3 * 4 + 1] = 255
    found = problem.run(ptx_machine, compile_cute, csf_inline=False, id_bits=32, grid=4)
    is_nan = torch.isnan(as_numbers(found)).numpy()
    is_unwritten = clean == UNTOUCHED
    assert problem.ids[0].tolist() == [1, 2] and not is_unwritten.any()
    assert is_nan[0, 192 + 3] and is_nan.sum() == 1
    assert (found[~is_nan] == clean[~is_nan]).all()


@pytest.mark.parametrize("csf_inline", [False, True])
def test_cubin_uses_block_scaled_products_and_registers_only(compile_cute, cuobjdump, csf_inline):
    definition = define(hidden=5120, intermediate=576, top_k=6, csf_inline=csf_inline)
    source = definition.source
    assert isinstance(source, CuteSource)
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    compiled = compile_cute(source, ARCH, pointers, 2)
    sass = cuobjdump(compiled.cubin, "-sass")
    # Two halves of K64, two K32 groups each, four fragments: the loop body is not unrolled further.
    assert len(re.findall(r"QMMA\.SF\.16832\.F32\.E4M3\.E2M1\.E8", sass)) == 16
    assert not re.search(r"\b(LDL|STL)\b", sass)
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None
    registers, stack, static_shared = map(int, usage.groups())
    blocks = 4
    assert stack == 0
    assert registers * source.launch.block[0] * blocks <= target(ARCH).max_registers
    assert (static_shared + source.launch.shared_bytes) * blocks <= target(ARCH).sm_shared_bytes


def test_inline_flag_that_is_off_leaves_no_trace(compile_cute):
    definition = define(hidden=256, intermediate=192, csf_inline=False)
    assert isinstance(definition.source, CuteSource)
    assert "csf_inline" not in dict(definition.source.constants)
    ptx = compile_cute(definition.source, ARCH, 6, 2).ptx
    assert "nc.v4" not in ptx and "0x1111" not in ptx
