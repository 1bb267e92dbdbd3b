"""The sm_90a kernel of ``micro_fc2``, run lane by lane in Python."""

import numpy as np
import pytest
import torch

from planfreeze.kernels.mma.stage_sm_90a import ROW_BYTES, ROW_SCALE_BYTES
from planfreeze.kernels.moe.geometry import intermediate_bytes, intermediate_scale_offset, padded_width
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload, micro_fc2
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    dequantise_mxfp4,
    dequantise_mxfp8,
)
from planfreeze.kernels.moe.weights import pack_w2
from planfreeze.kernels.scales.geometry import RAW_TILE_BYTES, ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

pytest.importorskip("cutlass")

ARCH = "sm_90a"
EXPERTS = 3


class Problem:
    """Three experts and a row per pair; ids below 0 and from 3 on are invalid."""

    def __init__(self, *, intermediate, ids, hidden=256, rows=None):
        rng = np.random.default_rng(11)
        self.hidden, self.intermediate, self.ids = hidden, intermediate, np.array(ids)
        pairs, self.rows = len(ids), rows or len(ids) + 2
        columns = intermediate // 32
        self.geometry = ScaleGeometry(rows=hidden, columns=columns, group_rows=hidden)
        bases = rng.integers(118, 124, (EXPERTS, hidden, 1))
        scales = bases + rng.integers(0, 2, (EXPERTS, hidden, columns))
        sparse = rng.random(scales.shape) < 0.008
        scales[sparse] = rng.integers(110, 130, sparse.sum())
        # The second row tile of every expert is raw; the first one of expert 0 has no exception.
        scales[0] = bases[0] + rng.integers(0, 2, (hidden, columns))
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

    def buffer(self, *, padding=0x00):
        """Store the intermediate as ``micro_act`` does; rows of no pair and of invalid ones are 0xFF."""
        width = padded_width(self.intermediate)
        buffer = np.full(intermediate_bytes(ARCH, self.rows, self.intermediate), 0xFF, dtype=np.uint8)
        payload = arrange_activations(torch.from_numpy(self.payload), ARCH).numpy()
        scales = activation_scales(torch.from_numpy(self.payload_scales), ARCH).numpy()
        for pair in np.flatnonzero((self.ids >= 0) & (self.ids < EXPERTS)):
            row = np.full(width, padding, dtype=np.uint8)
            row[: self.intermediate] = payload[pair]
            buffer[pair * width : (pair + 1) * width] = row
            row_scales = np.full(width // 32 * 4, padding, dtype=np.uint8)
            row_scales[: self.intermediate // 8] = scales[pair].view(np.uint8)
            for tile in range(width // 128):
                first = intermediate_scale_offset(ARCH, self.rows, self.intermediate, int(pair), tile)
                buffer[first : first + 16] = row_scales[16 * tile : 16 * tile + 16]
        return buffer

    def storage(self, csf_inline):
        """Return the scale arguments."""
        if csf_inline:
            return tuple(part.numpy() for part in encode(self.geometry, self.plane).parts())
        return (self.plane.numpy(),)

    def run(self, lane_machine, *, csf_inline, id_bits, blocks, padding=0x00, **how):
        """Return the route rows as bf16 bits."""
        payload = MicroFc2Payload(
            hidden=self.hidden, intermediate=self.intermediate, id_bits=id_bits, csf_inline=csf_inline
        )
        output = np.full((self.ids.size, self.hidden), 0xFFFF, dtype=np.uint16)
        tensors = (
            self.buffer(padding=padding),
            pack_w2(torch.from_numpy(self.codes), ARCH).numpy(),
            *self.storage(csf_inline),
            self.ids.astype(np.int32 if id_bits == 32 else np.int64),
            self.weights,
            self.alpha,
            output,
        )
        source = micro_fc2.define(payload, target(ARCH)).source
        return lane_machine.run(source, blocks, tensors, (self.ids.size, EXPERTS, self.rows), **how)

    def check(self, found):
        """Compare bf16 bits with float64; rows of invalid experts are zeros."""
        codes, scales = torch.from_numpy(self.codes), torch.from_numpy(self.scales)
        weights = dequantise_mxfp4(codes, scales).numpy()
        rows = dequantise_mxfp8(torch.from_numpy(self.payload), torch.from_numpy(self.payload_scales)).numpy()
        for pair, (bits, expert) in enumerate(zip(found, self.ids, strict=True)):
            if not 0 <= expert < EXPERTS:
                assert (bits == 0).all()
                continue
            expected = float(self.alpha[expert]) * float(self.weights[pair]) * (weights[expert] @ rows[pair])
            values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).double().numpy()
            # One rounding to bf16 and fp32 sums of exact products.
            assert (np.abs(values - expected) <= 2.0**-8 * np.abs(expected) + 1e-5 * np.abs(expected).max()).all()


def test_both_storages_give_the_same_rows(lane_machine):
    # A K64 tail; seven or eight tasks per block with one and two invalid pairs between valid ones.
    problem = Problem(intermediate=192, ids=(2, 7, 0, -1, -5, 1, 1, 2))
    tiles = problem.storage(csf_inline=True)[0].reshape(-1, 96)
    headers = tiles[:, 64:68].copy().view(np.uint32).ravel()
    assert 0 in headers and ((headers >= 1) & (headers <= 7)).any() and (headers >> 31).any()
    native = problem.run(lane_machine, csf_inline=False, id_bits=32, blocks=2)
    inline = problem.run(lane_machine, csf_inline=True, id_bits=64, blocks=1)
    assert (native == inline).all()
    problem.check(native)


@pytest.mark.parametrize(
    ("csf_inline", "late_bytes"),
    [(False, ROW_BYTES + ROW_SCALE_BYTES), (True, ROW_BYTES + ROW_SCALE_BYTES), (True, RAW_TILE_BYTES)],
    ids=["native row", "inline row", "raw words"],
)
# Two steps, all ahead in the first task, and six steps of which two are not.
@pytest.mark.parametrize("intermediate", [192, 704])
def test_what_is_expected_late_is_waited_for(lane_machine, csf_inline, late_bytes, intermediate):
    problem = Problem(intermediate=intermediate, ids=(2, 0))
    # The tasks of the second block have raw tiles, the first one too.
    how = {"csf_inline": csf_inline, "id_bits": 32, "blocks": 2, "late_bytes": late_bytes}
    problem.check(problem.run(lane_machine, **how))


@pytest.mark.parametrize("csf_inline", [False, True])
def test_the_intermediate_is_read_after_the_launch_that_makes_it(lane_machine, csf_inline):
    problem = Problem(intermediate=192, ids=(2, 0))
    problem.check(problem.run(lane_machine, csf_inline=csf_inline, id_bits=64, blocks=2, late_tensors=1))


def test_tasks_of_one_step(lane_machine):
    # Only a tail: the row bases of the next task land while this one's are in use, and the ring spans four tasks.
    problem = Problem(intermediate=64, ids=(1, 0, 3, 2))
    native = problem.run(lane_machine, csf_inline=False, id_bits=64, blocks=1)
    inline = problem.run(lane_machine, csf_inline=True, id_bits=32, blocks=1)
    assert (native == inline).all()
    problem.check(native)


def test_whole_k_tiles_only(lane_machine):
    problem = Problem(intermediate=128, ids=(1, 4, 2), rows=3)
    problem.check(problem.run(lane_machine, csf_inline=False, id_bits=32, blocks=1))


def test_padding_columns_are_not_used(lane_machine):
    # In the kernel's input they are zero; here they are NaN, as are the stages' bytes the tail leaves alone.
    problem = Problem(intermediate=64, ids=(2, 1))
    for csf_inline in (False, True):
        problem.check(problem.run(lane_machine, csf_inline=csf_inline, id_bits=32, blocks=1, padding=0x7F))


def test_block_with_invalid_tasks_only(lane_machine):
    # Blocks 0 and 1 get the tiles of pairs 0 and 2, blocks 2 and 3 those of the invalid pair 1.
    problem = Problem(intermediate=64, ids=(0, 3, 1))
    problem.check(problem.run(lane_machine, csf_inline=True, id_bits=32, blocks=4))
