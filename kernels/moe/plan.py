"""Plans of the MoE runtime: which kernels serve how many tokens of a layer, over how much scratch.

A :class:`MoEPlan` is decided once, from the model and the options, and decides nothing at run time but which of its
capacities a call belongs to. Imports nothing heavy.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields

from planfreeze.errors import CapacityExceeded, SeveralArms, UnservedCapacity
from planfreeze.kernels.moe.geometry import GROUP, ceil_div, intermediate_bytes, layout
from planfreeze.kernels.moe.programs import MicroStages, micro_stages
from planfreeze.kernels.moe.rules import (
    Backend,
    ScaleMode,
    ShardedModel,
    choose_arms,
    choose_backend,
    choose_scale_mode,
    has_kernels,
    shard,
)
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["CapacityPlan", "MoEPlan", "ScratchSizes", "declare"]

PART_ALIGNMENT_BYTES = 256
"""Parts of a workspace start at multiples of it: what torch's allocator gives, and a multiple of a sector."""
BF16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchSizes:
    """Bytes of each scratch buffer of a call.

    Parameters
    ----------
    a8, a_scale : int
        Quantised activations, one row per token, and their scales.
    projections : int
        Gate and up columns in bf16, one row per route.
    intermediate : int
        Quantised intermediate with its scale planes, one row per route.
    route_output : int
        Weighted results in bf16, one row per route.
    """

    a8: int
    a_scale: int
    projections: int
    intermediate: int
    route_output: int

    @property
    def workspace(self) -> int:
        """Bytes of one workspace that holds every buffer."""
        return sum(align(size) for _, size in self.items())

    def items(self) -> tuple[tuple[str, int], ...]:
        """Return the name and size of each buffer, in the order of a workspace."""
        return tuple((part.name, getattr(self, part.name)) for part in fields(self))

    def places(self) -> dict[str, tuple[int, int]]:
        """Return the first byte of each buffer in a workspace, and the one behind its last."""
        found, first = {}, 0
        for name, size in self.items():
            found[name] = (first, first + size)
            first += align(size)
        return found


def align(size_bytes: int) -> int:
    return PART_ALIGNMENT_BYTES * ceil_div(size_bytes, PART_ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """How calls of up to ``capacity`` tokens are served.

    Parameters
    ----------
    capacity : int
        Largest number of live tokens.
    rows : int
        Rows of the intermediate: one per route at this capacity, whatever the live count.
    backend : Backend
        The kernels.
    scale_mode : ScaleMode
        How scales reach them.
    stages : tuple of MicroStages
        Payloads in the order of launches, one entry per type of routing ids.
    scratch : ScratchSizes
        What a call of this capacity needs.
    """

    capacity: int
    rows: int
    backend: Backend
    scale_mode: ScaleMode
    stages: tuple[MicroStages, ...]
    scratch: ScratchSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEPlan:
    """The kernels and the scratch of a model's MoE layers on one rank; made by :func:`declare`.

    Parameters
    ----------
    sharded : ShardedModel
        The model as this rank sees it.
    arch : str
        Exact architecture of programs and experts.
    arm : str
        How experts have to be prepared: ``inline`` or ``native``.
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
        return self.capacities[-1].scratch

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
            raise CapacityExceeded(tokens, self.capacities[-1].capacity)
        return self.capacities[index]

    def payloads(self) -> tuple[Payload, ...]:
        """Return every payload that calls launch, each once."""
        return tuple(
            dict.fromkeys(
                getattr(stages, stage.name)
                for planned in self.capacities
                for stages in planned.stages
                for stage in fields(stages)
            )
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
        A capacity has no kernels in this version; names those that have.

    Examples
    --------
    >>> from planfreeze.models import load_model
    >>> from planfreeze.target import target
    >>> options = PlanOptions(inline_limit=1536, capacities=(4, 8))
    >>> plan = declare(load_model("ds41"), tp=4, target=target("sm_90a"), options=options)
    >>> plan.choose(5).capacity, plan.arm
    (8, 'inline')
    """
    sharded = shard(model, tp)
    arms = choose_arms(sharded, options)
    if len(arms) > 1:
        raise SeveralArms(arms)
    capacities = options.capacities_for(model)
    check_served(sharded, capacities, arms[0], options)
    return MoEPlan(
        sharded=sharded,
        arch=target.arch,
        arm=arms[0],
        inline_limit=options.inline_limit,
        id_types=options.id_types_for(model),
        capacities=tuple(plan_capacity(sharded, target, capacity, arms[0], options) for capacity in capacities),
    )


def check_served(sharded: ShardedModel, capacities: tuple[int, ...], arm: Arm, options: PlanOptions) -> None:
    """Refuse capacities without kernels."""
    found = {
        capacity: (choose_backend(sharded, capacity), choose_scale_mode(sharded, capacity, arm, options))
        for capacity in capacities
    }
    unserved = tuple(
        f"{capacity} ({backend}, {mode})"
        for capacity, (backend, mode) in found.items()
        if not has_kernels(backend, mode)
    )
    if unserved:
        served = tuple(capacity for capacity, how in found.items() if has_kernels(*how))
        raise UnservedCapacity(sharded.model.name, sharded.tp, unserved, served)


def plan_capacity(sharded: ShardedModel, target: Target, capacity: int, arm: Arm, options: PlanOptions) -> CapacityPlan:
    mode = choose_scale_mode(sharded, capacity, arm, options)
    return CapacityPlan(
        capacity=capacity,
        rows=capacity * sharded.model.top_k,
        backend=choose_backend(sharded, capacity),
        scale_mode=mode,
        stages=tuple(
            micro_stages(sharded, id_type, csf_inline=mode is ScaleMode.INLINE)
            for id_type in options.id_types_for(sharded.model)
        ),
        scratch=size_scratch(sharded, target, capacity),
    )


def size_scratch(sharded: ShardedModel, target: Target, capacity: int) -> ScratchSizes:
    """Return the scratch of ``capacity`` tokens."""
    hidden, rows = sharded.model.hidden, capacity * sharded.model.top_k
    return ScratchSizes(
        a8=capacity * hidden,
        a_scale=capacity * (hidden // GROUP) * layout(target.arch).activation_scale_bytes,
        projections=rows * 2 * sharded.intermediate * BF16_BYTES,
        intermediate=intermediate_bytes(target.arch, rows, sharded.intermediate),
        route_output=rows * hidden * BF16_BYTES,
    )
