"""The sm_120a kernel of split_fc1: compiled, inspected, and its PTX run on the CPU against the float64 reference."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass")

from planfreeze.errors import UnsupportedGeometry
from planfreeze.family import CuteSource, Definition
from planfreeze.kernels.moe.geometry import intermediate_bytes, padded_width
from planfreeze.kernels.moe.reference import (
    dequantise_mxfp8,
    micro_activation,
    micro_fc1,
    quantise_intermediate,
    quantise_mxfp8,
)
from planfreeze.kernels.moe.reference_grouped import place_routes, read_intermediate
from planfreeze.kernels.moe.reference_grouped import split_fc1 as reference
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload, split_fc1
from planfreeze.kernels.moe.split_fc1_sm_120a_cute import SplitFc1
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

ARCH = "sm_120a"
TILE_M = 16
EXPERTS = 3
POISON = 0xEE
ABSENT = 2**31 - 1
"""What stands in the route arrays behind the live tiles."""
f32 = np.float32
# Expert 1 fills one m tile and starts another, expert 0 has no route, two routes are invalid.
IDS = ((1, 2), (1, -1), (1, 2), (EXPERTS, 1), *[(1, 1)] * 7, (2, 1))


def define(**fields) -> Definition:
    return split_fc1.define(SplitFc1Payload(tile_m=TILE_M, **fields), target(ARCH))


def count_pointers(definition: Definition) -> int:
    return sum(argument.is_pointer for argument in definition.arguments)


def make_scales(experts: int, rows: int, columns: int) -> torch.Tensor:
    """Rows of base and base + 1; but for expert 0, exceptions here and there and four rows that make a tile raw."""
    generator = torch.Generator().manual_seed(11)
    scales = torch.randint(117, 121, (experts, rows, 1), generator=generator) + torch.randint(
        0, 2, (experts, rows, columns), generator=generator
    )
    sparse = scales[1:].view(-1)[::97]
    sparse.copy_(torch.randint(114, 124, sparse.shape, generator=generator))
    scales[1, 40:44] = torch.randint(112, 124, (4, columns), generator=generator)
    scales[1:, -1] = torch.randint(112, 124, (columns,), generator=generator)
    return scales.to(torch.uint8)


def with_f32_instructions(ptx_machine):
    """Return a block of the machine with the f32 instructions of the activation.

    The approximate ones are exact here: what a device computes for them differs in the last bits.
    """

    def fma(a, b, c):
        return f32(a.astype(np.float64) * b + c)

    made = {
        "fma": fma,
        "min": np.minimum,
        "max": np.maximum,
        "neg": np.negative,
        "rcp": lambda a: f32(1) / a,
        "ex2": lambda a: f32(np.exp2(a.astype(np.float64))),
    }

    class Block(ptx_machine.Block):
        def execute(self, instruction, active):
            if instruction.op[0] not in made or instruction.op[-1] != "f32":
                return super().execute(instruction, active)
            assert instruction.op[1] in ("rn", "NaN", "approx", "f32"), instruction.text
            operands = [ptx_machine.floats(self.value(name, 32)) for name in instruction.operands[1:]]
            values = made[instruction.op[0]](*operands)
            self.set(instruction.operands[0], ptx_machine.bits_of(values), active)

    return Block


class Problem:
    """Random experts and tokens; routes in m tiles, with more tiles of capacity than live ones."""

    def __init__(self, *, hidden: int, intermediate: int, ids=IDS) -> None:
        generator = torch.Generator().manual_seed(5)
        self.hidden, self.intermediate = hidden, intermediate
        self.ids = torch.tensor(ids)
        self.tokens, self.top_k = self.ids.shape
        self.x = torch.randn(self.tokens, hidden, generator=generator).bfloat16()
        self.codes = torch.randint(
            0, 256, (EXPERTS, 2 * intermediate, hidden // 2), generator=generator, dtype=torch.uint8
        )
        self.scales = make_scales(EXPERTS, 2 * intermediate, hidden // 32)
        self.alpha = torch.tensor([0.5, 1.25, 0.75])
        self.geometry = ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate)
        self.plane = native_plane(self.geometry, self.scales)
        self.routes = place_routes(self.ids, torch.ones(self.ids.shape), experts=EXPERTS, tile_m=TILE_M)
        pairs = self.ids.numel()
        self.m_tiles = -(-pairs // TILE_M) + min(EXPERTS, pairs) - 1
        self.rows = TILE_M * self.m_tiles

    def run(self, monkeypatch, ptx_machine, compile_cute, *, csf_inline: bool, grid: int, is_serial=False, **fields):
        """Run the compiled kernel; return the bytes of the intermediate."""
        definition = define(
            hidden=self.hidden,
            intermediate=self.intermediate,
            top_k=self.top_k,
            csf_inline=csf_inline,
            **fields,
        )
        source = definition.source
        assert isinstance(source, CuteSource)
        monkeypatch.setattr(ptx_machine, "Block", with_f32_instructions(ptx_machine))
        memory = ptx_machine.Memory()
        routes = self.routes
        assert routes.tiles < self.m_tiles
        inputs = [*quantise_mxfp8(self.x), pack_w13(self.codes, ARCH)]
        inputs += encode(self.geometry, self.plane).parts() if csf_inline else (self.plane,)
        for values, length in (
            (routes.token_map, self.rows),
            (routes.tile_expert, self.m_tiles),
            (routes.tile_valid, self.m_tiles),
        ):
            inputs.append(torch.nn.functional.pad(values, (0, length - len(values)), value=ABSENT))
        inputs += [torch.tensor([routes.tiles], dtype=torch.int32), self.alpha]
        addresses = [memory.put(tensor.numpy()) for tensor in inputs]
        buffer = np.full(intermediate_bytes(ARCH, self.rows, self.intermediate), POISON, np.uint8)
        addresses.append(memory.put(buffer))
        assert len(addresses) == count_pointers(definition)
        kernel = ptx_machine.Kernel(compile_cute(source, ARCH, len(addresses), 4).ptx)
        with np.errstate(all="ignore"):
            products = kernel.run(
                memory,
                [*addresses, self.tokens, EXPERTS, self.rows, self.m_tiles],
                grid=definition.grid({"m_tiles": self.m_tiles}, grid)[0],
                block=source.launch.block[0],
                shared_bytes=source.launch.shared_bytes,
                is_serial=is_serial,
            )
        # Four warps, four fragments of gate and four of up in every K32 group.
        assert products == routes.tiles * -(-self.intermediate // 128) * self.hidden // 32 * 32
        return memory.get(addresses[-1], buffer)

    def read(self, buffer: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return payload and scales in K order of all capacity rows."""
        return read_intermediate(torch.from_numpy(buffer), ARCH, self.rows, self.intermediate)

    def is_written(self) -> torch.Tensor:
        """Whether a capacity row is a route."""
        return torch.nn.functional.pad(self.routes.is_live, (0, self.rows - self.routes.rows))

    def activations(self, limit: float | None = None) -> torch.Tensor:
        """The bf16 activations of the live rows."""
        found = reference(
            *quantise_mxfp8(self.x),
            self.codes,
            self.scales,
            self.routes,
            self.top_k,
            alpha=self.alpha,
            limit=limit,
        )
        return found[self.routes.is_live]

    def rounded_activations(self) -> torch.Tensor:
        """The activations of the live rows where gate and up are rounded to bf16 before."""
        projections = micro_fc1(self.x, self.codes, self.scales, self.ids, alpha=self.alpha)
        pairs = self.routes.token_map[self.routes.is_live].long()
        return micro_activation(projections, self.ids, EXPERTS)[pairs]


