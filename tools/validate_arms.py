"""Run a layer with inline and with native scales over programs of a store, and require the same bits of both."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from msgspec import Struct
from torch import Tensor

import planfreeze
from planfreeze import errors
from planfreeze.device import current_arch
from planfreeze.kernels.moe.checkpoints import LayerWeights
from planfreeze.kernels.moe.experts import prepare_experts
from planfreeze.kernels.moe.op import ID_DTYPES, MoELayer, bind
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.models import Model, PlanOptions, WeightFormat
from planfreeze.sessions import Session
from planfreeze.settings import read_settings
from planfreeze.target import target

__all__ = ["TOKENS", "Arms", "compare_arms", "declare_arms", "open_arms"]

ArmName = Literal["inline", "native"]
# How weights have to be called for the rules to prepare them for an arm.
WEIGHT_FORMATS: dict[ArmName, WeightFormat] = {"inline": "mxfp4_csf", "native": "mxfp4"}
CAPACITY = 8
TOKENS = (1, 3, 8)
"""Live tokens of the calls that are compared."""
# Outputs and scratch before a call: NaN as bf16 and fp32, so that what a kernel leaves out is noticed.
POISON = 0xFF


class Arms(Struct, frozen=True, kw_only=True):
    """A frozen session and the plan of each arm that it holds the programs of; made by :func:`open_arms`."""

    session: Session
    plans: dict[ArmName, MoEPlan]


def declare_arms(model: Model, *, tp: int, arch: str) -> dict[ArmName, MoEPlan]:
    """Declare the plan of each arm, for one type of routing ids.

    Raises
    ------
    UnavailableArm, UnservedCapacity
        The model has no inline arm, or no direct-route kernels over ``tp`` ranks.
    """
    limit = read_settings().csf_inline_max_tokens

    def declare_arm(arm: ArmName) -> MoEPlan:
        options = PlanOptions(inline_limit=limit, capacities=(CAPACITY,), arms=(arm,), id_types=model.id_types[:1])
        return declare(model, tp=tp, target=target(arch), options=options)

    return {arm: declare_arm(arm) for arm in WEIGHT_FORMATS}


@contextlib.contextmanager
def open_arms(model: Model, *, tp: int, store: Path, is_trusted: bool | None, device: torch.device) -> Iterator[Arms]:
    """Freeze the plan of a model for the device, with both arms, and close it at the end.

    Raises
    ------
    DeviceMissing
        There is no device with kernels.
    UnavailableArm, UnservedCapacity
        As :func:`declare_arms`.
    StoreMissing, UntrustedStore, PlanMissing, MissingPrograms, DamagedPrograms
        The store does not have the plan, or not whole.
    """
    arch = current_arch()
    if arch is None:
        raise errors.DeviceMissing("the driver sees none")
    plans = declare_arms(model, tp=tp, arch=arch)
    name = f"{model.name}-tp{tp}-{arch}"
    with planfreeze.session(name, store=store, device=device.index, is_trusted=is_trusted) as session:
        yield Arms(session=session.freeze(), plans=plans)


def compare_arms(weights: LayerWeights, arms: Arms) -> None:
    """Run random tokens through a layer prepared for each arm, until every expert had a route.

    Parameters
    ----------
    weights : LayerWeights
        The layer, on the session's device.
    arms : Arms
        The programs.

    Raises
    ------
    ArmsDiffer
        An output differs in a bit; the error names the first.
    OutputNotFinite
        An output is a NaN or an infinity, or was not written.
    UnplannedProgram
        The plan was built without one of the arms.
    """
    layers = {arm: bind_arm(weights, arms, arm) for arm in arms.plans}
    for x, ids, factors in calls(arms.plans["native"], weights.w13.device):
        outs = {arm: run_layer(layer, x, ids, factors) for arm, layer in layers.items()}
        for arm, out in outs.items():
            if not bool(out.isfinite().all()):
                row, column = (~out.isfinite()).nonzero()[0].tolist()
                raise errors.OutputNotFinite(arm, len(x), row, column, float(out[row, column]))
        differing = outs["inline"].view(torch.int16) != outs["native"].view(torch.int16)
        if bool(differing.any()):
            row, column = differing.nonzero()[0].tolist()
            raise errors.ArmsDiffer(
                len(x), row, column, *(float(outs[arm][row, column]) for arm in ("inline", "native"))
            )


def bind_arm(weights: LayerWeights, arms: Arms, arm: ArmName) -> MoELayer:
    """Prepare a layer's experts for an arm and bind them over scratch of their own."""
    plan = arms.plans[arm]
    experts = prepare_experts(
        w13=weights.w13,
        w13_scales=weights.w13_scales,
        w2=weights.w2,
        w2_scales=weights.w2_scales,
        arch=plan.arch,
        weight_format=WEIGHT_FORMATS[arm],
        is_csf_inline=True,
        source_order=weights.source_order,
    )
    return bind(plan, arms.session, experts)


def calls(plan: MoEPlan, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield activations, routes and factors of calls of every length, again until every expert had a route."""
    model, generator = plan.sharded.model, torch.Generator().manual_seed(0)
    order, routed = torch.randperm(model.experts, generator=generator), 0
    while routed < model.experts:
        for tokens in TOKENS:
            places = torch.arange(routed, routed + tokens * model.top_k) % model.experts
            routed += len(places)
            ids = order[places].view(tokens, model.top_k).to(ID_DTYPES[plan.id_types[0]])
            x = 0.1 * torch.randn(tokens, model.hidden, generator=generator)
            factors = torch.randn(ids.shape, generator=generator).softmax(-1)
            yield x.bfloat16().to(device), ids.to(device), factors.to(device)


def run_layer(layer: MoELayer, x: Tensor, ids: Tensor, factors: Tensor) -> Tensor:
    """Run a layer over poisoned scratch into a poisoned output."""
    layer.workspace.fill_(POISON)
    return layer.run(x, ids, factors, torch.full_like(x, torch.nan))
