"""The sm_90a kernel of ``split_fc1``, run lane by lane in Python against the float64 reference."""

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass")

from planfreeze.kernels.mma import mxfp8, rows_sm_90a, scales_sm_90a, sm_90a, tokens_sm_90a
from planfreeze.kernels.moe import micro_act_cute, split_fc1_sm_90a_cute
from planfreeze.kernels.moe import split_fc1_wide_sm_90a_cute as wide
from planfreeze.kernels.moe.geometry import intermediate_bytes, padded_width
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    dequantise_mxfp8,
    quantise_intermediate,
    quantise_mxfp8,
)
from planfreeze.kernels.moe.reference_grouped import place_routes
from planfreeze.kernels.moe.reference_grouped import split_fc1 as reference
from planfreeze.kernels.moe.reference_rows import read_rows
from planfreeze.kernels.moe.routing import COUNTER_START, COUNTS
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload, split_fc1
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

from . import lane_machine_tokens as machine

ARCH = "sm_90a"
EXPERTS = 4
KERNELS = {kernel.__name__: kernel for kernel in (split_fc1_sm_90a_cute.SplitFc1, wide.WideSplitFc1)}
MODULES = (
    split_fc1_sm_90a_cute,
    wide,
    rows_sm_90a,
    tokens_sm_90a,
    sm_90a,
    scales_sm_90a,
    mxfp8,
    micro_act_cute,
)
POISON = 0xEE


