"""Floors: the bytes of the routed experts as an arm stores them, at what the memory can do at best."""

import torch
from torch import Tensor

from planfreeze.kernels.moe.experts import PreparedExperts, Scales
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.geometry import RAW_TILE_BYTES, SELECTOR_BYTES, TILE_BLOCK_BYTES
from planfreeze.kernels.scales.storage import InlineScales

BYTES_PER_US = 4.6e6
"""4.6 TB/s, the convention of every ratio: what an H200 read of constant bytes. Random bytes are read more slowly."""


def expert_bytes(experts: PreparedExperts) -> Tensor:
    """Return the bytes of every expert's weights and scales, ``(experts,)`` float64."""
    scales = scale_bytes(experts.w13_scales, experts.experts) + scale_bytes(experts.w2_scales, experts.experts)
    return scales + experts.w13[0].numel() + experts.w2[0].numel()


def scale_bytes(scales: Scales, experts: int) -> Tensor:
    """Return the bytes of every expert's scales of one projection, in the form they are stored."""
    if isinstance(scales, InlineScales):
        blocks = scales.parts()[0].view(experts, -1, TILE_BLOCK_BYTES)
        headers = blocks[:, :, SELECTOR_BYTES : SELECTOR_BYTES + 4].contiguous().view(torch.int32)
        every = scales.geometry.tile_bytes(1) + scales.geometry.base_bytes(1)
        return every + RAW_TILE_BYTES * (headers < 0).sum((1, 2)).double()
    if isinstance(scales, CsfBatch):
        listed = (scales.task_offsets[:, -1] - scales.task_offsets[:, 0]).double()
        tables = (scales.bases, scales.selectors, scales.task_offsets)
        return scales.exceptions.element_size() * listed + sum(table[0].nbytes for table in tables)
    return torch.full((experts,), float(scales[0].numel()), dtype=torch.float64, device=scales.device)


def floor_us(bytes_by_expert: Tensor, routings: list[Tensor]) -> float:
    """Return the floor of a call: each routed expert read once, the mean over routings."""
    read = [float(bytes_by_expert[routed_experts(ids, len(bytes_by_expert))].sum()) for ids in routings]
    return sum(read) / len(read) / BYTES_PER_US


def routed_experts(ids: Tensor, experts: int) -> Tensor:
    """Return the experts a routing reads, each once."""
    unique = ids.unique().long()
    return unique[(unique >= 0) & (unique < experts)]
