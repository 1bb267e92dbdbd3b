"""Payloads of ds41, and what a request lists."""

from pathlib import Path

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.programs import enumerate_programs
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.models import Model, load_model, parse_options
from planfreeze.payload import Payload
from planfreeze.target import target

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
DS41 = load_model("ds41")

ACT_QUANT = ActQuantPayload(hidden=5120)
FC1_INLINE = tuple(
    MicroFc1Payload(hidden=5120, intermediate=576, top_k=6, id_bits=bits, csf_inline=True) for bits in (32, 64)
)
FC1_NATIVE = tuple(MicroFc1Payload(hidden=5120, intermediate=576, top_k=6, id_bits=bits) for bits in (32, 64))
ACT = tuple(MicroActPayload(hidden=5120, intermediate=576, id_bits=bits) for bits in (32, 64))
FC2_INLINE = tuple(MicroFc2Payload(hidden=5120, intermediate=576, id_bits=bits, csf_inline=True) for bits in (32, 64))
FC2_NATIVE = tuple(MicroFc2Payload(hidden=5120, intermediate=576, id_bits=bits) for bits in (32, 64))
MICRO_INLINE = (*FC1_INLINE, *ACT, *FC2_INLINE)
MICRO_NATIVE = (*FC1_NATIVE, *ACT, *FC2_NATIVE)
EXPANSIONS = (
    ExpandPayload(experts=384, rows=1152, columns=160, group_rows=576),
    ExpandPayload(experts=384, rows=5120, columns=18, group_rows=5120),
)
DECODES = (
    CsfPresencePayload(experts=384, id_bits=32),
    CsfPresencePayload(experts=384, id_bits=64),
    CsfDecodePayload(rows=1152, columns=160, group_rows=576),
    CsfDecodePayload(rows=5120, columns=18, group_rows=5120),
)
TOPK_SUM = TopkSumPayload(hidden=5120, top_k=6)


def routes(*tiles: int) -> tuple[Payload, ...]:
    return tuple(RoutePlanPayload(experts=384, top_k=6, tile_m=m, id_bits=bits) for m in tiles for bits in (32, 64))


def split1(*tiles: int, inline: bool = False) -> tuple[Payload, ...]:
    return tuple(SplitFc1Payload(hidden=5120, intermediate=576, top_k=6, tile_m=m, csf_inline=inline) for m in tiles)


def split2(*tiles: int, inline: bool = False) -> tuple[Payload, ...]:
    return tuple(SplitFc2Payload(hidden=5120, intermediate=576, tile_m=m, csf_inline=inline) for m in tiles)


def programs(
    model: Model, tp: int, *, arch: str = "sm_90a", limit: int = 1536, is_on: bool = True, **text: str
) -> tuple[Payload, ...]:
    options = parse_options(inline_limit=limit, is_csf_inline=is_on, **text)  # type: ignore[arg-type]
    return enumerate_programs(model, tp=tp, target=target(arch), options=options)


def check(found: tuple[Payload, ...], *expected: Payload) -> None:
    """Compare with a list whose order is not that of the plan; every payload once."""
    assert len({payload.digest for payload in found}) == len(found)
    assert set(found) == set(expected)
    assert len(found) == len(expected)
