"""Layers on a device without a GPU: real programs of a frozen session, run by their references."""

import dataclasses
import gc
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import (
    CapacityExceeded,
    InvalidArgument,
    LayerReleased,
    MissingPrograms,
    SessionState,
    UnplannedProgram,
    UnsuitableExperts,
    WrongDevice,
)
from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.op import MoELayer, bind, moe_layer
from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.kernels.scales.native import native_plane
from planfreeze.models import Arm, Model, PlanOptions
from planfreeze.plans import make_plan
from planfreeze.process_session import session
from planfreeze.sessions import Session
from planfreeze.target import target

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 64, 4, 2
MODEL = Model(
    name="tiny",
    hidden=HIDDEN,
    intermediate=INTERMEDIATE,
    experts=EXPERTS,
    top_k=TOP_K,
    weight_format="mxfp4_csf",
    activation_limit=1.5,
    capacities=(4, 8, 20, 40, 200),
)
# Whole row tiles: routes are grouped at every capacity, and compressed scales are decoded before every call.
WHOLE = dataclasses.replace(MODEL, name="whole", intermediate=128)
LIMIT = 20
"""Two capacities are above it, of different tiles."""
ARMS: tuple[Arm, ...] = ("inline", "expand", "native")
WHOLE_ARMS: tuple[Arm, ...] = ("expand", "native")
ID_DTYPES = (torch.int32, torch.int64)
POISON = 0xFF
ARM_OPTIONS: dict[Arm, dict[str, Any]] = {
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
}


def load_reference_device() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_device", Path(__file__).with_name("reference_device.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


device = load_reference_device()


def plan(
    arm: Arm = "inline", *, arch: str = "sm_90a", model: Model = MODEL, limit: int = LIMIT, **options: Any
) -> MoEPlan:
    return declare(model, tp=1, target=target(arch), options=PlanOptions(inline_limit=limit, arms=(arm,), **options))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, toolchains: Path) -> Path:
    """A store of both models' programs for all arms."""
    path = tmp_path_factory.mktemp("layers") / "store"
    options = PlanOptions(inline_limit=LIMIT, arms=("inline", "expand", "native"))
    made = [make_plan(model, tp=1, target=target("sm_90a"), options=options) for model in (MODEL, WHOLE)]
    report = build_plans(made, Store.open(path, writable=True), jobs=2, toolchains=toolchains)
    assert report.count("failed") == 0, [outcome.reason for outcome in report.outcomes]
    return path


@pytest.fixture
def frozen(store: Path) -> Iterator[Session]:
    with session("tiny-tp1-sm_90a", "whole-tp1-sm_90a", store=store, is_trusted=True) as made:
        device.freeze(made)
        yield made


@dataclasses.dataclass(frozen=True)
class Weights:
    """Logical weights, up rows first."""

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor

    def prepare(self, arm: Arm, arch: str = "sm_90a", **changes: Any) -> PreparedExperts:
        """Prepare them for an arm."""
        tensors = dataclasses.asdict(self)
        return prepare_experts(**tensors, arch=arch, source_order="up_gate", **ARM_OPTIONS[arm], **changes)


