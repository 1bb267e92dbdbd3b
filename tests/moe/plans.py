"""Plans of two models."""

from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.models import Arm, IdType, Model, PlanOptions, load_model
from planfreeze.target import target

DS41 = load_model("ds41")
KIMI = load_model("kimi_k3")


def plan(
    model: Model = DS41,
    *,
    tp: int = 4,
    arch: str = "sm_90a",
    capacities: tuple[int, ...] | None = (8,),
    arms: tuple[Arm, ...] | None = None,
    id_types: tuple[IdType, ...] | None = None,
    limit: int | None = 1536,
    is_on: bool = True,
) -> MoEPlan:
    options = PlanOptions(inline_limit=limit, is_csf_inline=is_on, capacities=capacities, arms=arms, id_types=id_types)
    return declare(model, tp=tp, target=target(arch), options=options)
