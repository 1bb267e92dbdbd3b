"""The sm_90a kernel of ``micro_fc1``, run lane by lane in Python."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from planfreeze.kernels.mma.stage_sm_90a import GROUP_SCALE_BYTES, ROW_BYTES, ROW_SCALE_BYTES
from planfreeze.kernels.moe.geometry import projection_parts
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload, micro_fc1
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    dequantise_mxfp4,
    dequantise_mxfp8,
)
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

pytest.importorskip("cutlass")

UNTOUCHED = 0xFFFFFFFF


def make_problem(*, hidden, intermediate, ids, top_k):
    """Make three experts and two tokens; ids of 3 and more are invalid."""
    rng = np.random.default_rng(7)
    experts = 3
    geometry = ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate)
    bases = rng.integers(118, 124, (experts, 2 * intermediate))
    scales = bases[..., None] + rng.integers(0, 2, (experts, 2 * intermediate, hidden // 32))
    sparse = rng.random(scales.shape) < 0.004
    scales[sparse] = rng.integers(110, 130, sparse.sum())
    scales[:, 70:74, :8] = rng.integers(112, 126, (experts, 4, 8))
    codes = rng.integers(0, 256, (experts, 2 * intermediate, hidden // 2), dtype=np.uint8)
    # Finite E4M3 bytes of moderate size.
    magnitudes, signs = rng.integers(0x20, 0x48, (2, hidden)), rng.integers(0, 2, (2, hidden))
    payload = (magnitudes | signs << 7).astype(np.uint8)
    token_scales = rng.integers(120, 130, (2, hidden // 32), dtype=np.uint8)

    scales = torch.from_numpy(scales.astype(np.uint8))
    plane = native_plane(geometry, scales)
    weights = dequantise_mxfp4(torch.from_numpy(codes), scales)
    tokens = dequantise_mxfp8(torch.from_numpy(payload), torch.from_numpy(token_scales))
    parts = projection_parts("sm_90a", hidden)
    expected = torch.full((parts, len(ids), 2 * intermediate), torch.nan, dtype=torch.float64)
    for pair, expert in enumerate(ids):
        if 0 <= expert < experts:
            products = weights[expert] * tokens[pair // top_k]
            up, gate = products.unflatten(-1, (parts, -1)).sum(-1).T.chunk(2, dim=-1)
            expected[:, pair] = torch.cat((gate, up), dim=-1)
    return SimpleNamespace(
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        experts=experts,
        ids=np.array(ids),
        a8=arrange_activations(torch.from_numpy(payload), "sm_90a").numpy(),
        a_scale=activation_scales(torch.from_numpy(token_scales), "sm_90a").numpy(),
        w13=pack_w13(torch.from_numpy(codes), "sm_90a").numpy(),
        native=(plane.numpy(),),
        inline=tuple(part.numpy() for part in encode(geometry, plane).parts()),
        expected=expected,
    )


def run_problem(lane_machine, problem, *, csf_inline, id_bits, blocks, **how):
    """Return the projections of a problem as fp32 bits; untouched rows keep 0xFFFFFFFF."""
    payload = MicroFc1Payload(
        hidden=problem.hidden,
        intermediate=problem.intermediate,
        top_k=problem.top_k,
        id_bits=id_bits,
        csf_inline=csf_inline,
    )
    scales = problem.inline if csf_inline else problem.native
    ids = problem.ids.astype(np.int32 if id_bits == 32 else np.int64)
    output = np.full(problem.expected.shape, UNTOUCHED, dtype=np.uint32)
    source = micro_fc1.define(payload, target("sm_90a")).source
    tensors = (problem.a8, problem.a_scale, problem.w13, *scales, ids, output)
    return lane_machine.run(source, blocks, tensors, (ids.size, problem.experts), **how)


def check_projections(problem, found):
    """Compare every part with float64, and see that rows of invalid experts were left alone."""
    for bits, expected in zip(found.reshape(-1, found.shape[-1]), problem.expected.flatten(0, 1), strict=True):
        if expected.isnan().any():
            assert (bits == UNTOUCHED).all()
        else:
            values = torch.from_numpy(bits.view(np.float32)).double()
            assert torch.linalg.norm(values - expected) <= 1e-6 * torch.linalg.norm(expected)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "ids", "steps"),
    # Three 64-row tiles, the last one a short scale tile: three steps a part. One tile: more
    # steps than stages.
    [(768, 192, (2, 7, -1, 0), (2, 3)), (2560, 64, (3, 1), (4, 5))],
)
def test_both_storages_give_the_same_projections(lane_machine, hidden, intermediate, ids, steps):
    problem = make_problem(hidden=hidden, intermediate=intermediate, ids=ids, top_k=2)
    assert (len(problem.expected), hidden // 128 // len(problem.expected)) == steps
    headers = problem.inline[0].reshape(-1, 96)[:, 64:68].copy().view(np.uint32).ravel()
    assert ((headers >= 1) & (headers <= 7)).any() and (headers >> 31).any()
    native = run_problem(lane_machine, problem, csf_inline=False, id_bits=32, blocks=3, is_reversed=True)
    inline = run_problem(lane_machine, problem, csf_inline=True, id_bits=64, blocks=1)
    assert (native == inline).all()
    check_projections(problem, native)


@pytest.mark.parametrize(
    ("csf_inline", "late_bytes"),
    [(False, ROW_BYTES + ROW_SCALE_BYTES), (True, ROW_BYTES + ROW_SCALE_BYTES), (True, GROUP_SCALE_BYTES)],
    ids=["native row", "inline row", "raw words"],
)
def test_what_is_expected_late_is_waited_for(lane_machine, csf_inline, late_bytes):
    problem = make_problem(hidden=768, intermediate=64, ids=(2, 0), top_k=2)
    how = {"csf_inline": csf_inline, "id_bits": 32, "blocks": 1, "late_bytes": late_bytes}
    check_projections(problem, run_problem(lane_machine, problem, **how))


@pytest.mark.parametrize("csf_inline", [False, True])
def test_activations_are_read_after_the_launch_that_makes_them(lane_machine, csf_inline):
    problem = make_problem(hidden=768, intermediate=64, ids=(2, 0), top_k=2)
    how = {"csf_inline": csf_inline, "id_bits": 64, "blocks": 2, "late_tensors": 2}
    check_projections(problem, run_problem(lane_machine, problem, **how))


@pytest.mark.parametrize(("hidden", "steps"), [(256, (2, 1)), (512, (4, 1)), (1024, (4, 2))])
def test_parts_of_fewer_steps_than_stages(lane_machine, hidden, steps):
    # With a lag of two the bases and half of the next task would be used.
    problem = make_problem(hidden=hidden, intermediate=64, ids=(1, 0), top_k=1)
    assert (len(problem.expected), hidden // 128 // len(problem.expected)) == steps
    check_projections(problem, run_problem(lane_machine, problem, csf_inline=True, id_bits=32, blocks=2))


def test_whole_scale_tiles_only(lane_machine):
    problem = make_problem(hidden=512, intermediate=128, ids=(1, 0), top_k=1)
    check_projections(problem, run_problem(lane_machine, problem, csf_inline=False, id_bits=64, blocks=1))