class Problem:
    """Four experts; ``counts[e]`` routes of expert e, in mixed pair order, and as many invalid ones as fill a token."""

    def __init__(self, *, hidden, intermediate, tile_m, counts, top_k=3, limit=None, broken_token=None):
        rng = np.random.default_rng(13)
        self.hidden, self.intermediate, self.tile_m, self.top_k, self.limit = hidden, intermediate, tile_m, top_k, limit
        ids = np.repeat(np.arange(EXPERTS), counts)
        ids = rng.permutation(np.concatenate((ids, np.full(-len(ids) % top_k, 99))))
        self.tokens = len(ids) // top_k
        ids = torch.from_numpy(ids.astype(np.int32))
        self.routes = place_routes(ids, torch.ones(len(ids)), experts=EXPERTS, tile_m=tile_m)
        # Three more m tiles of capacity than are live, with ids no kernel may follow.
        self.m_tiles = self.routes.tiles + 3
        self.rows = self.m_tiles * tile_m + 1
        columns, weight_rows = hidden // 32, 2 * intermediate
        self.geometry = ScaleGeometry(rows=weight_rows, columns=columns, group_rows=intermediate)
        bases = rng.integers(117, 122, (EXPERTS, weight_rows, 1))
        scales = bases + rng.integers(0, 2, (EXPERTS, weight_rows, columns))
        sparse = rng.random(scales.shape) < 0.004
        scales[sparse] = rng.integers(112, 123, sparse.sum())
        # The tiles of rows 0..127 and the first and fifth K128 are raw, that of the second of expert 1 has no record.
        for raw in (scales[:, 2:8, :4], scales[:, 2:8, 16:20]):
            raw[:] = rng.integers(100, 122, raw.shape)
        scales[1, :, 4:8] = bases[1] + rng.integers(0, 2, (weight_rows, 4))
        self.scales = torch.from_numpy(scales.astype(np.uint8))
        self.plane = native_plane(self.geometry, self.scales)
        self.codes = torch.from_numpy(rng.integers(0, 256, (EXPERTS, weight_rows, hidden // 2), dtype=np.uint8))
        x = torch.from_numpy(rng.standard_normal((self.tokens, hidden)).astype(np.float32)).bfloat16()
        # A token's scales differ from its neighbours', group by group.
        x *= torch.exp2(torch.from_numpy(rng.integers(-2, 2, (self.tokens, columns)))).repeat_interleave(32, -1)
        if broken_token is not None:
            x[broken_token, 40] = torch.nan
        self.x = quantise_mxfp8(x)
        self.alpha = np.array([1.0, 1.75, 0.5, 1.25], dtype=np.float32)

    def storage(self, csf_inline):
        """Return the scale arguments."""
        if csf_inline:
            return tuple(part.numpy() for part in encode(self.geometry, self.plane).parts())
        return (self.plane.numpy(),)

    def run(self, monkeypatch, *, csf_inline, blocks, fast_math=False, live=None):
        """Return the intermediate as it is stored."""
        payload = SplitFc1Payload(
            hidden=self.hidden,
            intermediate=self.intermediate,
            top_k=self.top_k,
            tile_m=self.tile_m,
            limit="" if self.limit is None else str(self.limit),
            fast_math=fast_math,
            csf_inline=csf_inline,
        )
        source = split_fc1.define(payload, target(ARCH)).source
        token_map = np.full(self.rows, 2**30, dtype=np.int32)
        token_map[: self.routes.rows] = self.routes.token_map
        expert, valid = np.full((2, self.m_tiles), 2**30, dtype=np.int32)
        expert[: self.routes.tiles], valid[: self.routes.tiles] = self.routes.tile_expert, self.routes.tile_valid
        live = self.routes.tiles if live is None else live
        progress = np.full(COUNTS + self.m_tiles, COUNTER_START, dtype=np.int32)
        progress[0] = live
        output = np.full(intermediate_bytes(ARCH, self.rows, self.intermediate), POISON, dtype=np.uint8)
        parts = (
            arrange_activations(self.x[0], ARCH).numpy(),
            activation_scales(self.x[1], ARCH).numpy(),
            pack_w13(self.codes, ARCH).numpy(),
            *self.storage(csf_inline),
            token_map,
            expert,
            valid,
            progress,
            self.alpha,
            output,
        )
        memory, addresses = machine.lanes.place(parts)
        scalars = [np.int32(value) for value in (self.tokens, EXPERTS, self.rows, self.m_tiles)]
        parameters = (*(np.int64(address) for address in addresses), *scalars)
        before = memory.copy()
        with monkeypatch.context() as patch:
            kernel = KERNELS[source.kernel.partition(":")[2]]
            machine.run_kernel(patch, MODULES, kernel, source, blocks, memory, parameters)
        counters = slice(addresses[-3], addresses[-3] + progress.nbytes)
        done = memory[counters].view(np.int32) - progress
        tasks = self.intermediate // 64
        assert done.tolist() == [0, live * tasks, 0] + [tasks] * live + [0] * (self.m_tiles - live)
        before[counters] = memory[counters]
        first = addresses[-1]
        assert (memory[:first] == before[:first]).all()
        return memory[first : first + output.size]

    def check(self, found):
        """Compare with float64, and see that no other row was touched."""
        activations = reference(
            *self.x,
            self.codes,
            self.scales,
            self.routes,
            self.top_k,
            alpha=torch.from_numpy(self.alpha),
            limit=self.limit,
        )
        is_live = torch.zeros(self.m_tiles * self.tile_m, dtype=torch.bool)
        is_live[: self.routes.rows] = self.routes.is_live
        payload, scales = self.read(found)
        assert (payload[~is_live] == POISON).all()
        # The exponent of a poisoned float.
        assert (scales[~is_live] == (POISON << 8 | POISON) >> 7 & 0xFF).all()
        expected_payload, expected_scales = quantise_intermediate(activations[self.routes.is_live])
        payload, scales = payload[is_live], scales[is_live]
        assert not payload[:, self.intermediate :].any() and not scales[:, self.intermediate // 32 :].any()
        # Sums in fp32 instead of float64 move few values over a rounding boundary.
        assert (payload == expected_payload).double().mean() > 0.99
        assert (scales == expected_scales).double().mean() > 0.99
        is_whole = (expected_scales != 255).all(-1)
        values, expected = dequantise_mxfp8(payload, scales), dequantise_mxfp8(expected_payload, expected_scales)
        errors = (values - expected)[is_whole].norm(dim=-1) / expected[is_whole].norm(dim=-1)
        assert len(errors) and errors.max() <= 4e-3
        assert (payload[~is_whole] == expected_payload[~is_whole]).all()

    def read(self, found):
        """Return payload and scales of the rows of all m tiles, having seen that what is left was not written."""
        width = padded_width(self.intermediate)
        assert (found[self.m_tiles * self.tile_m * width : self.rows * width] == POISON).all()
        return read_rows(torch.from_numpy(found), ARCH, self.rows, self.intermediate, self.tile_m)

    def by_pair(self, found):
        """Return payload and scales of the live rows, in the order of their pairs."""
        rows = torch.nonzero(self.routes.is_live).flatten()
        rows = rows[self.routes.token_map[rows].argsort()]
        return [part[rows] for part in self.read(found)]


def check_headers(problem):
    """See that the problem has tiles without, with few and with many exceptions."""
    headers = problem.storage(csf_inline=True)[0].reshape(-1, 96)[:, 64:68].copy().view(np.uint32).ravel()
    assert 0 in headers and ((headers >= 1) & (headers <= 7)).any() and (headers >> 31).any()


def test_both_storages_give_the_same_bytes(monkeypatch):
    # Six, eight and two, then three rows: both halves of the even order, a tile of one expert after another, and four
    # 64-row tiles per m tile, of which the last one is a short scale tile. Four steps, so the rebuild lags two.
    problem = Problem(hidden=512, intermediate=192, tile_m=8, counts=(6, 0, 10, 3), top_k=4)
    assert problem.routes.tile_valid.tolist() == [6, 8, 2, 3]
    check_headers(problem)
    native = problem.run(monkeypatch, csf_inline=False, blocks=3)
    problem.check(native)
    assert (native == problem.run(monkeypatch, csf_inline=True, blocks=1)).all()


def test_tiles_of_16_rows(monkeypatch):
    # Two steps a task, fewer than stages: the ring spans two tasks. A limit that binds, and a token that is not finite.
    problem = Problem(hidden=256, intermediate=64, tile_m=16, counts=(0, 5, 16, 9), limit=0.75, broken_token=2)
    native = problem.run(monkeypatch, csf_inline=False, blocks=1)
    problem.check(native)
    assert (native == problem.run(monkeypatch, csf_inline=True, blocks=2)).all()


@pytest.mark.parametrize(("counts", "csf_inline"), [((33, 17, 25, 1), False), ((8, 41, 16, 24), True)])
def test_tiles_of_32_rows_are_the_rows_of_small_tiles(monkeypatch, counts, csf_inline):
    # Tiles that just fill a width, and ones with a row more; a row's arithmetic knows nothing of its neighbours.
    large, small = (Problem(hidden=256, intermediate=64, tile_m=m, counts=counts, limit=0.75) for m in (32, 16))
    found = large.run(monkeypatch, csf_inline=csf_inline, blocks=1)
    large.check(found)
    expected = small.by_pair(small.run(monkeypatch, csf_inline=False, blocks=2))
    assert all(torch.equal(*parts) for parts in zip(large.by_pair(found), expected, strict=True))


@pytest.mark.parametrize(("hidden", "blocks"), [(256, 2), (512, 1), (768, 1)])
def test_tiles_side_by_side_are_those_one_after_the_other(monkeypatch, hidden, blocks):
    # Two steps: fewer than are looked ahead. Four: all headers of a task are copied in the one before it. Six: some are
    # its own. Several tasks a block, of other experts and other widths; entries are looked up two tasks at a time.
    monkeypatch.setattr(wide, "LANES", 2)
    side_by_side, one_by_one = (
        Problem(hidden=hidden, intermediate=192, tile_m=tile_m, counts=(33, 0, 9, 1), top_k=4) for tile_m in (32, 16)
    )
    check_headers(side_by_side)
    native = side_by_side.run(monkeypatch, csf_inline=False, blocks=blocks)
    side_by_side.check(native)
    assert (native == side_by_side.run(monkeypatch, csf_inline=True, blocks=blocks)).all()
    expected = one_by_one.by_pair(one_by_one.run(monkeypatch, csf_inline=True, blocks=2))
    assert all(torch.equal(*parts) for parts in zip(side_by_side.by_pair(native), expected, strict=True))


def test_tasks_of_two_steps_reuse_a_record_only_when_it_was_read(monkeypatch):
    # Seven tasks in one block: records of four stages go round twice.
    problem = Problem(hidden=256, intermediate=64, tile_m=8, counts=(30, 3, 9, 1), top_k=1)
    assert problem.routes.tiles == 8
    problem.check(problem.run(monkeypatch, csf_inline=True, blocks=1))


def test_whole_scale_tiles_only(monkeypatch):
    problem = Problem(hidden=256, intermediate=128, tile_m=8, counts=(0, 5, 1, 0))
    problem.check(problem.run(monkeypatch, csf_inline=False, blocks=1, fast_math=True))


def test_no_live_tile_and_blocks_without_a_task_write_nothing(monkeypatch):
    problem = Problem(hidden=256, intermediate=64, tile_m=8, counts=(1, 0, 0, 0), top_k=1)
    assert (problem.run(monkeypatch, csf_inline=True, blocks=2, live=0) == POISON).all()
    problem.check(problem.run(monkeypatch, csf_inline=True, blocks=2))