def relative_l2(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(
    ("hidden", "intermediate", "csf_inline", "grid", "limit"),
    [
        (256, 192, False, 2, ""),
        (256, 192, True, 5, "0.5"),
        (512, 64, True, 1, ""),
        (256, 128, False, 8, "0.5"),
        (256, 576, True, 3, ""),
    ],
)
def test_compiled_kernel_matches_the_reference(
    monkeypatch, ptx_machine, compile_cute, hidden, intermediate, csf_inline, grid, limit
):
    problem = Problem(hidden=hidden, intermediate=intermediate)
    assert problem.routes.tile_valid.tolist() == [16, 3, 3] and problem.m_tiles == 4
    buffer = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=csf_inline, grid=grid, limit=limit)
    payload, scales = problem.read(buffer)
    is_written = problem.is_written()
    assert (payload[~is_written] == POISON).all() and (scales[~is_written] == POISON).all()
    payload, scales = payload[is_written], scales[is_written]
    width = padded_width(intermediate)
    assert payload.shape == (22, width) and not payload[:, intermediate:].any()
    assert not scales[:, intermediate // 32 :].any()
    expected = quantise_intermediate(problem.activations(float(limit) if limit else None))
    # fp32 sums of exact products: bf16 and then E4M3 roundings flip here and there only.
    assert (payload == expected[0]).double().mean() > 0.995
    assert (scales == expected[1]).double().mean() > 0.995
    values, wanted = dequantise_mxfp8(payload, scales), dequantise_mxfp8(*expected)
    assert relative_l2(values, wanted) <= 4e-3
    if limit:
        unlimited = dequantise_mxfp8(*quantise_intermediate(problem.activations()))
        assert relative_l2(values, unlimited) > 0.1
    else:
        rounded = dequantise_mxfp8(*quantise_intermediate(problem.rounded_activations()))
        assert relative_l2(values, rounded) > 4e-3


@pytest.mark.parametrize("intermediate", [64, 192])
def test_inline_and_native_scales_give_the_same_bits(monkeypatch, ptx_machine, compile_cute, intermediate):
    problem = Problem(hidden=256, intermediate=intermediate)
    inline = encode(problem.geometry, problem.plane)
    headers = inline.parts()[0].view(EXPERTS, -1, 96)[:, :, 64:68].contiguous().view(torch.int32)
    assert (headers[1] < 0).any() and ((headers[1] > 0) & (headers[1] <= 7)).any()
    native = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=3)
    found = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=True, grid=4)
    np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("csf_inline", [False, True])
