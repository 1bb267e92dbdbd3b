"""The payloads of ds41 on four ranks, as literal lists, and what they depend on."""

import itertools
import subprocess
import sys

import pytest
from msgspec.structs import replace

from planfreeze.errors import InvalidGeometry, UnavailableArm
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.programs import enumerate_programs
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload
from planfreeze.models import PlanOptions
from planfreeze.payload import Payload
from planfreeze.settings import read_settings
from planfreeze.target import target

from .payloads import (
    ACT,
    ACT_QUANT,
    DECODES,
    DS41,
    EXPANSIONS,
    FC1_INLINE,
    FC1_NATIVE,
    FC2_INLINE,
    FC2_NATIVE,
    MICRO_INLINE,
    MICRO_NATIVE,
    TOPK_SUM,
    check,
    programs,
    routes,
    split1,
    split2,
)


def test_ds41_on_four_ranks_of_sm_120a_has_sixteen_programs() -> None:
    listed = programs(DS41, 4, arch="sm_120a")
    assert listed == (
        ACT_QUANT,
        *EXPANSIONS,
        *MICRO_INLINE,
        *routes(16),
        *split1(16, inline=True),
        *split1(16),
        *split2(16, inline=True),
        *split2(16),
        TOPK_SUM,
    )
    assert len(listed) == 16


def test_all_arms_of_ds41_on_sm_120a_have_twenty_four_programs() -> None:
    listed = programs(DS41, 4, arch="sm_120a", arms="all")
    check(listed, *programs(DS41, 4, arch="sm_120a"), *FC1_NATIVE, *FC2_NATIVE, *DECODES)
    assert len(listed) == 24


def test_sm_90a_has_a_routing_and_both_products_of_every_further_tile() -> None:
    listed = programs(DS41, 4)
    assert listed == (
        ACT_QUANT,
        *EXPANSIONS,
        *MICRO_INLINE,
        *routes(8, 16, 32),
        *split1(8, 16, 32, inline=True),
        *split1(32),
        *split2(8, 16, 32, inline=True),
        *split2(32),
        TOPK_SUM,
    )
    assert len(listed) == 24
    every = programs(DS41, 4, arms="all")
    check(every, *listed, *FC1_NATIVE, *FC2_NATIVE, *DECODES, *split1(8, 16), *split2(8, 16))
    assert len(every) == 36


def test_the_order_of_the_request_does_not_matter() -> None:
    assert programs(DS41, 4, arms="native,inline", capacities="4096,8", id_types="int64,int32") == programs(
        DS41, 4, arms="inline,native", capacities="8,4096"
    )


SPLIT_NATIVE = (*routes(8, 16, 32), *split1(8, 16, 32), *split2(8, 16, 32))


def test_native_experts_run_native_kernels_alone() -> None:
    assert programs(DS41, 4, arms="native") == (ACT_QUANT, *MICRO_NATIVE, *SPLIT_NATIVE, TOPK_SUM)


@pytest.mark.parametrize("arms", ["expand", "expand,native"])
def test_experts_of_the_expansion_arm_run_native_kernels_over_decoded_planes(arms: str) -> None:
    assert programs(DS41, 4, arms=arms) == (ACT_QUANT, *DECODES, *MICRO_NATIVE, *SPLIT_NATIVE, TOPK_SUM)


def test_the_switch_off_means_decoding_and_native_kernels() -> None:
    expected = (ACT_QUANT, *DECODES, *MICRO_NATIVE, *SPLIT_NATIVE, TOPK_SUM)
    assert programs(DS41, 4, is_on=False) == expected
    assert programs(DS41, 4, is_on=False, arms="all") == expected
    with pytest.raises(UnavailableArm):
        programs(DS41, 4, is_on=False, arms="inline")


@pytest.mark.parametrize(("tp", "columns"), [(1, 2304), (2, 1152), (3, 768)])
def test_whole_row_tiles_are_grouped_at_every_capacity_and_decoded_before(tp: int, columns: int) -> None:
    listed = programs(DS41, tp, arch="sm_120a")
    assert listed == (
        ACT_QUANT,
        *DECODES[:2],
        CsfDecodePayload(rows=2 * columns, columns=160, group_rows=columns),
        CsfDecodePayload(rows=5120, columns=columns // 32, group_rows=5120),
        *routes(16),
        SplitFc1Payload(hidden=5120, intermediate=columns, top_k=6, tile_m=16),
        SplitFc2Payload(hidden=5120, intermediate=columns, tile_m=16),
        TOPK_SUM,
    )
    assert len(listed) == 10


INLINE_8 = (*routes(8), *split1(8, inline=True), *split2(8, inline=True))


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ("8", MICRO_INLINE),
        ("1", MICRO_INLINE),
        ("9", INLINE_8),
        ("128", INLINE_8),
        ("8,1536", (*MICRO_INLINE, *routes(32), *split1(32, inline=True), *split2(32, inline=True))),
        ("8,1537", (*MICRO_INLINE, *EXPANSIONS, *routes(32), *split1(32), *split2(32))),
        ("64,2048", (*INLINE_8, *EXPANSIONS, *routes(32), *split1(32), *split2(32))),
    ],
)
def test_capacities_ask_only_for_what_they_use(capacities: str, expected: tuple[Payload, ...]) -> None:
    check(programs(DS41, 4, capacities=capacities), ACT_QUANT, *expected, TOPK_SUM)


