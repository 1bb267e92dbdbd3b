"""Enumerator of payloads: every program a model's MoE layers can ask for, from geometry alone."""

from collections.abc import Iterator

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
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

__all__ = ["enumerate_programs"]

ID_BITS = {"int32": 32, "int64": 64}


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
    return tuple(payloads)


def list_micro(sharded: ShardedModel, id_types: tuple[IdType, ...], *, csf_inline: bool) -> Iterator[Payload]:
    """List the direct-route kernels: one per type of routing ids."""
    for id_type in id_types:
        yield MicroFc1Payload(
            hidden=sharded.model.hidden,
            intermediate=sharded.intermediate,
            top_k=sharded.model.top_k,
            id_bits=ID_BITS[id_type],
            csf_inline=csf_inline,
        )


def list_expansions(sharded: ShardedModel) -> Iterator[Payload]:
    """List the expansions of both projections: W13 has a row group of up and one of gate rows, W2 has one."""
    model, columns = sharded.model, sharded.intermediate
    yield ExpandPayload(experts=model.experts, rows=2 * columns, columns=model.hidden // GROUP, group_rows=columns)
    yield ExpandPayload(experts=model.experts, rows=model.hidden, columns=columns // GROUP, group_rows=model.hidden)