def test_warps_that_run_far_apart_give_the_same_bits(monkeypatch, ptx_machine, compile_cute, csf_inline):
    # One block runs every task.
    problem = Problem(hidden=512, intermediate=64)
    together = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=csf_inline, grid=3)
    apart = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=csf_inline, grid=1, is_serial=True)
    np.testing.assert_array_equal(apart, together)


def test_no_live_tile_writes_nothing(monkeypatch, ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192, ids=((-1, EXPERTS), (-7, EXPERTS + 1)))
    assert problem.routes.tiles == 0
    buffer = problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=2)
    assert (buffer == POISON).all()


def test_rows_of_zeros_and_of_nan_stay_among_themselves(monkeypatch, ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=192)
    clean = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=True, grid=2))
    problem.x[2] = 0
    problem.x[11, 40] = torch.nan
    found = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=True, grid=2))
    tokens = torch.full((problem.rows,), -1)
    tokens[problem.is_written()] = problem.routes.token_map[problem.routes.is_live].long() // problem.top_k
    for token, scale, payload in ((2, 127, 0), (11, 255, 0x7F)):
        rows = tokens == token
        assert rows.sum() == 2
        assert (found[0][rows, :192] == payload).all() and (found[1][rows, :6] == scale).all()
        assert not found[0][rows, 192:].any() and not found[1][rows, 6:].any()
    others = (tokens != 2) & (tokens != 11)
    assert found[0][others].equal(clean[0][others]) and found[1][others].equal(clean[1][others])


