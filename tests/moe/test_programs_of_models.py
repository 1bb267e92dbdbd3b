"""The payloads of whole models other than ds41 on four ranks, as literal lists."""

import pytest
from msgspec.structs import replace

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.models import load_model

from .payloads import CONFIGS, DS41, programs


@pytest.mark.parametrize(
    ("hidden", "columns", "experts", "top_k", "scales"),
    [
        (3584, 192, 896, 16, ((384, 112, 192), (3584, 6, 3584))),
        (1024, 320, 8, 2, ((640, 32, 320), (1024, 10, 1024))),
        (512, 192, 8, 2, ((384, 16, 192), (512, 6, 512))),
        (5120, 576, 8, 2, ((1152, 160, 576), (5120, 18, 5120))),
        (5120, 576, 8, 6, ((1152, 160, 576), (5120, 18, 5120))),
    ],
)
def test_compact_geometries_have_sixteen_programs_on_sm_120a(
    hidden: int, columns: int, experts: int, top_k: int, scales: tuple[tuple[int, int, int], ...]
) -> None:
    model = replace(DS41, hidden=hidden, intermediate=columns, experts=experts, top_k=top_k)
    listed = programs(model, 1, arch="sm_120a")
    assert sorted(payload.family_name for payload in listed) == sorted(
        payload.family_name for payload in programs(DS41, 4, arch="sm_120a")
    )
    assert [payload for payload in listed if isinstance(payload, ExpandPayload)] == [
        ExpandPayload(experts=experts, rows=rows, columns=width, group_rows=group) for rows, width, group in scales
    ]
    assert {RoutePlanPayload(experts=experts, top_k=top_k, tile_m=16, id_bits=bits) for bits in (32, 64)} <= set(listed)
    for inline in (False, True):
        fc2 = SplitFc2Payload(hidden=hidden, intermediate=columns, tile_m=16, csf_inline=inline)
        fc1 = SplitFc1Payload(hidden=hidden, intermediate=columns, top_k=top_k, tile_m=16, csf_inline=inline)
        assert {fc1, fc2} <= set(listed)
    assert len(listed) == 16


def test_a_small_geometry_of_whole_row_tiles_has_ten_programs() -> None:
    model = replace(DS41, hidden=512, intermediate=256, experts=8, top_k=2)
    listed = programs(model, 1, arch="sm_120a", arms="expand")
    assert [payload.family_name for payload in listed] == [
        "act_quant",
        *["csf_presence"] * 2,
        *["csf_decode"] * 2,
        *["route_plan"] * 2,
        "split_fc1",
        "split_fc2",
        "topk_sum",
    ]
    assert programs(model, 1, arch="sm_120a", arms="all") == listed


def test_kimi_k3_on_sixteen_ranks() -> None:
    listed = programs(load_model("kimi_k3"), 16, arch="sm_120a")
    assert listed == (
        ActQuantPayload(hidden=3584),
        ExpandPayload(experts=896, rows=384, columns=112, group_rows=192),
        ExpandPayload(experts=896, rows=3584, columns=6, group_rows=3584),
        MicroFc1Payload(hidden=3584, intermediate=192, top_k=16, id_bits=32, csf_inline=True),
        MicroFc1Payload(hidden=3584, intermediate=192, top_k=16, id_bits=64, csf_inline=True),
        MicroActPayload(hidden=3584, intermediate=192, id_bits=32),
        MicroActPayload(hidden=3584, intermediate=192, id_bits=64),
        MicroFc2Payload(hidden=3584, intermediate=192, id_bits=32, csf_inline=True),
        MicroFc2Payload(hidden=3584, intermediate=192, id_bits=64, csf_inline=True),
        RoutePlanPayload(experts=896, top_k=16, tile_m=16, id_bits=32),
        RoutePlanPayload(experts=896, top_k=16, tile_m=16, id_bits=64),
        SplitFc1Payload(hidden=3584, intermediate=192, top_k=16, tile_m=16, csf_inline=True),
        SplitFc1Payload(hidden=3584, intermediate=192, top_k=16, tile_m=16),
        SplitFc2Payload(hidden=3584, intermediate=192, tile_m=16, csf_inline=True),
        SplitFc2Payload(hidden=3584, intermediate=192, tile_m=16),
        TopkSumPayload(hidden=3584, top_k=16),
    )


def test_qwen3_30b_a3b_on_four_ranks() -> None:
    model = load_model(str(CONFIGS / "qwen3_30b_a3b.json"))
    expected = (
        ActQuantPayload(hidden=2048),
        MicroFc1Payload(hidden=2048, intermediate=192, top_k=8, id_bits=32),
        MicroFc1Payload(hidden=2048, intermediate=192, top_k=8, id_bits=64),
        MicroActPayload(hidden=2048, intermediate=192, id_bits=32),
        MicroActPayload(hidden=2048, intermediate=192, id_bits=64),
        MicroFc2Payload(hidden=2048, intermediate=192, id_bits=32),
        MicroFc2Payload(hidden=2048, intermediate=192, id_bits=64),
        RoutePlanPayload(experts=128, top_k=8, tile_m=16, id_bits=32),
        RoutePlanPayload(experts=128, top_k=8, tile_m=16, id_bits=64),
        SplitFc1Payload(hidden=2048, intermediate=192, top_k=8, tile_m=16),
        SplitFc2Payload(hidden=2048, intermediate=192, tile_m=16),
        TopkSumPayload(hidden=2048, top_k=8),
    )
    assert programs(model, 4, arch="sm_120a") == expected
    assert programs(model, 4, arch="sm_120a", arms="all") == expected


def test_deepseek_v3_on_four_ranks_is_grouped_at_every_capacity() -> None:
    model = load_model(str(CONFIGS / "deepseek_v3.json"))
    assert programs(model, 4, arch="sm_120a") == (
        ActQuantPayload(hidden=7168),
        RoutePlanPayload(experts=256, top_k=8, tile_m=16, id_bits=32),
        RoutePlanPayload(experts=256, top_k=8, tile_m=16, id_bits=64),
        SplitFc1Payload(hidden=7168, intermediate=512, top_k=8, tile_m=16),
        SplitFc2Payload(hidden=7168, intermediate=512, tile_m=16),
        TopkSumPayload(hidden=7168, top_k=8),
    )
