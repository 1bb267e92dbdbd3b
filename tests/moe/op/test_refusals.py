"""Calls, experts, plans and workspaces that a layer refuses, before anything is launched."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import (
    CapacityExceeded,
    InvalidArgument,
    MissingPrograms,
    SessionState,
    UnplannedProgram,
    UnsuitableExperts,
    WrongDevice,
)
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.models import Arm, PlanOptions
from planfreeze.plans import make_plan
from planfreeze.process_session import session
from planfreeze.sessions import Session
from planfreeze.target import target

from .. import reference_device as device
from .conftest import LIMIT, MODEL, Weights, inputs, launches, plan


def test_more_tokens_than_planned_are_refused_before_anything_is_launched(
    make_layer: Callable[..., MoELayer],
) -> None:
    layer = make_layer()
    with pytest.raises(CapacityExceeded, match=r"201 live tokens.*is 200"):
        layer.run(*inputs(201))
    assert launches(layer) == []


def shifted(value: Tensor, by: int) -> Tensor:
    """A copy that starts ``by`` elements into its memory."""
    return torch.cat((value.flatten()[:by], value.flatten()))[by:].view(value.shape)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("x", lambda x: x.half(), "dtype torch.float16"),
        ("x", lambda x: x.to("meta"), "is on meta"),
        ("x", lambda x: x.T.contiguous().T, "not contiguous"),
        ("x", lambda x: shifted(x, 1), "aligned to 16"),
        ("x", lambda x: x[:, :128], r"shape \(4, 128\), not a tensor of shape \(tokens, 256\)"),
        ("x", lambda x: x[None], "shape"),
        ("x", lambda x: None, "NoneType"),
        ("topk_ids", lambda ids: ids.short(), "dtype torch.int16.*int32, int64"),
        ("topk_ids", lambda ids: ids[:3], r"shape \(3, 2\), not a tensor of shape \(4, 2\)"),
        ("topk_ids", lambda ids: ids.flatten(), "shape"),
        ("topk_ids", lambda ids: ids.T.contiguous().T, "not contiguous"),
        ("topk_ids", lambda ids: ids.to("meta"), "is on meta"),
        ("topk_ids", lambda ids: ids.tolist(), "list"),
        ("topk_weights", lambda factors: factors.double(), "dtype torch.float64"),
        ("topk_weights", lambda factors: factors[:, :1], "shape"),
        ("topk_weights", lambda factors: factors.to("meta"), "is on meta"),
        ("topk_weights", lambda factors: factors.T.contiguous().T, "not contiguous"),
        ("out", lambda out: out.float(), "dtype torch.float32"),
        ("out", lambda out: out[:3], "shape"),
        ("out", lambda out: out.to("meta"), "is on meta"),
        ("out", lambda out: shifted(out, 4), "aligned to 16"),
        ("out", lambda out: out.T.contiguous().T, "not contiguous"),
        ("out", lambda out: 0, "int"),
    ],
)
def test_a_wrong_tensor_is_named_and_nothing_is_launched(
    make_layer: Callable[..., MoELayer], name: str, change: Callable[[Tensor], Any], reason: str
) -> None:
    layer = make_layer()
    x, ids, factors = inputs(4)
    values = {"x": x, "topk_ids": ids, "topk_weights": factors, "out": torch.empty_like(x)}
    values[name] = change(values[name])
    with pytest.raises(InvalidArgument, match=f"argument {name} .*{reason}"):
        layer.run(**values)
    assert launches(layer) == []


def test_ids_of_a_type_that_was_not_planned_are_refused(frozen: Session, weights: Weights) -> None:
    layer = bind(plan(id_types=("int64",)), frozen, weights.prepare("inline"))
    layer.run(*inputs(2, torch.int64))
    with pytest.raises(InvalidArgument, match=r"topk_ids has dtype torch\.int32, and the plan serves int64"):
        layer.run(*inputs(2, torch.int32))


def test_a_layer_needs_a_frozen_session(store: Path, weights: Weights) -> None:
    with session("tiny-tp1-sm_90a", store=store, is_trusted=True) as made:
        with pytest.raises(SessionState, match="not frozen"):
            bind(plan(), made, weights.prepare("inline"))
        device.freeze(made)
        layer = bind(plan(), made, weights.prepare("inline"))
    with pytest.raises(SessionState, match="closed"):
        layer.run(*inputs(1))
    with pytest.raises(SessionState):
        bind(plan(), made, weights.prepare("inline"))


@pytest.mark.parametrize(
    ("planned", "prepared"),
    [("inline", "native"), ("inline", "expand"), ("native", "inline"), ("expand", "inline")],
)
def test_experts_of_another_arm_are_refused(frozen: Session, weights: Weights, planned: Arm, prepared: Arm) -> None:
    with pytest.raises(UnsuitableExperts, match=f"arm = {planned}.*arm = {prepared}"):
        bind(plan(planned), frozen, weights.prepare(prepared))


def test_experts_of_another_architecture_are_refused(frozen: Session, weights: Weights) -> None:
    with pytest.raises(UnsuitableExperts, match=r"arch = sm_90a.*arch = sm_120a"):
        bind(plan(), frozen, weights.prepare("inline", arch="sm_120a"))


@pytest.mark.parametrize("field", ["hidden", "intermediate", "experts"])
def test_experts_of_another_geometry_are_refused(frozen: Session, weights: Weights, field: str) -> None:
    sizes = {"hidden": 512, "intermediate": 192, "experts": 5}
    other = replace(MODEL, **{field: sizes[field]})
    with pytest.raises(UnsuitableExperts, match=f"{field} = {sizes[field]}, the experts"):
        bind(plan(model=other), frozen, weights.prepare("inline"))


def test_a_device_of_another_architecture_than_the_plan_is_refused(frozen: Session, weights: Weights) -> None:
    with pytest.raises(WrongDevice, match="reference device"):
        bind(plan(arch="sm_120a"), frozen, weights.prepare("inline", arch="sm_120a"))


def test_a_program_that_no_prepared_plan_holds_is_refused_with_the_nearest(frozen: Session, weights: Weights) -> None:
    other = replace(MODEL, activation_limit=2.5)
    with pytest.raises(UnplannedProgram, match=r"micro_act.*2\.5"):
        bind(plan(model=other), frozen, weights.prepare("inline"))


@pytest.mark.parametrize(
    ("workspace", "reason"),
    [
        (lambda size: torch.empty(size - 1, dtype=torch.uint8), r"bytes, the plan needs \d+"),
        (lambda size: torch.empty(size, dtype=torch.int8), "int8"),
        (lambda size: torch.empty(size, dtype=torch.uint8, device="meta"), "is on meta"),
        (lambda size: torch.empty(2 * size, dtype=torch.uint8)[::2], "not contiguous"),
        (lambda size: torch.empty(size + 8, dtype=torch.uint8)[8:], "aligned to 16"),
        (lambda size: torch.empty(2, size, dtype=torch.uint8), "flat"),
        (lambda size: bytearray(size), "bytearray"),
    ],
)
def test_a_workspace_that_does_not_fit_is_refused(
    make_layer: Callable[..., MoELayer], workspace: Callable[[int], Any], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"workspace .*{reason}"):
        make_layer(workspace=workspace(plan().scratch.workspace))


def test_experts_elsewhere_than_the_programs_are_refused(frozen: Session, weights: Weights) -> None:
    experts = weights.prepare("native")
    moved = replace(experts, w13=experts.w13.to("meta"))
    with pytest.raises(InvalidArgument, match="argument w13 is on meta"):
        bind(plan("native"), frozen, moved)


@pytest.mark.parametrize("change", [{"w2": lambda w2: w2[:2]}, {"w2": lambda w2: w2.to("meta")}])
def test_every_tensor_of_the_experts_is_checked_when_they_are_bound(
    frozen: Session, weights: Weights, change: dict[str, Callable[[Tensor], Tensor]]
) -> None:
    experts = weights.prepare("native")
    ((name, spoil),) = change.items()
    with pytest.raises(InvalidArgument, match="argument w2"):
        bind(plan("native"), frozen, replace(experts, **{name: spoil(getattr(experts, name))}))


def test_a_record_that_is_missing_keeps_the_session_from_freezing_and_is_named(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    with session("tiny-tp1-sm_90a", store=store, is_trusted=True) as made:
        (frozen_plan,) = made.plans
    for entry in frozen_plan.entries:
        (record,) = (tmp_path / "store/records").glob(f"*/{entry.key}*")
        kept = record.read_bytes()
        record.unlink()
        made = session("tiny-tp1-sm_90a", store=tmp_path / "store", is_trusted=True)
        family = entry.family.partition(":")[2]
        with pytest.raises(MissingPrograms, match=rf"1 of {len(frozen_plan.entries)} programs[\s\S]*{family}\("):
            device.freeze(made)
        made.close()
        record.write_bytes(kept)


@pytest.mark.parametrize(
    ("arm", "capacity", "families"),
    [("inline", 40, "expand"), ("inline", 20, "split_fc1"), ("expand", 4, "csf_presence|csf_decode")],
)
def test_a_layer_whose_plan_lacks_the_programs_of_a_capacity_is_not_bound(
    store: Path, weights: Weights, toolchains: Path, tmp_path: Path, arm: Arm, capacity: int, families: str
) -> None:
    shutil.copytree(store, tmp_path / "store")
    options = PlanOptions(inline_limit=LIMIT, arms=("native",))
    less = make_plan(MODEL, tp=1, target=target("sm_90a"), options=options)
    build_plans([less], Store.open(tmp_path / "store", writable=True), jobs=1, toolchains=toolchains)
    with session("tiny-tp1-sm_90a", store=tmp_path / "store", is_trusted=True) as made:
        device.freeze(made)
        with pytest.raises(UnplannedProgram, match=families):
            bind(plan(arm, capacities=(capacity,)), made, weights.prepare(arm))


def test_tensors_in_the_workspace_are_refused(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(2)
    inside = layer.scratch.route_output[: x.numel()].view(x.shape)
    with pytest.raises(InvalidArgument, match="out lies in the workspace"):
        layer.run(x, ids, factors, out=inside)