@pytest.mark.parametrize(("first_row", "column"), [(0, 1), (192, 6)])
def test_poisoned_scale_is_not_finite_in_its_group_only(monkeypatch, ptx_machine, compile_cute, first_row, column):
    problem = Problem(hidden=256, intermediate=192)
    clean = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=4))
    # A prepared plane holds 0..247: 255 stands for bytes nobody wrote. Row 37 of up or of gate, of expert 2.
    problem.plane[2, problem.geometry.offset(first_row + 37, column)] = 255
    found = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=4))
    owners = problem.routes.tile_expert.repeat_interleave(TILE_M)
    rows = torch.nn.functional.pad(problem.routes.is_live & (owners == 2), (0, TILE_M))
    assert rows.sum() == 3
    assert (found[0][rows, 32:64] == 0x7F).all() and (found[1][rows, 1] == 255).all()
    for stored, expected, group in zip(found, clean, (slice(32, 64), slice(1, 2)), strict=True):
        assert not stored.equal(expected)
        stored[rows, group] = expected[rows, group]
        assert stored.equal(expected)


def test_fast_math_differs_in_roundings_only(monkeypatch, ptx_machine, compile_cute):
    problem = Problem(hidden=256, intermediate=64)
    exact = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=2))
    found = problem.read(problem.run(monkeypatch, ptx_machine, compile_cute, csf_inline=False, grid=2, fast_math=True))
    assert found[1].equal(exact[1])
    steps = (found[0].int() - exact[0].int()).abs()
    assert steps.max() <= 1 and (steps != 0).double().mean() < 0.01


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("fast_math", [False, True])
def test_cubin_uses_block_scaled_products_and_registers_only(compile_cute, cuobjdump, csf_inline, fast_math):
    definition = define(hidden=5120, intermediate=576, top_k=6, limit="7.0", csf_inline=csf_inline, fast_math=fast_math)
    source = definition.source
    assert isinstance(source, CuteSource)
    compiled = compile_cute(source, ARCH, count_pointers(definition), 4)
    sass = cuobjdump(compiled.cubin, "-sass")
    # Two stages of K64, two K32 groups each, four fragments of gate and four of up: the loop is not unrolled further.
    products = re.findall(r"QMMA\.SF\.16832\.F32\.E4M3\.E2M1\.E8 (R\d+), R\d+, \S+, (\w+)", sass)
    assert len(products) == 32
    # Chained: every product goes on from the result of another, none starts from zero.
    results, starts = zip(*products, strict=True)
    assert sorted(results) == sorted(starts)
    assert not re.search(r"\b(LDL|STL)\b", sass) and ("MUFU.EX2" in sass) == fast_math
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None
    registers, stack, static_shared = map(int, usage.groups())
    blocks = 2
    assert stack == 0 and source.launch.shared_bytes == 22656
    assert registers * source.launch.block[0] * blocks <= target(ARCH).max_registers
    assert (static_shared + source.launch.shared_bytes) * blocks <= target(ARCH).sm_shared_bytes


def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute):
    definition = define(hidden=256, intermediate=192, top_k=2)
    first, second = (compile_cute(definition.source, ARCH, 10, 4, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()


def test_inline_flag_that_is_off_leaves_no_trace(compile_cute):
    definition = define(hidden=256, intermediate=192, top_k=2)
    assert "csf_inline" not in dict(definition.source.constants)
    ptx = compile_cute(definition.source, ARCH, 10, 4).ptx
    assert "nc.v4" not in ptx and "0x1111" not in ptx


@pytest.mark.parametrize(
    ("changes", "name"), [({"hidden": 128}, "hidden"), ({"intermediate": 96}, "intermediate"), ({"top_k": 33}, "top_k")]
)
def test_sizes_that_are_no_whole_tiles_are_refused(changes, name):
    definition = define(hidden=256, intermediate=192, top_k=2)
    with pytest.raises(UnsupportedGeometry, match=name):
        SplitFc1(launch=definition.source.launch, **{**dict(definition.source.constants), **changes})
