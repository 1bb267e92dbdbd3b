"""The product's arms: one layer, prepared in every form of scales, over the same packed weights."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from h200.layer import ARCH
from moe_bench.inputs import Call, Inputs
from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.kernels.moe.checkpoints import LayerWeights
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import declare
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.sessions import Session
from planfreeze.target import target

FORMS: dict[Arm, dict[str, Any]] = {
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
}
NOTES: dict[str, str] = {
    "native": "scales never compressed",
    "expand": "scales decoded before every call",
    "inline": "scales read compressed; above the limit expanded before every call",
    "inline_always": "the inline arm without its limit; measured above it alone",
}
POISON = 0xFF


class ProductArm(Struct, frozen=True, kw_only=True, eq=False):
    """One arm of the product, a candidate."""

    name: str
    note: str
    layer: MoELayer

    @property
    def experts(self) -> PreparedExperts:
        """Its weights."""
        return self.layer.experts

    def bind(self, inputs: Inputs) -> Call:
        """Return the call with an output of its own; an output that it does not write stays NaN."""
        out = torch.full_like(inputs.x, torch.nan)
        return partial(self.layer.run, inputs.x, inputs.ids, inputs.factors, out)

    def run_poisoned(self, inputs: Inputs) -> torch.Tensor:
        """Run once over scratch and output that are full of NaN."""
        self.layer.workspace.fill_(POISON)
        out: torch.Tensor = self.layer.run(inputs.x, inputs.ids, inputs.factors, torch.full_like(inputs.x, torch.nan))
        return out


def bind_arms(
    session: Session, model: Model, *, tp: int, weights: LayerWeights, inline_limit: int
) -> Iterator[ProductArm]:
    """Prepare and bind every arm; the one without limit only where the store has its programs."""
    shared: dict[str, torch.Tensor] = {}
    for arm, form in FORMS.items():
        experts = prepare_experts(
            w13=weights.w13,
            w13_scales=weights.w13_scales,
            w2=weights.w2,
            w2_scales=weights.w2_scales,
            source_order=weights.source_order,
            arch=ARCH,
            **form,
        )
        # The codes are packed alike for every arm, so that all can read one copy.
        shared = shared or {"w13": experts.w13, "w2": experts.w2}
        experts = replace(experts, **shared)
        yield bind_arm(session, model, tp, arm, arm, experts, inline_limit)
    # The experts of the last form, inline.
    try:
        yield bind_arm(session, model, tp, "inline_always", "inline", experts, max(model.capacities))
    except errors.UnplannedProgram:
        return


def bind_arm(
    session: Session, model: Model, tp: int, name: str, arm: Arm, experts: PreparedExperts, inline_limit: int
) -> ProductArm:
    """Bind experts by the plan of an arm, over scratch of its own."""
    options = PlanOptions(inline_limit=inline_limit, arms=(arm,))
    plan = declare(model, tp=tp, target=target(ARCH), options=options)
    return ProductArm(name=name, note=NOTES[name], layer=bind(plan, session, experts))
