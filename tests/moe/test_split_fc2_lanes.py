"""The sm_90a kernel of ``split_fc2``, run lane by lane in Python, over the machine of the tests of ``split_fc1``."""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass")

from planfreeze.kernels.mma import rows_sm_90a, scales_sm_90a, sm_90a, tokens_sm_90a
from planfreeze.kernels.moe import split_fc2_sm_90a_cute
from planfreeze.kernels.moe.geometry import intermediate_bytes, padded_width
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    dequantise_mxfp4,
    dequantise_mxfp8,
)
from planfreeze.kernels.moe.reference_rows import row_places
from planfreeze.kernels.moe.routing import COUNTER_START
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload, split_fc2
from planfreeze.kernels.moe.weights import pack_w2
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

from . import lane_machine_tokens as machine

ARCH = "sm_90a"
EXPERTS = 3


lanes = machine.lanes


class Block(machine.Block):
    """The machine's block, stricter: it checks what products are waited for."""

    def __init__(self, widths, memory, shared_bytes, seed):
        super().__init__(memory, shared_bytes, seed)
        self.widths, self.started = widths, []

    def start_products(self, fragments, descriptor, tokens=8):
        made = super().start_products(fragments, descriptor, tokens)
        if lanes.here.thread == 0:
            self.widths.add(tokens)
            self.started.append(made)
        return made

    def finish_products(self, products, pending):
        found = super().finish_products(products, pending)
        if lanes.here.thread == 0:
            later = len(self.started) - 1 - self.started.index(products)
            assert pending <= later, "the wait leaves these products unfinished"
        return found


def run_kernel(patch, payload, blocks, memory, parameters):
    """Run the kernel of a payload over global memory; return the widths of the products."""
    source = split_fc2.define(payload, target(ARCH)).source
    widths = set()
    patch.setattr(machine, "Block", partial(Block, widths))
    modules = (split_fc2_sm_90a_cute, rows_sm_90a, tokens_sm_90a, sm_90a, scales_sm_90a)
    machine.run_kernel(patch, modules, split_fc2_sm_90a_cute.SplitFc2, source, blocks, memory, parameters)
    return widths


class Routes:
    """The tables of ``route_plan``, poisoned wherever it writes nothing."""

    def __init__(self, ids, tile_m):
        self.tile_m = tile_m
        groups = [(e, [pair for pair, expert in enumerate(ids) if expert == e]) for e in range(EXPERTS)]
        tiles = [(e, pairs[i : i + tile_m]) for e, pairs in groups for i in range(0, len(pairs), tile_m)]
        self.count = len(tiles)
        self.m_tiles = self.count + 2
        self.rows = tile_m * self.m_tiles
        self.token_map = np.full(self.rows, 0x7FFFFFFF, dtype=np.int32)
        self.expert, self.valid = (np.full(self.m_tiles, 0x7FFFFFFF, dtype=np.int32) for _ in range(2))
        for m, (expert, pairs) in enumerate(tiles):
            self.expert[m], self.valid[m] = expert, len(pairs)
            self.token_map[tile_m * m : tile_m * (m + 1)] = [*pairs, *[-1] * (tile_m - len(pairs))]

    def live_rows(self):
        """Return the rows that belong to a pair, and those pairs."""
        rows = np.flatnonzero((self.token_map >= 0) & (self.token_map < 0x7FFFFFFF))
        return zip(rows.tolist(), self.token_map[rows].tolist(), strict=True)


