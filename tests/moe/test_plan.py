"""Runtime plans: capacities, stages, payloads, and what they refuse."""

import subprocess
import sys

import pytest

from planfreeze.errors import CapacityExceeded, SeveralArms, UnavailableArm, UnservedCapacity
from planfreeze.kernels.moe.programs import enumerate_programs
from planfreeze.kernels.moe.rules import Backend, ScaleMode, shard
from planfreeze.kernels.moe.scratch import Counts
from planfreeze.kernels.moe.stages import PLAIN_STAGES, list_stages
from planfreeze.models import Arm, PlanOptions
from planfreeze.settings import read_settings
from planfreeze.target import target

from .plans import DS41, plan


@pytest.mark.parametrize(
    ("arms", "modes"),
    [
        (None, ("inline", "inline", "inline", "expand")),
        (("expand",), ("decode",) * 4),
        (("native",), ("native",) * 4),
    ],
)
def test_every_capacity_has_a_backend_and_a_scale_mode(arms: tuple[Arm, ...] | None, modes: tuple[str, ...]) -> None:
    made = plan(capacities=(8, 9, 1536, 1537), arms=arms)
    backends = [Backend.MICRO, Backend.DYNAMIC, Backend.DYNAMIC, Backend.DYNAMIC]
    assert [planned.backend for planned in made.capacities] == backends
    assert tuple(planned.scale_mode for planned in made.capacities) == modes
    assert made.is_inline == (arms is None)


PLANES = {
    "inline": [],
    "native": [],
    "expand": ["expand_w13", "expand_w2"],
    "decode": ["csf_presence", "csf_decode_w13", "csf_decode_w2"],
}
PRODUCTS = {"micro": ["micro_fc1", "micro_act", "micro_fc2"], "dynamic": ["route_plan", "split_fc1", "split_fc2"]}


@pytest.mark.parametrize("arms", [("inline",), ("expand",), ("native",)])
def test_planes_are_written_before_routes_are_looked_at(arms: tuple[Arm, ...]) -> None:
    for planned in plan(capacities=(8, 9, 1537), arms=arms).capacities:
        expected = ["act_quant", *PLANES[planned.scale_mode], *PRODUCTS[planned.backend], "topk_sum"]
        for stages in planned.stages:
            assert [stage.name for stage in stages] == expected


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("arms", [("inline",), ("expand",), ("native",)])
def test_launches_that_overlap_stand_behind_those_they_may_overlap(arch: str, arms: tuple[Arm, ...]) -> None:
    for planned in plan(arch=arch, capacities=(8, 64, 4096), arms=arms).capacities:
        for stages in planned.stages:
            names = [stage.name for stage in stages]
            # The quantiser waits first; what relies on a plain launch has one, whatever stands before it.
            assert names[0] == "act_quant" and names[-1] == "topk_sum"
            plain = {stage.name for stage in stages if not stage.is_programmatic}
            assert all(name.startswith(("expand", "csf")) for name in plain)
            if "route_plan" in names:
                assert names[names.index("route_plan") - 1] in {"act_quant", *plain}
                assert names.index("split_fc2") == names.index("split_fc1") + 1 == names.index("route_plan") + 2
            if "micro_fc1" in names:
                ready = {"act_quant", *PLAIN_STAGES}
                # It reads scales before it waits: what writes their plane is complete.
                assert names[names.index("micro_fc1") - 1] in {"act_quant", "expand_w2", "csf_decode_w2"} <= ready
                assert names.index("micro_fc2") == names.index("micro_act") + 1 == names.index("micro_fc1") + 2


def test_kernels_read_inline_where_the_mode_says_so_and_nowhere_else() -> None:
    for arms in (("inline",), ("expand",), ("native",)):
        for planned in plan(capacities=(8, 9, 1537), arms=arms).capacities:  # type: ignore[arg-type]
            is_inline = [
                stage.payload.to_fields()["csf_inline"]
                for stages in planned.stages
                for stage in stages
                if stage.name.endswith(("fc1", "fc2"))
            ]
            assert is_inline == [planned.scale_mode is ScaleMode.INLINE] * 4


def test_there_is_one_entry_of_stages_for_every_id_type() -> None:
    sharded = shard(DS41, 4)
    for capacity in (8, 64):
        (planned,) = plan(capacities=(capacity,)).capacities
        assert planned.stages == tuple(
            list_stages(sharded, "sm_90a", capacity, ScaleMode.INLINE, id_type)  # type: ignore[arg-type]
            for id_type in ("int32", "int64")
        )
        (planned,) = plan(capacities=(capacity,), id_types=("int64",)).capacities
        assert planned.stages == (list_stages(sharded, "sm_90a", capacity, ScaleMode.INLINE, "int64"),)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("arms", [("inline",), ("expand",), ("native",)])
