"""Calls of a layer: what each of their launches is given."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze.kernels.moe.experts import PreparedExperts, select_scales
from planfreeze.kernels.moe.geometry import layout
from planfreeze.kernels.moe.plan import CapacityPlan, MoEPlan
from planfreeze.kernels.moe.rules import ScaleMode
from planfreeze.kernels.moe.scratch import ScratchSizes
from planfreeze.kernels.moe.stages import StageName
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.storage import InlineScales

__all__ = ["ARGUMENTS", "Call", "Operands", "Scratch", "divide", "select_operands"]


class Scratch(Struct, frozen=True, kw_only=True):
    """Buffers of a call, views of one workspace; see :class:`~planfreeze.kernels.moe.scratch.ScratchSizes`."""

    a8: Tensor
    a_scale: Tensor
    projections: Tensor
    token_map: Tensor
    row_weight: Tensor
    tile_expert: Tensor
    tile_valid: Tensor
    tile_count: Tensor
    intermediate: Tensor
    route_output: Tensor
    presence: Tensor
    w13_plane: Tensor
    w2_plane: Tensor


DTYPES = {
    "projections": torch.float32,
    "token_map": torch.int32,
    "row_weight": torch.float32,
    "tile_expert": torch.int32,
    "tile_valid": torch.int32,
    "tile_count": torch.int32,
    "route_output": torch.bfloat16,
}
"""Element types of the buffers that are not bytes on every architecture."""


def divide(plan: MoEPlan, workspace: Tensor) -> Scratch:
    """Return the buffers of a workspace, each of the type its kernels take."""
    scale_dtype = torch.float32 if layout(plan.arch).activation_scale_dtype == "f32" else torch.uint8
    dtypes = dict.fromkeys(ScratchSizes.__struct_fields__, torch.uint8) | DTYPES | {"a_scale": scale_dtype}
    places = plan.scratch.places()
    return Scratch(**{name: workspace[first:last].view(dtypes[name]) for name, (first, last) in places.items()})


class Operands(Struct, frozen=True, kw_only=True):
    """What stands in the scale arguments of both projections: a native plane, or the parts of inline storage."""

    w13: tuple[Tensor, ...]
    w2: tuple[Tensor, ...]


def select_operands(experts: PreparedExperts, scratch: Scratch, mode: ScaleMode) -> Operands:
    """Return the scale operands of a mode.

    Planes in scratch are what the call expands or decodes first; no other mode refers to them.
    """
    if mode in (ScaleMode.EXPAND, ScaleMode.DECODE):
        return Operands(w13=(scratch.w13_plane,), w2=(scratch.w2_plane,))
    return Operands(w13=select_scales(experts, "w13"), w2=select_scales(experts, "w2"))


class Call(Struct, frozen=True, kw_only=True):
    """One call of a layer: its tensors, and what of the layer its launches take.

    Parameters
    ----------
    planned : CapacityPlan
        How the call is served.
    experts : PreparedExperts
        Weights of the layer.
    operands : Operands
        Scale operands of the capacity's mode.
    scratch : Scratch
        Buffers of the layer.
    x, topk_ids, topk_weights, out : Tensor
        As of ``MoELayer.run``.
    """

    planned: CapacityPlan
    experts: PreparedExperts
    operands: Operands
    scratch: Scratch
    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    out: Tensor

    @property
    def tokens(self) -> int:
        """Live tokens."""
        return len(self.x)

    @property
    def pairs(self) -> int:
        """Live routes."""
        count: int = self.topk_ids.numel()
        return count


def act_quant(call: Call) -> tuple[Any, ...]:
    return call.x, call.scratch.a8, call.scratch.a_scale, call.tokens


def expand(scales: object, plane: Tensor) -> tuple[Any, ...]:
    assert isinstance(scales, InlineScales), "only inline experts are planned to expand"
    return scales.storage, plane, scales.experts * scales.geometry.tiles


def csf_presence(call: Call) -> tuple[Any, ...]:
    return call.topk_ids, call.scratch.presence, call.pairs


def csf_decode(scales: object, presence: Tensor, plane: Tensor) -> tuple[Any, ...]:
    assert isinstance(scales, CsfBatch), "only experts with a batch are planned to decode"
    exceptions = scales.exceptions.view(torch.int32)
    return (scales.bases, scales.selectors, exceptions, scales.task_offsets, presence, plane, scales.experts)


def micro_fc1(call: Call) -> tuple[Any, ...]:
    scratch, experts = call.scratch, call.experts
    return (
        scratch.a8,
        scratch.a_scale,
        experts.w13,
        *call.operands.w13,
        call.topk_ids,
        scratch.projections,
        call.pairs,
        experts.experts,
    )


def micro_act(call: Call) -> tuple[Any, ...]:
    scratch = call.scratch
    return (
        scratch.projections,
        call.topk_ids,
        call.experts.alpha1,
        scratch.intermediate,
        call.pairs,
        call.experts.experts,
        call.planned.counts.rows,
    )


def micro_fc2(call: Call) -> tuple[Any, ...]:
    scratch, experts = call.scratch, call.experts
    return (
        scratch.intermediate,
        experts.w2,
        *call.operands.w2,
        call.topk_ids,
        call.topk_weights,
        experts.alpha2,
        scratch.route_output,
        call.pairs,
        experts.experts,
        call.planned.counts.rows,
    )


def route_plan(call: Call) -> tuple[Any, ...]:
    scratch, counts = call.scratch, call.planned.counts
    return (
        call.topk_ids,
        call.topk_weights,
        scratch.token_map,
        scratch.row_weight,
        scratch.tile_expert,
        scratch.tile_valid,
        scratch.tile_count,
        scratch.route_output,
        call.pairs,
        call.experts.hidden,
        counts.rows,
        counts.m_tiles,
    )


def split_fc1(call: Call) -> tuple[Any, ...]:
    scratch, experts, counts = call.scratch, call.experts, call.planned.counts
    return (
        scratch.a8,
        scratch.a_scale,
        experts.w13,
        *call.operands.w13,
        scratch.token_map,
        scratch.tile_expert,
        scratch.tile_valid,
        scratch.tile_count,
        experts.alpha1,
        scratch.intermediate,
        call.tokens,
        experts.experts,
        counts.rows,
        counts.m_tiles,
    )


def split_fc2(call: Call) -> tuple[Any, ...]:
    scratch, experts, counts = call.scratch, call.experts, call.planned.counts
    return (
        scratch.intermediate,
        experts.w2,
        *call.operands.w2,
        scratch.token_map,
        scratch.row_weight,
        scratch.tile_expert,
        scratch.tile_valid,
        scratch.tile_count,
        experts.alpha2,
        scratch.route_output,
        call.pairs,
        experts.experts,
        counts.rows,
        counts.m_tiles,
    )


def topk_sum(call: Call) -> tuple[Any, ...]:
    return call.scratch.route_output, call.out, call.tokens


ARGUMENTS: Mapping[StageName, Callable[[Call], tuple[Any, ...]]] = {
    "act_quant": act_quant,
    "expand_w13": lambda call: expand(call.experts.w13_scales, call.scratch.w13_plane),
    "expand_w2": lambda call: expand(call.experts.w2_scales, call.scratch.w2_plane),
    "csf_presence": csf_presence,
    "csf_decode_w13": lambda call: csf_decode(call.experts.w13_scales, call.scratch.presence, call.scratch.w13_plane),
    "csf_decode_w2": lambda call: csf_decode(call.experts.w2_scales, call.scratch.presence, call.scratch.w2_plane),
    "micro_fc1": micro_fc1,
    "micro_act": micro_act,
    "micro_fc2": micro_fc2,
    "route_plan": route_plan,
    "split_fc1": split_fc1,
    "split_fc2": split_fc2,
    "topk_sum": topk_sum,
}
"""What a launch takes from a call, in the order of its program's arguments, by stage."""
