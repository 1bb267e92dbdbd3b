"""Plans of the MoE runtime: which kernels serve how many tokens of a layer, over how much scratch.

A :class:`MoEPlan` is decided once, from the model and the options, and decides nothing at run time but which of its
capacities a call belongs to. Imports nothing heavy.
"""

from bisect import bisect_left
from functools import reduce

from msgspec import Struct

from planfreeze import errors
from planfreeze.kernels.moe.rules import (
    Backend,
    ScaleMode,
    ShardedModel,
    choose_arms,
    choose_backend,
    choose_scale_mode,
    has_kernels,
    inline_limit,
    shard,
)
from planfreeze.kernels.moe.scratch import Counts, ScratchSizes, count_rows, size_scratch
from planfreeze.kernels.moe.stages import Stage, list_stages
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["CapacityPlan", "MoEPlan", "declare"]


class CapacityPlan(Struct, frozen=True, kw_only=True):
    """How calls of up to ``capacity`` tokens are served.

    Parameters
    ----------
    capacity : int
        Largest number of live tokens.
    counts : Counts
        Rows and tiles at this capacity, whatever the live count.
    backend : Backend
        The kernels.
    scale_mode : ScaleMode
        How scales reach them.
    stages : tuple of tuple of Stage
        Launches in their order, one entry per type of routing ids.
    scratch : ScratchSizes
        What a call of this capacity needs.
    """

    capacity: int
    counts: Counts
    backend: Backend
    scale_mode: ScaleMode
    stages: tuple[tuple[Stage, ...], ...]
    scratch: ScratchSizes


class MoEPlan(Struct, frozen=True, kw_only=True):
    """The kernels and the scratch of a model's MoE layers on one rank; made by :func:`declare`.

    Parameters
    ----------
    sharded : ShardedModel
        The model as this rank sees it.
    arch : str
        Exact architecture of programs and experts.
    arm : str
        How experts have to be prepared: ``inline``, ``expand`` or ``native``.
    inline_limit : int
        The inline limit as it was when the plan was declared.
    id_types : tuple of str
        Integer types of routing ids that are served.
    capacities : tuple of CapacityPlan
        Ascending.
    """

    sharded: ShardedModel
    arch: str
    arm: Arm
    inline_limit: int
    id_types: tuple[str, ...]
    capacities: tuple[CapacityPlan, ...]

    @property
    def is_inline(self) -> bool:
        """Whether experts keep their scales in inline storage."""
        return self.arm == "inline"

    @property
    def scratch(self) -> ScratchSizes:
        """What a call of any capacity needs."""
        return reduce(ScratchSizes.cover, (planned.scratch for planned in self.capacities))

    def choose(self, tokens: int) -> CapacityPlan:
        """Return the smallest capacity that holds a call.

        Parameters
        ----------
        tokens : int
            Live tokens, 0 or more.

        Raises
        ------
        CapacityExceeded
            There are more than the largest capacity holds; names both.
        """
        index = bisect_left(self.capacities, tokens, key=lambda planned: planned.capacity)
        if index == len(self.capacities):
            raise errors.CapacityExceeded(tokens, self.capacities[-1].capacity)
        return self.capacities[index]

    def payloads(self) -> tuple[Payload, ...]:
        """Return every payload that calls launch, each once."""
        return tuple(
            dict.fromkeys(stage.payload for planned in self.capacities for stages in planned.stages for stage in stages)
        )


def declare(model: Model, *, tp: int, target: Target, options: PlanOptions) -> MoEPlan:
    """Decide how the MoE layers of a model are served.

    Parameters
    ----------
    model : Model
        The whole model.
    tp : int
        Ranks it is divided over.
    target : Target
        Architecture of the device.
    options : PlanOptions
        Capacities, id types, the inline limit, and at most one arm. Everything is taken over: settings and options
        that change later do not reach the plan.

    Raises
    ------
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    UnavailableArm
        The arm is one the model does not have.
    SeveralArms
        More than one arm is named.
    UnservedCapacity
        A capacity has more rows or tasks than kernels count; names those that have not.

    Examples
    --------
    >>> from planfreeze.models import load_model
    >>> from planfreeze.target import target
    >>> options = PlanOptions(inline_limit=1536, capacities=(8, 64, 4096))
    >>> plan = declare(load_model("ds41"), tp=4, target=target("sm_90a"), options=options)
    >>> plan.arm, [str(plan.choose(tokens).scale_mode) for tokens in (5, 9, 65)]
    ('inline', ['inline', 'inline', 'expand'])
    """
    sharded = shard(model, tp)
    arms = choose_arms(sharded, options)
    if len(arms) > 1:
        raise errors.SeveralArms(arms)
    capacities = options.capacities_for(model)
    unserved = tuple(capacity for capacity in capacities if not has_kernels(sharded, target.arch, capacity))
    if unserved:
        raise errors.UnservedCapacity(model.name, tp, unserved, tuple(c for c in capacities if c not in unserved))
    return MoEPlan(
        sharded=sharded,
        arch=target.arch,
        arm=arms[0],
        inline_limit=inline_limit(target.arch, options),
        id_types=options.id_types_for(model),
        capacities=tuple(plan_capacity(sharded, target.arch, capacity, arms[0], options) for capacity in capacities),
    )


def plan_capacity(sharded: ShardedModel, arch: str, capacity: int, arm: Arm, options: PlanOptions) -> CapacityPlan:
    mode = choose_scale_mode(sharded, arch, capacity, arm, options)
    return CapacityPlan(
        capacity=capacity,
        counts=count_rows(sharded, arch, capacity),
        backend=choose_backend(sharded, capacity),
        scale_mode=mode,
        stages=tuple(
            list_stages(sharded, arch, capacity, mode, id_type) for id_type in options.id_types_for(sharded.model)
        ),
        scratch=size_scratch(sharded, arch, capacity, mode),
    )
