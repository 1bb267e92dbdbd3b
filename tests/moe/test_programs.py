"""The payloads of whole models, as literal lists."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.errors import InvalidGeometry, UnavailableArm
from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.programs import MicroStages, enumerate_programs, micro_stages
from planfreeze.kernels.moe.rules import shard
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.models import Model, PlanOptions, load_model, parse_options
from planfreeze.payload import Payload
from planfreeze.settings import read_settings
from planfreeze.target import target

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
DS41 = load_model("ds41")

ACT_QUANT = ActQuantPayload(hidden=5120)
FC1_INLINE = tuple(
    MicroFc1Payload(hidden=5120, intermediate=576, top_k=6, id_bits=bits, csf_inline=True) for bits in (32, 64)
)
FC1_NATIVE = tuple(MicroFc1Payload(hidden=5120, intermediate=576, top_k=6, id_bits=bits) for bits in (32, 64))
ACT = tuple(MicroActPayload(intermediate=576, id_bits=bits) for bits in (32, 64))
FC2_INLINE = tuple(MicroFc2Payload(hidden=5120, intermediate=576, id_bits=bits, csf_inline=True) for bits in (32, 64))
FC2_NATIVE = tuple(MicroFc2Payload(hidden=5120, intermediate=576, id_bits=bits) for bits in (32, 64))
INLINE = (*FC1_INLINE, *ACT, *FC2_INLINE)
NATIVE = (*FC1_NATIVE, *ACT, *FC2_NATIVE)
EXPANSIONS = (
    ExpandPayload(experts=384, rows=1152, columns=160, group_rows=576),
    ExpandPayload(experts=384, rows=5120, columns=18, group_rows=5120),
)
TOPK_SUM = TopkSumPayload(hidden=5120, top_k=6)


def programs(
    model: Model, tp: int, *, arch: str = "sm_90a", limit: int = 1536, is_on: bool = True, **text: str
) -> tuple[Payload, ...]:
    options = parse_options(inline_limit=limit, is_csf_inline=is_on, **text)  # type: ignore[arg-type]
    return enumerate_programs(model, tp=tp, target=target(arch), options=options)


def test_ds41_on_four_ranks_has_ten_programs() -> None:
    listed = programs(DS41, 4)
    assert listed == (ACT_QUANT, *INLINE, *EXPANSIONS, TOPK_SUM)
    assert len(listed) == 10


def test_all_arms_of_ds41_have_fourteen_programs() -> None:
    listed = programs(DS41, 4, arms="all")
    assert listed == (ACT_QUANT, *INLINE, *FC1_NATIVE, *FC2_NATIVE, *EXPANSIONS, TOPK_SUM)
    assert len(listed) == 14


def test_the_order_of_the_request_does_not_matter() -> None:
    assert programs(DS41, 4, arms="native,inline", capacities="4096,8", id_types="int64,int32") == programs(
        DS41, 4, arms="inline,native", capacities="8,4096"
    )


@pytest.mark.parametrize("arms", ["expand", "native", "expand,native"])
def test_arms_without_inline_experts_run_native_kernels(arms: str) -> None:
    assert programs(DS41, 4, arms=arms) == (ACT_QUANT, *NATIVE, TOPK_SUM)


def test_the_switch_off_means_native_kernels() -> None:
    assert programs(DS41, 4, is_on=False) == (ACT_QUANT, *NATIVE, TOPK_SUM)
    assert programs(DS41, 4, is_on=False, arms="all") == (ACT_QUANT, *NATIVE, TOPK_SUM)
    with pytest.raises(UnavailableArm):
        programs(DS41, 4, is_on=False, arms="inline")


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_whole_row_tiles_have_no_direct_route_kernels(tp: int) -> None:
    assert programs(DS41, tp) == (ACT_QUANT, TOPK_SUM)


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ("8", (ACT_QUANT, *INLINE, TOPK_SUM)),
        ("1", (ACT_QUANT, *INLINE, TOPK_SUM)),
        ("8,1536", (ACT_QUANT, *INLINE, TOPK_SUM)),
        ("8,1537", (ACT_QUANT, *INLINE, *EXPANSIONS, TOPK_SUM)),
        ("9", (ACT_QUANT, TOPK_SUM)),
        ("64,2048", (ACT_QUANT, *EXPANSIONS, TOPK_SUM)),
    ],
)
def test_capacities_ask_only_for_what_they_use(capacities: str, expected: tuple[Payload, ...]) -> None:
    assert programs(DS41, 4, capacities=capacities) == expected


@pytest.mark.parametrize(("limit", "is_expanded"), [(0, True), (8, True), (63, True), (64, False), (4096, False)])
def test_the_limit_concerns_grouped_kernels_alone(limit: int, is_expanded: bool) -> None:
    expansions = EXPANSIONS if is_expanded else ()
    assert programs(DS41, 4, capacities="8,64", limit=limit) == (ACT_QUANT, *INLINE, *expansions, TOPK_SUM)


@pytest.mark.parametrize(("id_type", "index"), [("int32", 0), ("int64", 1)])
def test_one_id_type_asks_for_one_direct_route_kernel(id_type: str, index: int) -> None:
    stages = (FC1_INLINE[index], ACT[index], FC2_INLINE[index])
    assert programs(DS41, 4, id_types=id_type, capacities="8") == (ACT_QUANT, *stages, TOPK_SUM)


def test_the_stages_of_a_call_are_planned_programs() -> None:
    assert micro_stages(shard(DS41, 4), "int64", csf_inline=False) == MicroStages(
        act_quant=ACT_QUANT,
        micro_fc1=FC1_NATIVE[1],
        micro_act=ACT[1],
        micro_fc2=FC2_NATIVE[1],
        topk_sum=TOPK_SUM,
    )


def test_the_activation_of_the_model_reaches_its_kernel_alone() -> None:
    limited = dataclasses.replace(DS41, activation_limit=7.0, fast_math=True)
    changed = tuple(MicroActPayload(intermediate=576, id_bits=bits, limit="7.0", fast_math=True) for bits in (32, 64))
    assert programs(limited, 4) == (ACT_QUANT, *FC1_INLINE, *changed, *FC2_INLINE, *EXPANSIONS, TOPK_SUM)


def test_kimi_k3_on_sixteen_ranks() -> None:
    assert programs(load_model("kimi_k3"), 16) == (
        ActQuantPayload(hidden=3584),
        MicroFc1Payload(hidden=3584, intermediate=192, top_k=16, id_bits=32, csf_inline=True),
        MicroFc1Payload(hidden=3584, intermediate=192, top_k=16, id_bits=64, csf_inline=True),
        MicroActPayload(intermediate=192, id_bits=32),
        MicroActPayload(intermediate=192, id_bits=64),
        MicroFc2Payload(hidden=3584, intermediate=192, id_bits=32, csf_inline=True),
        MicroFc2Payload(hidden=3584, intermediate=192, id_bits=64, csf_inline=True),
        ExpandPayload(experts=896, rows=384, columns=112, group_rows=192),
        ExpandPayload(experts=896, rows=3584, columns=6, group_rows=3584),
        TopkSumPayload(hidden=3584, top_k=16),
    )


def test_qwen3_30b_a3b_on_four_ranks() -> None:
    model = load_model(str(CONFIGS / "qwen3_30b_a3b.json"))
    expected = (
        ActQuantPayload(hidden=2048),
        MicroFc1Payload(hidden=2048, intermediate=192, top_k=8, id_bits=32),
        MicroFc1Payload(hidden=2048, intermediate=192, top_k=8, id_bits=64),
        MicroActPayload(intermediate=192, id_bits=32),
        MicroActPayload(intermediate=192, id_bits=64),
        MicroFc2Payload(hidden=2048, intermediate=192, id_bits=32),
        MicroFc2Payload(hidden=2048, intermediate=192, id_bits=64),
        TopkSumPayload(hidden=2048, top_k=8),
    )
    assert programs(model, 4) == expected
    assert programs(model, 4, arms="all") == expected


def test_deepseek_v3_on_four_ranks() -> None:
    model = load_model(str(CONFIGS / "deepseek_v3.json"))
    assert programs(model, 4) == (ActQuantPayload(hidden=7168), TopkSumPayload(hidden=7168, top_k=8))


@pytest.mark.parametrize("tp", [5, 8])
def test_a_model_that_does_not_divide_has_no_programs(tp: int) -> None:
    with pytest.raises(InvalidGeometry):
        programs(DS41, tp)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_every_architecture_has_the_same_payloads(arch: str) -> None:
    assert programs(DS41, 4, arch=arch) == (ACT_QUANT, *INLINE, *EXPANSIONS, TOPK_SUM)


def test_no_payload_is_listed_twice() -> None:
    arms = ("inline", "expand", "native")
    for count in (1, 2, 3):
        for chosen in itertools.combinations(arms, count):
            listed = programs(DS41, 4, arms=",".join(chosen), capacities="1,8,9,1536,1537,4096")
            assert len({payload.digest for payload in listed}) == len(listed)


def test_what_names_no_geometry_changes_no_payload() -> None:
    renamed = dataclasses.replace(
        DS41, name="other", default_arch="sm_90a", default_tp=9, programs="some:where", capacities=(8, 4096)
    )
    assert programs(renamed, 4) == programs(DS41, 4)


def declare() -> PlanOptions:
    settings = read_settings()
    return PlanOptions(inline_limit=settings.csf_inline_max_tokens, is_csf_inline=settings.is_csf_inline)


def test_a_declared_plan_does_not_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE", raising=False)
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", raising=False)
    declared = declare()
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", "4096")
    listed = enumerate_programs(DS41, tp=4, target=target("sm_90a"), options=declared)
    assert listed == (ACT_QUANT, *INLINE, *EXPANSIONS, TOPK_SUM)
    later = enumerate_programs(DS41, tp=4, target=target("sm_90a"), options=declare())
    assert later == (ACT_QUANT, *INLINE, TOPK_SUM)
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE", "0")
    assert enumerate_programs(DS41, tp=4, target=target("sm_90a"), options=declared) == listed
    off = enumerate_programs(DS41, tp=4, target=target("sm_90a"), options=declare())
    assert off == (ACT_QUANT, *NATIVE, TOPK_SUM)


def test_listing_programs_imports_no_compiler() -> None:
    program = (
        "import sys, planfreeze.kernels.moe.programs;"
        "print(sorted({'torch', 'triton', 'cutlass', 'cuda', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_same_list_under_every_hash_seed() -> None:
    program = (
        "from planfreeze.kernels.moe.programs import enumerate_programs as e;"
        "from planfreeze.models import load_model, parse_options as p; from planfreeze.target import target;"
        "o = p(inline_limit=1536, arms='all');"
        "print([x.digest for x in e(load_model('ds41'), tp=4, target=target('sm_90a'), options=o)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
