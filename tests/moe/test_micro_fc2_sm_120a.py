"""The sm_120a kernel of micro_fc2: compiled, inspected, and its PTX run on the CPU against the float64 reference."""

import re

import numpy as np
import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, Definition
from planfreeze.kernels.moe.geometry import intermediate_bytes
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload, micro_fc2
from planfreeze.kernels.moe.reference import arrange_intermediate, quantise_intermediate
from planfreeze.kernels.moe.reference import micro_fc2 as reference
from planfreeze.kernels.moe.weights import pack_w2
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

ARCH = "sm_120a"
EXPERTS = 3
UNTOUCHED = 0x7FC1
SPARE_ROWS = 3
"""Capacity rows beyond the pairs: nobody wrote them."""


def define(*, hidden: int, intermediate: int, id_bits: int = 32, csf_inline: bool) -> Definition:
    payload = MicroFc2Payload(hidden=hidden, intermediate=intermediate, id_bits=id_bits, csf_inline=csf_inline)
    return micro_fc2.define(payload, target(ARCH))


def make_scales(experts: int, rows: int, columns: int) -> torch.Tensor:
    """Rows of base and base + 1; but for expert 0, exceptions here and there and dense rows that make tiles raw."""
    generator = torch.Generator().manual_seed(13)
    scales = torch.randint(118, 126, (experts, rows, 1), generator=generator) + torch.randint(
        0, 2, (experts, rows, columns), generator=generator
    )
    sparse = scales[1:].view(-1)[::97]
    sparse.copy_(torch.randint(116, 130, sparse.shape, generator=generator))
    scales[1, 130:146] = torch.randint(114, 132, (16, columns), generator=generator)
    scales[1:, -1] = torch.randint(114, 132, (columns,), generator=generator)
    return scales.to(torch.uint8)


