"""Enumerator of payloads: every program a model's MoE layers can ask for, from geometry alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.rules import (
    Backend,
    ScaleMode,
    ShardedModel,
    choose_arms,
    choose_backend,
    choose_scale_mode,
    shard,
)
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.models import IdType, Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["MicroStages", "enumerate_programs", "micro_stages"]

ID_BITS = {"int32": 32, "int64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStages:
    """Payloads of a direct-route call in the order of their launches, for one type of routing ids."""

    act_quant: ActQuantPayload
    micro_fc1: MicroFc1Payload
    micro_act: MicroActPayload
    micro_fc2: MicroFc2Payload
    topk_sum: TopkSumPayload


def micro_stages(sharded: ShardedModel, id_type: IdType, *, csf_inline: bool) -> MicroStages:
    """Return the payloads of a direct-route call.

    Parameters
    ----------
    sharded : ShardedModel
        The model as one rank sees it.
    id_type : str
        Integer type of the routing ids.
    csf_inline : bool
        Whether both projections read their scales from inline storage.
    """
    model, columns, id_bits = sharded.model, sharded.intermediate, ID_BITS[id_type]
    return MicroStages(
        act_quant=ActQuantPayload(hidden=model.hidden),
        micro_fc1=MicroFc1Payload(
            hidden=model.hidden, intermediate=columns, top_k=model.top_k, id_bits=id_bits, csf_inline=csf_inline
        ),
        micro_act=MicroActPayload(
            intermediate=columns,
            id_bits=id_bits,
            limit=limit_text(model.activation_limit),
            fast_math=model.fast_math,
        ),
        micro_fc2=MicroFc2Payload(hidden=model.hidden, intermediate=columns, id_bits=id_bits, csf_inline=csf_inline),
        topk_sum=TopkSumPayload(hidden=model.hidden, top_k=model.top_k),
    )


def enumerate_programs(model: Model, *, tp: int, target: Target, options: PlanOptions) -> tuple[Payload, ...]:
    """List the payloads of a model.

    Parameters
    ----------
    model : Model
        The whole model.
    tp : int
        Ranks it is divided over; all ranks run the same programs.
    target : Target
        Architecture to plan for. Every family listed here has one variant per geometry on all of them.
    options : PlanOptions
        Capacities, arms, id types and the inline limit of the plan.

    Returns
    -------
    tuple of Payload
        Each once, in a fixed order. Same inputs, same tuple: the environment is not read.

    Raises
    ------
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    UnavailableArm
        An arm is asked for that the model does not have.

    Notes
    -----
    Capacities size scratch and select backend and scale mode; they are in no payload.
    """
    sharded = shard(model, tp)
    modes = {
        (choose_backend(sharded, capacity), choose_scale_mode(sharded, capacity, arm, options))
        for arm in choose_arms(sharded, options)
        for capacity in options.capacities_for(model)
    }
    payloads: list[Payload] = [ActQuantPayload(hidden=model.hidden)]
    for csf_inline in (True, False):
        if any(b is Backend.MICRO and (mode is ScaleMode.INLINE) == csf_inline for b, mode in modes):
            payloads.extend(list_micro(sharded, options.id_types_for(model), csf_inline=csf_inline))
    if any(mode is ScaleMode.EXPAND for _, mode in modes):
        payloads.extend(list_expansions(sharded))
    payloads.append(TopkSumPayload(hidden=model.hidden, top_k=model.top_k))
    return tuple(dict.fromkeys(payloads))


def list_micro(sharded: ShardedModel, id_types: tuple[IdType, ...], *, csf_inline: bool) -> Iterator[Payload]:
    """List the direct-route kernels stage by stage, each for every type of routing ids."""
    stages = [micro_stages(sharded, id_type, csf_inline=csf_inline) for id_type in id_types]
    for name in ("micro_fc1", "micro_act", "micro_fc2"):
        for of_type in stages:
            yield getattr(of_type, name)


def list_expansions(sharded: ShardedModel) -> Iterator[Payload]:
    """List the expansions of both projections: W13 has a row group of up and one of gate rows, W2 has one."""
    model, columns = sharded.model, sharded.intermediate
    yield ExpandPayload(experts=model.experts, rows=2 * columns, columns=model.hidden // GROUP, group_rows=columns)
    yield ExpandPayload(experts=model.experts, rows=model.hidden, columns=columns // GROUP, group_rows=model.hidden)


def limit_text(limit: float | None) -> str:
    """Write an activation limit as payloads hold it: the shortest text that reads back as the same number."""
    return "" if limit is None else str(float(limit))
