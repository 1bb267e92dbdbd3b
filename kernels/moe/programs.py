"""Enumerator of payloads: every program a model's MoE layers can ask for, from geometry alone."""

from planfreeze.kernels.moe.rules import choose_arms, choose_scale_mode, shard
from planfreeze.kernels.moe.stages import STAGE_NAMES, list_stages
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["enumerate_programs"]


def enumerate_programs(model: Model, *, tp: int, target: Target, options: PlanOptions) -> tuple[Payload, ...]:
    """List the payloads of a model.

    Parameters
    ----------
    model : Model
        The whole model.
    tp : int
        Ranks it is divided over; all ranks run the same programs.
    target : Target
        Architecture to plan for; the rows of a tile of grouped routes depend on it.
    options : PlanOptions
        Capacities, arms, id types and the inline limit of the plan.

    Returns
    -------
    tuple of Payload
        Each once, in a fixed order: stage by stage, and inside a stage by arm, capacity and id type. Same inputs,
        same tuple: the environment is not read.

    Raises
    ------
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    UnavailableArm
        An arm is asked for that the model does not have.
    InvalidPayload
        A kernel does not cover the model: grouped routes of more experts than it counts.

    Notes
    -----
    Capacities size scratch and select backend, scale mode and tiles; they are in no payload.
    """
    sharded = shard(model, tp)
    stages = [
        stage
        for arm in choose_arms(sharded, options)
        for capacity in options.capacities_for(model)
        for id_type in options.id_types_for(model)
        for stage in list_stages(
            sharded, target.arch, capacity, choose_scale_mode(sharded, target.arch, capacity, arm, options), id_type
        )
    ]
    stages.sort(key=lambda stage: STAGE_NAMES.index(stage.name))
    return tuple(dict.fromkeys(stage.payload for stage in stages))