@pytest.mark.parametrize(("limit", "is_expanded"), [(0, True), (8, True), (63, True), (64, False), (4096, False)])
def test_the_limit_concerns_grouped_kernels_alone(limit: int, is_expanded: bool) -> None:
    expanded = (*EXPANSIONS, *routes(8), *split1(8), *split2(8))
    grouped = expanded if is_expanded else INLINE_8
    check(programs(DS41, 4, capacities="8,64", limit=limit), ACT_QUANT, *MICRO_INLINE, *grouped, TOPK_SUM)


@pytest.mark.parametrize(("id_type", "index"), [("int32", 0), ("int64", 1)])
def test_one_id_type_asks_for_one_of_each_kernel_that_reads_ids(id_type: str, index: int) -> None:
    micro = (FC1_INLINE[index], ACT[index], FC2_INLINE[index])
    assert programs(DS41, 4, id_types=id_type, capacities="8") == (ACT_QUANT, *micro, TOPK_SUM)
    grouped = (routes(8)[index], *split1(8), *split2(8))
    decoded = (DECODES[index], *DECODES[2:])
    assert programs(DS41, 4, id_types=id_type, capacities="64", arms="expand") == (
        ACT_QUANT,
        *decoded,
        *grouped,
        TOPK_SUM,
    )


def test_the_activation_of_the_model_reaches_its_kernels_alone() -> None:
    limited = replace(DS41, activation_limit=7.0, fast_math=True)
    changed: dict[Payload, Payload] = {
        act: MicroActPayload(hidden=5120, intermediate=576, id_bits=act.id_bits, limit="7.0", fast_math=True)
        for act in ACT
    }
    for fc1 in (*split1(8, 16, 32, inline=True), *split1(32)):
        fields = {**fc1.to_fields(), "limit": "7.0", "fast_math": True}
        changed[fc1] = SplitFc1Payload.from_fields(fields)
    assert programs(limited, 4) == tuple(changed.get(payload, payload) for payload in programs(DS41, 4))


@pytest.mark.parametrize("tp", [5, 8])
def test_a_model_that_does_not_divide_has_no_programs(tp: int) -> None:
    with pytest.raises(InvalidGeometry):
        programs(DS41, tp)


def test_architectures_differ_in_the_tiles_of_grouped_routes_alone() -> None:
    hopper, blackwell = set(programs(DS41, 4, arms="all")), set(programs(DS41, 4, arch="sm_120a", arms="all"))
    assert blackwell < hopper
    assert {payload.to_fields()["tile_m"] for payload in hopper - blackwell} == {8, 32}


def test_no_payload_is_listed_twice() -> None:
    arms = ("inline", "expand", "native")
    for count in (1, 2, 3):
        for chosen in itertools.combinations(arms, count):
            listed = programs(DS41, 4, arms=",".join(chosen), capacities="1,8,9,1536,1537,4096")
            assert len({payload.digest for payload in listed}) == len(listed)


def test_what_names_no_geometry_changes_no_payload() -> None:
    renamed = replace(
        DS41, name="other", default_arch="sm_90a", default_tp=9, programs="some:where", capacities=(8, 64, 4096)
    )
    assert programs(renamed, 4, arch="sm_120a") == programs(DS41, 4, arch="sm_120a")


def declare() -> PlanOptions:
    settings = read_settings()
    return PlanOptions(inline_limit=settings.csf_inline_max_tokens, is_csf_inline=settings.is_csf_inline)


def test_a_declared_plan_does_not_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(options: PlanOptions) -> tuple[Payload, ...]:
        return enumerate_programs(DS41, tp=4, target=target("sm_120a"), options=options)

    monkeypatch.delenv("PLANFREEZE_CSF_INLINE", raising=False)
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", raising=False)
    declared = declare()
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE_MAX_TOKENS", "4096")
    kept = listed(declared)
    assert kept == programs(DS41, 4, arch="sm_120a")
    inline = (*routes(16), *split1(16, inline=True), *split2(16, inline=True))
    assert listed(declare()) == (ACT_QUANT, *MICRO_INLINE, *inline, TOPK_SUM)
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE", "0")
    assert listed(declared) == kept
    assert listed(declare()) == programs(DS41, 4, arch="sm_120a", arms="expand")


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
