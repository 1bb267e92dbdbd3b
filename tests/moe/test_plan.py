"""Runtime plans: capacities, scratch, payloads, and what they refuse."""

import dataclasses
import subprocess
import sys

import pytest

from planfreeze.errors import CapacityExceeded, SeveralArms, UnavailableArm, UnservedCapacity
from planfreeze.kernels.moe.plan import MoEPlan, ScratchSizes, declare
from planfreeze.kernels.moe.programs import enumerate_programs, micro_stages
from planfreeze.kernels.moe.rules import Backend, ScaleMode, shard
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
    limit: int = 1536,
    is_on: bool = True,
) -> MoEPlan:
    options = PlanOptions(inline_limit=limit, is_csf_inline=is_on, capacities=capacities, arms=arms, id_types=id_types)
    return declare(model, tp=tp, target=target(arch), options=options)


def test_compressed_experts_are_served_inline_and_the_native_arm_on_request() -> None:
    (inline,), (native,) = plan().capacities, plan(arms=("native",)).capacities
    assert (inline.backend, inline.scale_mode, plan().is_inline) == (Backend.MICRO, ScaleMode.INLINE, True)
    assert (native.backend, native.scale_mode, plan(arms=("native",)).is_inline) == (
        Backend.MICRO,
        ScaleMode.NATIVE,
        False,
    )


def test_the_stages_are_those_of_the_scale_mode_and_of_each_id_type() -> None:
    sharded = shard(DS41, 4)
    for arms, csf_inline in ((None, True), (("native",), False)):
        (planned,) = plan(arms=arms).capacities  # type: ignore[arg-type]
        assert planned.stages == tuple(
            micro_stages(sharded, id_type, csf_inline=csf_inline) for id_type in ("int32", "int64")
        )
    (planned,) = plan(id_types=("int64",)).capacities
    assert planned.stages == (micro_stages(sharded, "int64", csf_inline=True),)


@pytest.mark.parametrize("arms", [("inline",), ("native",)])
def test_every_payload_of_a_call_is_one_that_a_build_of_the_same_options_makes(arms: tuple[Arm, ...]) -> None:
    options = PlanOptions(inline_limit=1536, capacities=(8,), arms=arms)
    built = enumerate_programs(DS41, tp=4, target=target("sm_90a"), options=options)
    assert set(plan(arms=arms).payloads()) == set(built)
    assert len(plan(arms=arms).payloads()) == 8


@pytest.mark.parametrize(("tokens", "capacity"), [(0, 1), (1, 1), (2, 4), (4, 4), (5, 8), (8, 8)])
def test_the_smallest_capacity_that_holds_a_call_serves_it(tokens: int, capacity: int) -> None:
    planned = plan(capacities=(8, 1, 4)).choose(tokens)
    assert (planned.capacity, planned.rows) == (capacity, capacity * 6)


def test_more_tokens_than_the_largest_capacity_are_refused_with_both_numbers() -> None:
    with pytest.raises(CapacityExceeded, match=r"9 live tokens.*capacity is 8") as caught:
        plan(capacities=(4, 8)).choose(9)
    assert (caught.value.tokens, caught.value.largest, caught.value.exit_code) == (9, 8, 2)


@pytest.mark.parametrize(
    ("model", "tp", "arch", "capacity", "sizes"),
    [
        # 48 routes of 576 columns, stored 640 wide behind 5 planes of 4 scales: f32 on sm_90a, bytes on sm_120a.
        (DS41, 4, "sm_90a", 8, (40960, 5120, 110592, 48 * 640 + 5 * 48 * 16, 491520)),
        (DS41, 4, "sm_120a", 8, (40960, 1280, 110592, 48 * 640 + 5 * 48 * 4, 491520)),
        (KIMI, 16, "sm_120a", 1, (3584, 112, 12288, 16 * 256 + 2 * 16 * 4, 114688)),
    ],
)
def test_scratch_is_sized_by_the_capacity(
    model: Model, tp: int, arch: str, capacity: int, sizes: tuple[int, ...]
) -> None:
    scratch = plan(model, tp=tp, arch=arch, capacities=(capacity,)).scratch
    assert tuple(size for _, size in scratch.items()) == sizes


def test_a_plan_of_several_capacities_needs_the_scratch_of_the_largest() -> None:
    assert plan(capacities=(1, 8)).scratch == plan(capacities=(8,)).scratch


def test_the_buffers_of_a_workspace_are_aligned_and_disjoint() -> None:
    scratch = ScratchSizes(a8=256, a_scale=8, projections=300, intermediate=1, route_output=512)
    assert scratch.places() == {
        "a8": (0, 256),
        "a_scale": (256, 264),
        "projections": (512, 812),
        "intermediate": (1024, 1025),
        "route_output": (1280, 1792),
    }
    assert scratch.workspace == 1792


@pytest.mark.parametrize(
    ("tp", "capacities", "arms", "unserved", "served"),
    [
        (4, None, None, "64 (dynamic, inline), 128 (dynamic, inline)", "capacities=(8,)"),
        (4, (8, 2048), None, "2048 (dynamic, expand)", "capacities=(8,)"),
        (4, (4, 8, 9), ("native",), "9 (dynamic, native)", "capacities=(4, 8)"),
        (4, (8,), ("expand",), "8 (micro, decode)", "the arm inline or native"),
        (2, (8,), None, "8 (dynamic, decode)", "the arm inline or native"),
    ],
)
def test_capacities_without_kernels_are_refused_with_those_that_have(
    tp: int, capacities: tuple[int, ...] | None, arms: tuple[Arm, ...] | None, unserved: str, served: str
) -> None:
    with pytest.raises(UnservedCapacity) as caught:
        plan(tp=tp, capacities=capacities, arms=arms)
    assert unserved in str(caught.value)
    assert str(caught.value).endswith(served)
    assert caught.value.exit_code == 2


def test_a_plan_serves_experts_of_one_arm() -> None:
    with pytest.raises(SeveralArms, match="inline, native"):
        plan(arms=("inline", "native"))
    with pytest.raises(UnavailableArm):
        plan(arms=("inline",), is_on=False)


def test_the_inline_limit_is_kept_and_does_not_concern_direct_routes() -> None:
    declared = plan(limit=0)
    assert (declared.inline_limit, declared.capacities[0].scale_mode) == (0, ScaleMode.INLINE)


def test_a_plan_is_a_value() -> None:
    assert plan() == plan()
    assert plan() != plan(arch="sm_120a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().inline_limit = 1  # type: ignore[misc]


def test_declaring_a_plan_imports_no_torch() -> None:
    program = (
        "import sys, planfreeze.kernels.moe.plan;"
        "print(sorted({'torch', 'triton', 'cutlass', 'cuda', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