class Problem:
    """Three experts and one intermediate row per route; ids below 0 and from 3 on are invalid."""

    def __init__(self, *, intermediate, ids, hidden=256):
        rng = np.random.default_rng(11)
        self.hidden, self.intermediate, self.ids = hidden, intermediate, ids
        pairs, columns = len(ids), intermediate // 32
        self.geometry = ScaleGeometry(rows=hidden, columns=columns, group_rows=hidden)
        bases = rng.integers(118, 124, (EXPERTS, hidden, 1))
        scales = bases + rng.integers(0, 2, (EXPERTS, hidden, columns))
        # Of every expert: a few exceptions anywhere, and in the second row tile too many for records.
        sparse = rng.random(scales.shape) < 0.008
        scales[sparse] = rng.integers(110, 130, sparse.sum())
        scales[:, 130:140] = 118
        scales[:, 130:140, ::2] = rng.integers(125, 129, (EXPERTS, 10, columns // 2))
        self.scales = scales.astype(np.uint8)
        self.plane = native_plane(self.geometry, torch.from_numpy(self.scales))
        self.codes = rng.integers(0, 256, (EXPERTS, hidden, intermediate // 2), dtype=np.uint8)
        magnitudes, signs = rng.integers(0x20, 0x48, (pairs, intermediate)), rng.integers(0, 2, (pairs, intermediate))
        self.payload = (magnitudes | signs << 7).astype(np.uint8)
        self.payload_scales = rng.integers(120, 130, (pairs, columns), dtype=np.uint8)
        self.weights = rng.random(pairs).astype(np.float32)
        self.alpha = np.array([1.0, 3.0, 0.5], dtype=np.float32)

    def buffer(self, routes, padding):
        """Store the intermediate as ``split_fc1`` does; rows without a pair are 0xFF."""
        width = padded_width(self.intermediate)
        buffer = np.full(intermediate_bytes(ARCH, routes.rows, self.intermediate), 0xFF, dtype=np.uint8)
        payload = arrange_activations(torch.from_numpy(self.payload), ARCH).numpy()
        scales = activation_scales(torch.from_numpy(self.payload_scales), ARCH).numpy()
        places, scale_places = (
            part.numpy() for part in row_places(ARCH, routes.rows, self.intermediate, routes.tile_m)
        )
        scale_plane = buffer[routes.rows * width :].view(np.uint32)
        for row, pair in routes.live_rows():
            buffer[places[row]] = padding
            buffer[places[row, : self.intermediate]] = payload[pair]
            scale_plane[scale_places[row]] = padding * 0x01010101
            scale_plane[scale_places[row, : self.intermediate // 32]] = scales[pair].view(np.uint32)
        return buffer

    def storage(self, csf_inline):
        """Return the scale arguments."""
        if csf_inline:
            return tuple(part.numpy() for part in encode(self.geometry, self.plane).parts())
        return (self.plane.numpy(),)

    def run(self, monkeypatch, *, tile_m, csf_inline, blocks, padding=0x00, widths=None, counters=None):
        """Return the route rows as bf16 bits, compared with float64; the widths of the products are as told.

        ``counters`` are those of the first projection, zeros unless given.
        """
        payload = SplitFc2Payload(
            hidden=self.hidden, intermediate=self.intermediate, tile_m=tile_m, csf_inline=csf_inline
        )
        routes = Routes(self.ids, tile_m)
        row_weight = np.full(routes.rows, np.nan, dtype=np.float32)
        for row, pair in routes.live_rows():
            row_weight[row] = self.weights[pair]
        output = np.full((len(self.ids), self.hidden), 0xFFFF, dtype=np.uint16)
        parts = (
            self.buffer(routes, padding),
            pack_w2(torch.from_numpy(self.codes), ARCH).numpy(),
            *self.storage(csf_inline),
            routes.token_map,
            row_weight,
            routes.expert,
            routes.valid,
            np.array([routes.count, *(counters or [0] * (2 + routes.m_tiles))], dtype=np.int32),
            self.alpha,
            output,
        )
        memory, addresses = lanes.place(parts)
        before = memory.copy()
        scalars = tuple(np.int32(value) for value in (len(self.ids), EXPERTS, routes.rows, routes.m_tiles))
        with monkeypatch.context() as patch:
            seen = run_kernel(patch, payload, blocks, memory, (*(np.int64(a) for a in addresses), *scalars))
        assert widths is None or seen == widths
        written = slice(addresses[-1], addresses[-1] + output.nbytes)
        found = memory[written].view(np.uint16).reshape(output.shape).copy()
        before[written] = memory[written]
        assert (before == memory).all(), "something else was written"
        self.check(found)
        return found

    def check(self, found):
        """Compare bf16 bits with float64; rows of invalid experts are as they were."""
        codes, scales = torch.from_numpy(self.codes), torch.from_numpy(self.scales)
        weights = dequantise_mxfp4(codes, scales).numpy()
        rows = dequantise_mxfp8(torch.from_numpy(self.payload), torch.from_numpy(self.payload_scales)).numpy()
        for pair, (bits, expert) in enumerate(zip(found, self.ids, strict=True)):
            if not 0 <= expert < EXPERTS:
                assert (bits == 0xFFFF).all()
                continue
            expected = float(self.alpha[expert]) * float(self.weights[pair]) * (weights[expert] @ rows[pair])
            values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).double().numpy()
            # One rounding to bf16 and fp32 sums of exact products.
            assert (np.abs(values - expected) <= 2.0**-8 * np.abs(expected) + 1e-5 * np.abs(expected).max()).all()


@pytest.mark.parametrize(
    ("tile_m", "counts", "widths"),
    [
        # Routes of the three experts: full tiles, tiles that are just half full or just more, single rows.
        (8, (13, 1, 4), {8}),
        (16, (8, 0, 25), {8, 16}),
        (32, (33, 24, 17), {8, 24, 32}),
    ],
)
def test_both_storages_give_the_same_rows(monkeypatch, tile_m, counts, widths):
    # A K64 tail; several tasks per block, of other experts and other numbers of valid rows.
    ids = [expert for expert, count in enumerate(counts) for _ in range(count)] + [7, -1]
    np.random.default_rng(3).shuffle(ids)
    problem = Problem(intermediate=192, ids=ids)
    headers = problem.storage(csf_inline=True)[0].reshape(-1, 96)[:, 64:68].copy().view(np.uint32)
    assert ((headers >= 1) & (headers <= 7)).any() and (headers >> 31).any()
    native = problem.run(monkeypatch, tile_m=tile_m, csf_inline=False, blocks=2, widths=widths)
    inline = problem.run(monkeypatch, tile_m=tile_m, csf_inline=True, blocks=1)
    assert (native == inline).all()


def test_tile_sizes_give_the_same_rows(monkeypatch):
    # A row's arithmetic knows nothing of its neighbours.
    problem = Problem(intermediate=64, ids=[1] * 16 + [0] * 8 + [2] * 9)
    first, *others = (problem.run(monkeypatch, tile_m=m, csf_inline=False, blocks=1) for m in (8, 16, 32))
    assert all((first == other).all() for other in others)


def test_tasks_of_one_step(monkeypatch):
    # Only a tail: the row bases of the next task land while this one's are in use, and the ring spans four tasks.
    problem = Problem(intermediate=64, ids=[1, 0, 3, 2])
    native = problem.run(monkeypatch, tile_m=8, csf_inline=False, blocks=1)
    inline = problem.run(monkeypatch, tile_m=8, csf_inline=True, blocks=1)
    assert (native == inline).all()


def test_more_steps_than_stages(monkeypatch):
    problem = Problem(intermediate=576, ids=[2, 0, 2])
    problem.run(monkeypatch, tile_m=8, csf_inline=True, blocks=2)


def test_whole_k_tiles_only(monkeypatch):
    problem = Problem(intermediate=128, ids=[1, 4, 2, 1, 1, 1, 1])
    problem.run(monkeypatch, tile_m=8, csf_inline=False, blocks=1)


def test_padding_columns_are_not_used(monkeypatch):
    # In the kernel's input they are zero; here they are NaN, as are the stages' bytes the tail leaves alone.
    problem = Problem(intermediate=64, ids=[2, 1])
    for csf_inline in (False, True):
        problem.run(monkeypatch, tile_m=16, csf_inline=csf_inline, blocks=1, padding=0x7F)


def test_blocks_without_a_task_write_nothing(monkeypatch):
    # Blocks 2 and 3 have no live tile but an entry to load; block 9 not even that.
    problem = Problem(intermediate=64, ids=[0])
    problem.run(monkeypatch, tile_m=8, csf_inline=True, blocks=10)


def test_rows_are_taken_once_all_first_tasks_of_their_tile_are_done(monkeypatch):
    # Three tiles, of three first tasks each; the counters of the last two tiles belong to none.
    problem = Problem(intermediate=192, ids=[0, 1, 2])
    done, *tiles = (COUNTER_START + count for count in (9, 3, 3, 3, 0, 0))
    # Between them how many tasks were taken.
    done = [done, 0, *tiles]
    whole = problem.run(monkeypatch, tile_m=8, csf_inline=False, blocks=2, counters=done)
    # One task of a later tile is left, in the sum too: those that are done are not waited for.
    for tile in range(3):
        open_tile = [*done]
        open_tile[0], open_tile[2 + tile] = done[0] - 1, done[2 + tile] - 1
        with pytest.raises(AssertionError, match="a wait that never ends"):
            problem.run(monkeypatch, tile_m=8, csf_inline=False, blocks=1, counters=open_tile)
    # More first tasks are open than those of the tiles that are asked for.
    found = problem.run(monkeypatch, tile_m=8, csf_inline=True, blocks=1, counters=[done[0] - 1, *done[1:]])
    assert (whole == found).all()


def test_no_valid_route(monkeypatch):
    problem = Problem(intermediate=64, ids=[-1, 3])
    found = problem.run(monkeypatch, tile_m=8, csf_inline=False, blocks=1)
    assert (found == 0xFFFF).all()