class Problem:
    """Random experts and a random intermediate, with one invalid route at each end of the id range."""

    def __init__(self, *, hidden: int, intermediate: int, ids: tuple[int, ...] = (1, -1, 2, EXPERTS)) -> None:
        generator = torch.Generator().manual_seed(5)
        self.hidden, self.intermediate = hidden, intermediate
        self.ids = torch.tensor(ids)
        activations = torch.randn(len(ids), intermediate, generator=generator).bfloat16()
        activations[0, 32:64] = 0
        # Nobody writes the rows of invalid routes.
        activations[(self.ids < 0) | (self.ids >= EXPERTS)] = torch.nan
        self.payload, self.payload_scales = quantise_intermediate(activations)
        self.codes = torch.randint(0, 256, (EXPERTS, hidden, intermediate // 2), generator=generator, dtype=torch.uint8)
        self.scales = make_scales(EXPERTS, hidden, intermediate // 32)
        self.weights = torch.rand(len(ids), generator=generator) + 0.25
        self.alpha = torch.tensor([0.5, 1.25, 3.0])
        self.geometry = ScaleGeometry(rows=hidden, columns=intermediate // 32, group_rows=hidden)
        self.plane = native_plane(self.geometry, self.scales)
        self.inline = encode(self.geometry, self.plane)

    def run(
        self, ptx_machine, compile_cute, *, csf_inline: bool, id_bits: int = 32, grid: int, is_serial: bool = False
    ) -> np.ndarray:
        """Run the compiled kernel; return the bf16 patterns of ``route_output``."""
        definition = define(hidden=self.hidden, intermediate=self.intermediate, id_bits=id_bits, csf_inline=csf_inline)
        source = definition.source
        assert isinstance(source, CuteSource)
        memory = ptx_machine.Memory()
        pairs, rows = len(self.ids), len(self.ids) + SPARE_ROWS
        stored = arrange_intermediate(self.payload, self.payload_scales, ARCH, rows)
        assert stored.numel() == intermediate_bytes(ARCH, rows, self.intermediate)
        scales = self.inline.parts() if csf_inline else (self.plane,)
        ids = self.ids.to(torch.int32 if id_bits == 32 else torch.int64)
        output = np.full((pairs, self.hidden), UNTOUCHED, np.int16)
        inputs = [stored, pack_w2(self.codes, ARCH), *scales, ids, self.weights, self.alpha]
        addresses = [memory.put(tensor.numpy()) for tensor in inputs]
        addresses.append(memory.put(output))
        pointers = sum(argument.is_pointer for argument in definition.arguments)
        assert len(addresses) == pointers
        kernel = ptx_machine.Kernel(compile_cute(source, ARCH, pointers, 3).ptx)
        products = kernel.run(
            memory,
            [*addresses, pairs, EXPERTS, rows],
            grid=grid,
            block=source.launch.block[0],
            shared_bytes=source.launch.shared_bytes,
            is_serial=is_serial,
        )
        tasks = int(self.is_valid().sum()) * self.hidden // 128
        # Four warps, four fragments and four K32 groups a slice, the empty ones of a last K64 among them.
        assert products == tasks * -(-self.intermediate // 128) * 64
        return memory.get(addresses[-1], output)

    def headers(self) -> torch.Tensor:
        """Return the headers of the tile blocks, ``(experts, output tiles, slices)``."""
        headers = self.inline.parts()[0].view(-1, 96)[:, 64:68].contiguous().view(torch.int32)
        return headers.view(EXPERTS, self.hidden // 128, -1)

    def is_valid(self) -> np.ndarray:
        return ((self.ids >= 0) & (self.ids < EXPERTS)).numpy()

    def expected(self) -> torch.Tensor:
        return reference(
            self.payload, self.payload_scales, self.codes, self.scales, self.ids, self.weights, alpha=self.alpha
        )


def as_numbers(patterns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patterns).view(torch.bfloat16)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "csf_inline", "id_bits", "grid"),
    [
        (256, 192, False, 32, 3),
        (256, 192, True, 64, 5),
        (512, 64, True, 32, 1),
        (256, 256, False, 64, 2),
        (256, 576, True, 32, 1),
        (256, 576, False, 64, 8),
    ],
)
def test_compiled_kernel_matches_the_reference(
    ptx_machine, compile_cute, hidden, intermediate, csf_inline, id_bits, grid
):
    problem = Problem(hidden=hidden, intermediate=intermediate)
    found = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, id_bits=id_bits, grid=grid)
    expected, is_valid = problem.expected(), problem.is_valid()
    assert not is_valid.all()
    assert (found[~is_valid] == 0).all()
    values, wanted = as_numbers(found[is_valid]).double(), expected[is_valid].double()
    # fp32 sums of exact products, two fp32 factors, one rounding to bf16: nearly every value is the reference's own.
    assert (values == wanted).double().mean() > 0.99
    torch.testing.assert_close(values, wanted, rtol=2.0**-7, atol=1e-3)
    assert (values - wanted).norm() <= 4e-4 * wanted.norm()


@pytest.mark.parametrize("intermediate", [192, 576])
def test_inline_and_native_scales_give_the_same_bits(ptx_machine, compile_cute, intermediate):
    problem = Problem(hidden=256, intermediate=intermediate)
    by_slice = problem.headers()
    for found in (by_slice[..., :-1], by_slice[..., -1]):
        assert (found < 0).any() and ((found > 0) & (found <= 7)).any() and (found == 0).any()
    native = problem.run(ptx_machine, compile_cute, csf_inline=False, id_bits=32, grid=3)
    found = problem.run(ptx_machine, compile_cute, csf_inline=True, id_bits=64, grid=7)
    np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("intermediate", [64, 192, 576])
def test_warps_that_run_far_apart_give_the_same_bits(ptx_machine, compile_cute, intermediate, csf_inline):
    # One block runs every task: 1, 2 and 5 slices go round four slots, invalid routes between.
    problem = Problem(hidden=256, intermediate=intermediate, ids=(0, 1, -1, 2))
    together = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, grid=8)
    apart = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, grid=1, is_serial=True)
    np.testing.assert_array_equal(apart, together)


@pytest.mark.parametrize("row", [2, 3])
@pytest.mark.parametrize("column", [1, 5])
def test_poisoned_scale_is_not_finite_in_its_column_only(ptx_machine, compile_cute, row, column):
    problem = Problem(hidden=256, intermediate=192, ids=(1, 2))
    clean = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    # A prepared plane holds 0..247: 255 stands for bytes nobody wrote. Expert 1; column 5 lies in the last K64, whose
    # scales are halves that share a word with the next row's.
    place = row * 4 + column if column < 4 else 512 + row * 2 + column - 4
    problem.plane[1, place] = 255
    found = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    is_nan = torch.isnan(as_numbers(found)).numpy()
    assert not (clean == UNTOUCHED).any()
    assert is_nan[0, row] and is_nan.sum() == 1
    assert (found[~is_nan] == clean[~is_nan]).all()


def test_columns_beyond_a_last_k64_are_cleared(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, ids=(1,))
    clean = problem.run(ptx_machine, compile_cute, csf_inline=True, grid=2)
    header = int(problem.headers()[1, 1, -1])
    assert header < 0
    raw = problem.inline.parts()[2].view(-1, 128, 4)[header & 0x7FFFFFFF]
    assert not raw[:, 2:].any()
    # No encoder writes this. It shows that what columns 2 and 3 of a word hold never matters.
    raw[:, 2:] = 255
    found = problem.run(ptx_machine, compile_cute, csf_inline=True, grid=2)
    np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize("csf_inline", [False, True])
def test_cubin_uses_block_scaled_products_and_registers_only(compile_cute, cuobjdump, csf_inline):
    definition = define(hidden=5120, intermediate=576, csf_inline=csf_inline)
    source = definition.source
    assert isinstance(source, CuteSource)
    assert source.launch.block == (128, 1, 1) and source.launch.shared_bytes == 35840
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    compiled = compile_cute(source, ARCH, pointers, 3)
    sass = cuobjdump(compiled.cubin, "-sass")
    # Four K32 groups, four fragments: the loop over slices is not unrolled.
    products = re.findall(r"QMMA\.SF\.16832\.F32\.E4M3\.E2M1\.E8 (R\d+), R\d+, \S+, (\w+)", sass)
    assert len(products) == 16
    # Chained: every product goes on from the result of another, none starts from zero.
    results, starts = zip(*products, strict=True)
    assert sorted(results) == sorted(starts)
    assert not re.search(r"\b(LDL|STL)\b", sass)
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None
    registers, stack, static_shared = map(int, usage.groups())
    blocks = 2
    assert stack == 0
    assert registers * source.launch.block[0] * blocks <= target(ARCH).max_registers
    assert (static_shared + source.launch.shared_bytes) * blocks <= target(ARCH).sm_shared_bytes


def test_inline_flag_that_is_off_leaves_no_trace(compile_cute):
    definition = define(hidden=256, intermediate=192, csf_inline=False)
    assert isinstance(definition.source, CuteSource)
    assert "csf_inline" not in dict(definition.source.constants)
    ptx = compile_cute(definition.source, ARCH, 7, 3).ptx
    assert "nc.v4" not in ptx and "0x1111" not in ptx


def test_geometry_without_inline_scales_is_refused():
    with pytest.raises(InvalidPayload, match="csf_inline"):
        define(hidden=256, intermediate=256, csf_inline=True)
