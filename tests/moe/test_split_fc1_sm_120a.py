"""The sm_120a kernel of split_fc1: compiled, inspected, and its PTX run on the CPU against the float64 reference."""

import re

import numpy as np
import pytest
import torch

from planfreeze.errors import UnsupportedGeometry
from planfreeze.family import CuteSource
from planfreeze.kernels.moe.geometry import padded_width
from planfreeze.kernels.moe.reference import (
    dequantise_mxfp8,
    quantise_intermediate,
)
from planfreeze.kernels.scales.inline import encode
from planfreeze.target import target

from .split_fc1_problem import ARCH, EXPERTS, POISON, TILE_M, Problem, count_pointers, define, relative_l2

pytest.importorskip("cutlass")


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
    from planfreeze.kernels.moe.split_fc1_sm_120a_cute import SplitFc1  # imports the DSL

    definition = define(hidden=256, intermediate=192, top_k=2)
    with pytest.raises(UnsupportedGeometry, match=name):
        SplitFc1(launch=definition.source.launch, **{**dict(definition.source.constants), **changes})