def test_every_payload_of_a_call_is_one_that_a_build_of_the_same_options_makes(
    arch: str, tp: int, arms: tuple[Arm, ...]
) -> None:
    if (tp, arms) == (2, ("inline",)):
        arms = ("expand",)
    options = PlanOptions(inline_limit=1536, arms=arms)
    built = enumerate_programs(DS41, tp=tp, target=target(arch), options=options)
    made = plan(tp=tp, arch=arch, capacities=None, arms=arms)
    assert set(made.payloads()) == set(built)
    assert len(made.payloads()) == len(built)


@pytest.mark.parametrize(("tokens", "capacity"), [(0, 1), (1, 1), (2, 4), (4, 4), (5, 8), (8, 8)])
def test_the_smallest_capacity_that_holds_a_call_serves_it(tokens: int, capacity: int) -> None:
    planned = plan(capacities=(8, 1, 4)).choose(tokens)
    assert (planned.capacity, planned.counts) == (capacity, Counts(rows=capacity * 6, m_tiles=0))


def test_more_tokens_than_the_largest_capacity_are_refused_with_both_numbers() -> None:
    with pytest.raises(CapacityExceeded, match=r"9 live tokens.*capacity is 8") as caught:
        plan(capacities=(4, 8)).choose(9)
    assert (caught.value.tokens, caught.value.largest, caught.value.exit_code) == (9, 8, 2)


@pytest.mark.parametrize(("tokens", "capacity"), [(8, 8), (9, 64), (64, 64), (65, 2048), (2048, 2048)])
def test_direct_and_grouped_capacities_stand_side_by_side(tokens: int, capacity: int) -> None:
    assert plan(capacities=(8, 64, 2048)).choose(tokens).capacity == capacity


@pytest.mark.parametrize(("capacity", "tile_m"), [(64, 8), (512, 16), (4096, 32)])
def test_counts_and_programs_have_the_same_tiles(capacity: int, tile_m: int) -> None:
    (planned,) = plan(capacities=(capacity,)).capacities
    m_tiles = -(-capacity * 6 // tile_m) + 383
    assert planned.counts == Counts(rows=tile_m * m_tiles, m_tiles=m_tiles)
    tiles = {stage.payload.to_fields().get("tile_m") for stages in planned.stages for stage in stages}
    assert tiles == {None, tile_m}


@pytest.mark.parametrize(
    ("capacities", "unserved", "one_of"),
    [
        ((8, 2**31 - 1), "2147483647", "capacities=(8,)"),
        ((2**31 - 1,), "2147483647", "a smaller capacity"),
        ((64, 2**30, 2**31 - 1), "1073741824, 2147483647", "capacities=(64,)"),
    ],
)
def test_capacities_that_kernels_do_not_count_are_refused_with_those_they_do(
    capacities: tuple[int, ...], unserved: str, one_of: str
) -> None:
    with pytest.raises(UnservedCapacity) as caught:
        plan(capacities=capacities)
    assert f"no kernels for the capacities {unserved}." in str(caught.value)
    assert f"Declare the plan with: {one_of}" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_plan_serves_experts_of_one_arm() -> None:
    with pytest.raises(SeveralArms, match="inline, native"):
        plan(arms=("inline", "native"))
    with pytest.raises(UnavailableArm):
        plan(arms=("inline",), is_on=False)


def test_the_inline_limit_is_kept_and_does_not_concern_direct_routes() -> None:
    declared = plan(limit=0, capacities=(8, 9))
    assert declared.inline_limit == 0
    assert [planned.scale_mode for planned in declared.capacities] == [ScaleMode.INLINE, ScaleMode.EXPAND]


def test_a_plan_stays_as_it_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", raising=False)
    declared = plan(capacities=(17,), limit=read_settings().csf_inline_max_tokens)
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", "0")
    assert declared.capacities[0].scale_mode is ScaleMode.INLINE
    later = plan(capacities=(17,), limit=read_settings().csf_inline_max_tokens)
    assert later.capacities[0].scale_mode is ScaleMode.EXPAND


def test_a_plan_is_a_value() -> None:
    assert plan() == plan()
    assert plan() != plan(arch="sm_120a")
    with pytest.raises(AttributeError, match="immutable"):
        plan().inline_limit = 1  # type: ignore[misc]


def test_declaring_a_plan_imports_no_torch() -> None:
    program = (
        "import sys, planfreeze.kernels.moe.plan;"
        "print(sorted({'torch', 'triton', 'cutlass', 'cuda', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
