"""The sm_120a kernel of split_fc2: compiled, inspected, and its PTX run on the CPU against the float64 reference."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass")

from planfreeze.errors import UnsupportedGeometry
from planfreeze.family import CuteSource, Definition
from planfreeze.kernels.moe.reference import quantise_intermediate
from planfreeze.kernels.moe.reference_grouped import place_routes
from planfreeze.kernels.moe.reference_grouped import split_fc2 as reference
from planfreeze.kernels.moe.reference_rows import arrange_rows
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload, split_fc2
from planfreeze.kernels.moe.split_fc2_sm_120a_cute import SplitFc2
from planfreeze.kernels.moe.weights import pack_w2
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

ARCH = "sm_120a"
TILE_M = 16
EXPERTS = 3
UNTOUCHED = 0x7FC1
ABSENT = 2**31 - 1
"""What stands in the route arrays behind the live tiles."""
# Expert 1 fills one m tile and starts another, expert 0 has no route, two routes are invalid.
IDS = (1, 2, 1, -1, 1, 2, EXPERTS, *[1] * 15, 2, 1)
FEW_IDS = (1, -1, 2, EXPERTS, 2)


def define(**fields) -> Definition:
    return split_fc2.define(SplitFc2Payload(tile_m=TILE_M, **fields), target(ARCH))


def count_pointers(definition: Definition) -> int:
    return sum(argument.is_pointer for argument in definition.arguments)


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
    """Random experts and a random intermediate; routes in m tiles, with more tiles of capacity than live ones."""

    def __init__(self, *, hidden: int, intermediate: int, ids: tuple[int, ...] = IDS) -> None:
        generator = torch.Generator().manual_seed(5)
        self.hidden, self.intermediate = hidden, intermediate
        self.ids = torch.tensor(ids)
        self.weights = torch.rand(len(ids), generator=generator) + 0.25
        self.routes = place_routes(self.ids, self.weights, experts=EXPERTS, tile_m=TILE_M)
        self.m_tiles = -(-len(ids) // TILE_M) + min(EXPERTS, len(ids)) - 1
        self.rows = TILE_M * self.m_tiles
        activations = torch.randn(self.routes.rows, intermediate, generator=generator).bfloat16()
        if self.routes.rows:
            activations[0, 32:64] = 0
        # Nobody writes the rows that fill up a tile.
        activations[~self.routes.is_live] = torch.nan
        self.payload, self.payload_scales = quantise_intermediate(activations)
        self.codes = torch.randint(0, 256, (EXPERTS, hidden, intermediate // 2), generator=generator, dtype=torch.uint8)
        self.scales = make_scales(EXPERTS, hidden, intermediate // 32)
        self.alpha = torch.tensor([0.5, 1.25, 3.0])
        self.geometry = ScaleGeometry(rows=hidden, columns=intermediate // 32, group_rows=hidden)
        self.plane = native_plane(self.geometry, self.scales)
        self.inline = encode(self.geometry, self.plane)

    def run(self, ptx_machine, compile_cute, *, csf_inline: bool, grid: int, is_serial=False) -> np.ndarray:
        """Run the compiled kernel; return the bf16 patterns of ``route_output``."""
        definition = define(hidden=self.hidden, intermediate=self.intermediate, csf_inline=csf_inline)
        source = definition.source
        assert isinstance(source, CuteSource)
        memory = ptx_machine.Memory()
        routes, pairs = self.routes, len(self.ids)
        assert routes.tiles < self.m_tiles
        inputs = [
            arrange_rows(self.payload, self.payload_scales, ARCH, self.rows, TILE_M),
            pack_w2(self.codes, ARCH),
            *(self.inline.parts() if csf_inline else (self.plane,)),
        ]
        for values, length in (
            (routes.token_map, self.rows),
            (routes.row_weight, self.rows),
            (routes.tile_expert, self.m_tiles),
            (routes.tile_valid, self.m_tiles),
        ):
            inputs.append(torch.nn.functional.pad(values, (0, length - len(values)), value=ABSENT))
        inputs += [torch.tensor([routes.tiles], dtype=torch.int32), self.alpha]
        addresses = [memory.put(tensor.numpy()) for tensor in inputs]
        output = np.full((pairs, self.hidden), UNTOUCHED, np.int16)
        addresses.append(memory.put(output))
        assert len(addresses) == count_pointers(definition)
        kernel = ptx_machine.Kernel(compile_cute(source, ARCH, len(addresses), 4).ptx)
        products = kernel.run(
            memory,
            [*addresses, pairs, EXPERTS, self.rows, self.m_tiles],
            grid=definition.grid({"m_tiles": self.m_tiles}, grid)[0],
            block=source.launch.block[0],
            shared_bytes=source.launch.shared_bytes,
            is_serial=is_serial,
        )
        # Four warps, four fragments and four K32 groups a slice, the empty ones of a last K64 among them.
        assert products == routes.tiles * self.hidden // 128 * -(-self.intermediate // 128) * 64
        return memory.get(addresses[-1], output)

    def headers(self) -> torch.Tensor:
        """Return the headers of the tile blocks, ``(experts, output tiles, slices)``."""
        headers = self.inline.parts()[0].view(-1, 96)[:, 64:68].contiguous().view(torch.int32)
        return headers.view(EXPERTS, self.hidden // 128, -1)

    def is_valid(self) -> np.ndarray:
        return ((self.ids >= 0) & (self.ids < EXPERTS)).numpy()

    def expected(self) -> torch.Tensor:
        return reference(
            self.payload,
            self.payload_scales,
            self.codes,
            self.scales,
            self.routes,
            len(self.ids),
            alpha=self.alpha,
        )


def as_numbers(patterns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patterns).view(torch.bfloat16)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "csf_inline", "grid"),
    [(256, 192, False, 4), (256, 192, True, 5), (512, 64, True, 1), (256, 256, False, 2), (256, 576, True, 1)],
)
def test_compiled_kernel_matches_the_reference(ptx_machine, compile_cute, hidden, intermediate, csf_inline, grid):
    problem = Problem(hidden=hidden, intermediate=intermediate)
    assert problem.routes.tile_valid.tolist() == [16, 3, 3] and problem.m_tiles == 4
    found = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, grid=grid)
    expected, is_valid = problem.expected(), problem.is_valid()
    assert (~is_valid).sum() == 2
    assert (found[~is_valid] == UNTOUCHED).all()
    values, wanted = as_numbers(found[is_valid]).double(), expected[is_valid].double()
    # fp32 sums of exact products, two fp32 factors, one rounding to bf16: nearly every value is the reference's own.
    assert (values == wanted).double().mean() > 0.99
    torch.testing.assert_close(values, wanted, rtol=2.0**-7, atol=1e-3)
    assert (values - wanted).norm() <= 4e-4 * wanted.norm()


@pytest.mark.parametrize("intermediate", [192, 576])
def test_inline_and_native_scales_give_the_same_bits(ptx_machine, compile_cute, intermediate):
    problem = Problem(hidden=256, intermediate=intermediate, ids=FEW_IDS)
    by_slice = problem.headers()
    for found in (by_slice[..., :-1], by_slice[..., -1]):
        assert (found < 0).any() and ((found > 0) & (found <= 7)).any()
    native = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=3)
    found = problem.run(ptx_machine, compile_cute, csf_inline=True, grid=7)
    np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("intermediate", [64, 192])
def test_warps_that_run_far_apart_give_the_same_bits(ptx_machine, compile_cute, intermediate, csf_inline):
    # One block runs every task: one slice, or two, go round two slots.
    problem = Problem(hidden=256, intermediate=intermediate, ids=FEW_IDS)
    together = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, grid=8)
    apart = problem.run(ptx_machine, compile_cute, csf_inline=csf_inline, grid=1, is_serial=True)
    np.testing.assert_array_equal(apart, together)


def test_three_slices_go_round_two_slots(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=320, ids=FEW_IDS)
    together = problem.run(ptx_machine, compile_cute, csf_inline=True, grid=8)
    apart = problem.run(ptx_machine, compile_cute, csf_inline=True, grid=1, is_serial=True)
    np.testing.assert_array_equal(apart, together)


def test_no_live_tile_writes_nothing(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, ids=(-1, EXPERTS, -7))
    assert problem.routes.tiles == 0
    found = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=2)
    assert (found == UNTOUCHED).all()


def test_row_that_is_not_finite_stays_alone(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192)
    clean = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    row = int((problem.routes.token_map == 4).nonzero())
    problem.payload[row, 32:64] = 0x7F
    problem.payload_scales[row, 1] = 255
    found = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    is_nan = torch.isnan(as_numbers(found)).numpy() & (found != UNTOUCHED)
    assert is_nan[4].all() and is_nan.sum() == problem.hidden
    assert (found[~is_nan] == clean[~is_nan]).all()


@pytest.mark.parametrize("column", [1, 5])
def test_poisoned_scale_is_not_finite_in_its_column_only(ptx_machine, compile_cute, column):
    problem = Problem(hidden=256, intermediate=192, ids=FEW_IDS)
    clean = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    # A prepared plane holds 0..247: 255 stands for bytes nobody wrote. Column 5 lies in the last K64, whose scales are
    # halves that share a word with the next row's.
    problem.plane[2, problem.geometry.offset(163, column)] = 255
    found = problem.run(ptx_machine, compile_cute, csf_inline=False, grid=4)
    is_nan = torch.isnan(as_numbers(found)).numpy() & (found != UNTOUCHED)
    assert is_nan[[2, 4], 163].all() and is_nan.sum() == 2
    assert (found[~is_nan] == clean[~is_nan]).all()


def test_columns_beyond_a_last_k64_are_cleared(ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, ids=(1,))
    problem.m_tiles, problem.rows = 2, 2 * TILE_M
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
    compiled = compile_cute(source, ARCH, count_pointers(definition), 4)
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
    assert stack == 0 and source.launch.shared_bytes == 22528
    assert registers * source.launch.block[0] * blocks <= target(ARCH).max_registers
    assert (static_shared + source.launch.shared_bytes) * blocks <= target(ARCH).sm_shared_bytes


def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute):
    definition = define(hidden=256, intermediate=192)
    first, second = (compile_cute(definition.source, ARCH, 10, 4, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()


def test_inline_flag_that_is_off_leaves_no_trace(compile_cute):
    definition = define(hidden=256, intermediate=192)
    assert "csf_inline" not in dict(definition.source.constants)
    ptx = compile_cute(definition.source, ARCH, 10, 4).ptx
    assert "nc.v4" not in ptx and "0x1111" not in ptx


@pytest.mark.parametrize(("changes", "name"), [({"hidden": 128}, "hidden"), ({"intermediate": 96}, "intermediate")])
def test_sizes_that_are_no_whole_tiles_are_refused(changes, name):
    definition = define(hidden=256, intermediate=192)
    with pytest.raises(UnsupportedGeometry, match=name):
        SplitFc2(launch=definition.source.launch, **{**dict(definition.source.constants), **changes})