def make_weights(columns: int) -> Weights:
    """Random weights whose scales have exceptions and raw tiles."""
    generator = torch.Generator().manual_seed(3)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.uint8)

    def scales(rows: int, width: int) -> Tensor:
        made = draw(118, 121, EXPERTS, rows, 1) + draw(0, 1, EXPERTS, rows, width)
        made.view(-1)[::97] = draw(116, 123, len(made.view(-1)[::97]))
        made[:, 4:12] = draw(114, 124, EXPERTS, 8, width)
        return made

    return Weights(
        w13=draw(0, 255, EXPERTS, 2 * columns, HIDDEN // 2),
        w13_scales=scales(2 * columns, HIDDEN // 32),
        w2=draw(0, 255, EXPERTS, HIDDEN, columns // 2),
        w2_scales=scales(HIDDEN, columns // 32),
    )


@pytest.fixture(scope="module")
def weights() -> Weights:
    return make_weights(INTERMEDIATE)


@pytest.fixture(scope="module")
def whole_weights() -> Weights:
    return make_weights(WHOLE.intermediate)


@pytest.fixture
def make_layer(frozen: Session, weights: Weights) -> Callable[..., MoELayer]:
    def make(arm: Arm = "inline", **options: Any) -> MoELayer:
        return bind(plan(arm), frozen, weights.prepare(arm), **options)

    return make


def inputs(tokens: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, routes and weights; one route of the last token goes to no expert."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].to(dtype)
    ids[-1:, 0] = EXPERTS
    return x, ids.contiguous(), torch.randn(tokens, TOP_K, generator=generator).softmax(-1)


def expected(
    weights: Weights,
    x: Tensor,
    ids: Tensor,
    factors: Tensor,
    experts: PreparedExperts,
    *,
    is_grouped: bool | None = None,
) -> Tensor:
    """The reference of the backend: grouped above 8 tokens unless said otherwise."""
    is_grouped = len(x) > 8 if is_grouped is None else is_grouped
    compute = reference_grouped.grouped_layer if is_grouped else reference.micro_layer
    return compute(
        x,
        weights.w13,
        weights.w13_scales,
        weights.w2,
        weights.w2_scales,
        ids,
        factors,
        alpha1=experts.alpha1,
        alpha2=experts.alpha2,
        limit=MODEL.activation_limit,
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def launches(layer: MoELayer) -> list[tuple[str, dict[str, int]]]:
    """What a layer's driver launched so far."""
    (_, program), *_ = next(iter(layer.programs.values()))
    return program.device.driver.launches  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9, 20, 21, 40, 41, 200])
def test_all_arms_compute_the_reference_over_poisoned_scratch(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int, dtype: torch.dtype
) -> None:
    x, ids, factors = inputs(tokens, dtype)
    for arm in ARMS:
        layer = make_layer(arm)
        layer.workspace.fill_(POISON)
        out = torch.full((tokens, HIDDEN), torch.nan, dtype=torch.bfloat16)
        assert layer.run(x, ids, factors, out) is out
        assert out.any()
        assert same_bits(out, expected(weights, x, ids, factors, layer.experts))


@pytest.mark.parametrize("tokens", [1, 8, 17, 64])
def test_whole_row_tiles_are_grouped_at_every_capacity(frozen: Session, whole_weights: Weights, tokens: int) -> None:
    x, ids, factors = inputs(tokens)
    for arm in WHOLE_ARMS:
        layer = bind(plan(arm, model=WHOLE), frozen, whole_weights.prepare(arm))
        layer.workspace.fill_(POISON)
        found = layer.run(x, ids, factors)
        assert same_bits(found, expected(whole_weights, x, ids, factors, layer.experts, is_grouped=True))
        assert "split_fc1" in [name for name, _ in launches(layer)]


@pytest.mark.parametrize("tokens", [8, 20, 40])
def test_factors_of_experts_reach_the_projection_they_belong_to(frozen: Session, weights: Weights, tokens: int) -> None:
    experts = weights.prepare("inline")
    changed = dataclasses.replace(
        experts, alpha1=torch.tensor([0.5, 1.0, 2.0, 3.0]), alpha2=torch.tensor([1.5, 0.25, 1.0, -1.0])
    )
    layer = bind(plan(), frozen, changed)
    x, ids, factors = inputs(tokens)
    assert same_bits(layer.run(x, ids, factors), expected(weights, x, ids, factors, changed))
    assert not same_bits(layer.run(x, ids, factors), expected(weights, x, ids, factors, experts))


MICRO = ["micro_fc1", "micro_act", "micro_fc2"]
GROUPED = ["route_plan", "split_fc1", "split_fc2"]
DECODE = ["csf_presence", "csf_decode", "csf_decode"]


@pytest.mark.parametrize(
    ("arm", "tokens", "names"),
    [
        ("inline", 3, MICRO),
        ("inline", 9, GROUPED),
        ("inline", 21, ["expand", "expand", *GROUPED]),
        ("expand", 3, [*DECODE, *MICRO]),
        ("expand", 9, [*DECODE, *GROUPED]),
        ("expand", 41, [*DECODE, *GROUPED]),
        ("native", 3, MICRO),
        ("native", 41, GROUPED),
    ],
)
def test_the_launches_of_a_call_are_those_of_its_arm_and_its_count(
    make_layer: Callable[..., MoELayer], arm: Arm, tokens: int, names: list[str]
) -> None:
    layer = make_layer(arm)
    layer.run(*inputs(tokens))
    assert [name for name, _ in launches(layer)] == ["act_quant", *names, "topk_sum"]


def test_kernels_get_live_counts_and_the_rows_of_the_capacity(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    layer.run(*inputs(3))
    found = launches(layer)
    assert [words.get("tokens", words.get("pairs")) for _, words in found] == [3, 6, 6, 6, 3]
    assert [found[i][1]["rows"] for i in (2, 3)] == [8, 8]
    layer.run(*inputs(5))
    assert [found[i][1]["rows"] for i in (7, 8)] == [16, 16]
    layer.run(*inputs(9))
    assert [words.get("tokens", words.get("pairs")) for _, words in found[10:]] == [9, 18, 9, 18, 9]
    # 40 routes of 4 experts take at most 5 + 3 tiles of 8 rows.
    assert [(words["rows"], words["m_tiles"]) for _, words in found[11:14]] == [(64, 8)] * 3


SCALARS = {"tokens", "pairs", "experts", "rows", "m_tiles", "hidden"}


@pytest.mark.parametrize("tokens", [1, 8, 9, 20])
def test_an_inline_call_points_to_its_inputs_scratch_weights_and_compressed_scales_alone(
    make_layer: Callable[..., MoELayer], tokens: int
) -> None:
    layer = make_layer()
    x, ids, factors = inputs(tokens)
    out = torch.empty_like(x)
    layer.run(x, ids, factors, out)
    experts = layer.experts
    used = [part for name, part in vars_of(layer.scratch).items() if name not in ("w13_plane", "w2_plane", "presence")]
    owners = [x, ids, factors, out, *used, experts.w13, experts.w2, experts.alpha1, experts.alpha2]
    owners += [experts.w13_scales.storage, experts.w2_scales.storage]
    spans = [range(owner.data_ptr(), owner.data_ptr() + owner.nbytes) for owner in owners]
    for name, words in launches(layer):
        for argument, address in words.items():
            assert argument in SCALARS or any(address in span for span in spans), (name, argument)


def vars_of(scratch: Any) -> dict[str, Tensor]:
    return {part.name: getattr(scratch, part.name) for part in dataclasses.fields(scratch)}


def native_planes(layer: MoELayer, weights: Weights) -> tuple[Tensor, Tensor]:
    """The native planes that a layer's compressed scales stand for."""
    experts = layer.experts
    return (
        native_plane(experts.w13_scales.geometry, weights.w13_scales).flatten(),
        native_plane(experts.w2_scales.geometry, weights.w2_scales).flatten(),
    )


@pytest.mark.parametrize("tokens", [1, 8, 9, 20])
def test_inline_calls_leave_the_planes_of_expanding_capacities_alone(
    make_layer: Callable[..., MoELayer], tokens: int
) -> None:
    layer = make_layer()
    assert len(layer.scratch.w13_plane) == EXPERTS * 128 * 8
    layer.workspace.fill_(POISON)
    layer.run(*inputs(tokens))
    assert (layer.scratch.w13_plane == POISON).all()
    assert (layer.scratch.w2_plane == POISON).all()


@pytest.mark.parametrize("tokens", [21, 41])
def test_above_the_limit_a_call_expands_all_experts_into_the_shared_planes(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int
) -> None:
    layer = make_layer()
    for _ in range(2):
        layer.workspace.fill_(POISON)
        layer.run(*inputs(tokens))
        w13, w2 = native_planes(layer, weights)
        assert torch.equal(layer.scratch.w13_plane, w13)
        assert torch.equal(layer.scratch.w2_plane, w2)


@pytest.mark.parametrize("tokens", [8, 20])
def test_the_expansion_arm_decodes_the_experts_of_a_call_alone(
    make_layer: Callable[..., MoELayer], weights: Weights, tokens: int
) -> None:
    layer = make_layer("expand")
    x, ids, factors = inputs(tokens)
    ids.fill_(-1)
    ids[0] = torch.tensor([2, 1])
    layer.workspace.fill_(POISON)
    found = layer.run(x, ids, factors)
    assert same_bits(found, expected(weights, x, ids, factors, layer.experts))
    assert layer.scratch.presence.tolist() == [0, 1, 1, 0]
    for plane, native in zip(
        (layer.scratch.w13_plane, layer.scratch.w2_plane), native_planes(layer, weights), strict=True
    ):
        by_expert, wanted = plane.view(EXPERTS, -1), native.view(EXPERTS, -1)
        assert torch.equal(by_expert[1:3], wanted[1:3])
        assert (by_expert[::3] == POISON).all()


@pytest.mark.parametrize("tokens", [8, 20, 40])
def test_routes_to_no_expert_contribute_zero(make_layer: Callable[..., MoELayer], tokens: int) -> None:
    for arm in ARMS:
        layer = make_layer(arm)
        for invalid in (-1, EXPERTS, 2**40):
            x, ids, factors = inputs(tokens, torch.int64)
            layer.workspace.fill_(POISON)
            out = torch.full_like(x, torch.nan)
            assert not layer.run(x, ids.fill_(invalid), factors, out).any()


def test_all_routes_may_go_to_one_expert(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    for arm in ARMS:
        layer = make_layer(arm)
        for tokens in (20, 40, 200):
            x, ids, factors = inputs(tokens)
            layer.workspace.fill_(POISON)
            found = layer.run(x, ids.fill_(3), factors)
            assert same_bits(found, expected(weights, x, ids, factors, layer.experts))


def test_a_smaller_capacity_computes_the_same_as_a_larger_one_of_its_backend(frozen: Session, weights: Weights) -> None:
    experts = weights.prepare("inline")
    small, large = plan(), plan(capacities=(200,))
    assert small.choose(12).counts != large.choose(12).counts
    values = inputs(12)
    assert same_bits(bind(small, frozen, experts).run(*values), bind(large, frozen, experts).run(*values))


def test_a_call_without_tokens_launches_nothing(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    out = layer.run(*inputs(0))
    assert (out.shape, out.dtype, launches(layer)) == ((0, HIDDEN), torch.bfloat16, [])


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
    other = dataclasses.replace(MODEL, **{field: sizes[field]})
    with pytest.raises(UnsuitableExperts, match=f"{field} = {sizes[field]}, the experts"):
        bind(plan(model=other), frozen, weights.prepare("inline"))


def test_a_device_of_another_architecture_than_the_plan_is_refused(frozen: Session, weights: Weights) -> None:
    with pytest.raises(WrongDevice, match="reference device"):
        bind(plan(arch="sm_120a"), frozen, weights.prepare("inline", arch="sm_120a"))


def test_a_program_that_no_prepared_plan_holds_is_refused_with_the_nearest(frozen: Session, weights: Weights) -> None:
    other = dataclasses.replace(MODEL, activation_limit=2.5)
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
    moved = dataclasses.replace(experts, w13=experts.w13.to("meta"))
    with pytest.raises(InvalidArgument, match="argument w13 is on meta"):
        bind(plan("native"), frozen, moved)


@pytest.mark.parametrize("change", [{"w2": lambda w2: w2[:2]}, {"w2": lambda w2: w2.to("meta")}])
def test_every_tensor_of_the_experts_is_checked_when_they_are_bound(
    frozen: Session, weights: Weights, change: dict[str, Callable[[Tensor], Tensor]]
) -> None:
    experts = weights.prepare("native")
    ((name, spoil),) = change.items()
    with pytest.raises(InvalidArgument, match="argument w2"):
        bind(plan("native"), frozen, dataclasses.replace(experts, **{name: spoil(getattr(experts, name))}))


def test_layers_share_a_workspace(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    size = max(plan(arm).scratch.workspace for arm in ARMS)
    workspace = torch.full((size + 64,), POISON, dtype=torch.uint8)
    layers = [make_layer(arm, workspace=workspace) for arm in ARMS]
    for tokens in (8, 40, 1, 20, 5, 9):
        x, ids, factors = inputs(tokens)
        for layer in layers:
            found = layer.run(x, ids, factors)
            assert same_bits(found, expected(weights, x, ids, factors, layer.experts))
    assert (workspace[size:] == POISON).all()
    assert {layer.scratch.a8.data_ptr() for layer in layers} == {workspace.data_ptr()}


def test_inference_mode_changes_nothing(make_layer: Callable[..., MoELayer], weights: Weights) -> None:
    x, ids, factors = inputs(3)
    with torch.inference_mode():
        layer = make_layer()
        out = layer.run(x, ids, factors)
    assert same_bits(out, expected(weights, x, ids, factors, layer.experts))
    assert same_bits(make_layer().run(x, ids, factors), out)


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


# --- the operator ---


@contextmanager
def unguarded(frozen: Session) -> Iterator[None]:
    """What torch compiles, it compiles before the freeze: for as long the roads are open again."""
    guard = frozen._guard
    assert guard is not None
    guard.release()
    yield
    guard.arm()


def test_the_operator_returns_a_new_tensor_of_the_layer(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(5)
    found = moe_layer(x, ids, factors, layer.handle)
    assert same_bits(found, layer.run(x, ids, factors))
    assert same_bits(torch.ops.planfreeze.moe_layer(x, ids, factors, layer.handle), found)


@pytest.mark.parametrize("arm", ARMS)
def test_torch_finds_nothing_wrong_with_the_operator(make_layer: Callable[..., MoELayer], arm: Arm) -> None:
    layer = make_layer(arm)
    layer.workspace.fill_(POISON)
    passed = torch.library.opcheck(moe_layer, (*inputs(3), layer.handle))
    assert set(passed.values()) == {"SUCCESS"}


def test_the_operator_is_traced_on_tensors_without_memory() -> None:
    x, ids, factors = (value.to("meta") for value in inputs(7))
    found = moe_layer(x, ids, factors, torch.tensor(123))
    assert (found.shape, found.dtype, found.device.type) == (x.shape, x.dtype, "meta")


def test_a_whole_graph_of_layers_is_compiled_once_for_all_handles_and_token_counts(
    frozen: Session, make_layer: Callable[..., MoELayer]
) -> None:
    layers = [make_layer(arm) for arm in (*ARMS, *ARMS)]
    counts = (3, 8, 5, 4, 21, 9)
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=keep, dynamic=True)
    def call(x: Tensor, ids: Tensor, factors: Tensor, handle: Tensor) -> Tensor:
        return moe_layer(x * 2, ids, factors, handle) + 1

    def check() -> None:
        for layer, tokens in zip(layers, counts, strict=True):
            x, ids, factors = inputs(tokens)
            assert same_bits(call(x, ids, factors, layer.handle), layer.run(x * 2, ids, factors) + 1)
        assert len(graphs) == 1

    torch._dynamo.reset()
    with unguarded(frozen):
        check()
    check()
    assert not any(frozen.attempts.values())


def test_the_operator_traces_under_inference_mode_with_the_eager_backend(
    frozen: Session, make_layer: Callable[..., MoELayer]
) -> None:
    layer = make_layer()
    x, ids, factors = inputs(3)
    torch._dynamo.reset()
    with unguarded(frozen), torch.inference_mode():
        call = torch.compile(lambda *values: moe_layer(*values, layer.handle), fullgraph=True, backend="eager")
        assert same_bits(call(x, ids, factors), layer.run(x, ids, factors))


def test_layers_as_modules_compile_to_one_graph(frozen: Session, make_layer: Callable[..., MoELayer]) -> None:
    class Block(torch.nn.Module):
        def __init__(self, layer: MoELayer) -> None:
            super().__init__()
            self.handle = layer.handle

        def forward(self, x: Tensor, ids: Tensor, factors: Tensor) -> Tensor:
            return moe_layer(x, ids, factors, self.handle)

    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    layers = [make_layer() for _ in range(12)]
    values = inputs(3)
    with unguarded(frozen):
        for layer in layers:
            block = Block(layer)
            block.compile(fullgraph=True, backend=keep)
            assert same_bits(block(*values), layer.run(*values))
    assert len(graphs) <= 2


def test_a_copy_of_a_layer_has_a_handle_of_its_own(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    copied = dataclasses.replace(layer)
    assert copied.handle != layer.handle
    del copied
    gc.collect()
    moe_layer(*inputs(1), layer.handle)


def test_tensors_in_the_workspace_are_refused(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(2)
    inside = layer.scratch.route_output[: x.numel()].view(x.shape)
    with pytest.raises(InvalidArgument, match="out lies in the workspace"):
        layer.run(x, ids, factors, out=inside)


def test_the_result_may_replace_the_input(make_layer: Callable[..., MoELayer]) -> None:
    layer = make_layer()
    x, ids, factors = inputs(4)
    wanted = layer.run(x, ids, factors)
    assert same_bits(layer.run(x, ids, factors, out=x), wanted)


def test_a_handle_lives_as_long_as_its_layer(make_layer: Callable[..., MoELayer]) -> None:
    layer, other = make_layer(), make_layer()
    handle = layer.handle
    assert handle != other.handle
    del layer
    gc.collect()
    with pytest.raises(LayerReleased, match=f"handle {int(handle)}"):
        moe_layer(*inputs(1), handle)
    moe_layer(*inputs(1), other.handle)


def test_serving_a_layer_imports_no_compiler() -> None:
    program = "import sys, planfreeze.kernels.moe.op; print(sorted({'triton', 'cutlass'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
