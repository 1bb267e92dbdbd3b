"""Stages of a call: the payloads its launches name, in their order."""

from collections.abc import Iterator
from typing import Literal, get_args

from msgspec import Struct

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.rules import Backend, ScaleMode, ShardedModel, choose_backend, choose_tile_m
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.models import IdType
from planfreeze.payload import Payload

__all__ = ["STAGE_NAMES", "Stage", "StageName", "list_stages", "w2_geometry", "w13_geometry"]

StageName = Literal[
    "act_quant",
    "expand_w13",
    "expand_w2",
    "csf_presence",
    "csf_decode_w13",
    "csf_decode_w2",
    "micro_fc1",
    "micro_act",
    "micro_fc2",
    "route_plan",
    "split_fc1",
    "split_fc2",
    "topk_sum",
]
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)
"""Every stage there is. A call has some of them, in this order."""

PLAIN_STAGES: frozenset[StageName] = frozenset(
    ("expand_w13", "expand_w2", "csf_presence", "csf_decode_w13", "csf_decode_w2")
)
"""Stages whose kernels rely on a plain launch; all others wait for the launch before them by themselves."""

ID_BITS = {"int32": 32, "int64": 64}


class Stage(Struct, frozen=True, kw_only=True):
    """One launch of a call.

    Parameters
    ----------
    name : str
        What the launch is for: its family, and the projection where a family is launched for each.
    payload : Payload
        The program.
    """

    name: StageName
    payload: Payload

    @property
    def is_programmatic(self) -> bool:
        """Whether the launch may overlap the one before it in the call, see :mod:`planfreeze.kernels.mma.launch`."""
        return self.name not in PLAIN_STAGES


def list_stages(sharded: ShardedModel, arch: str, capacity: int, mode: ScaleMode, id_type: IdType) -> tuple[Stage, ...]:
    """List the launches of a call in their order.

    Parameters
    ----------
    sharded : ShardedModel
        The model as one rank sees it.
    arch : str
        Exact architecture.
    capacity : int
        Tokens the call may have; selects the backend and the tiles of grouped routes.
    mode : ScaleMode
        How scales reach the kernels of the capacity.
    id_type : str
        Integer type of the routing ids.

    Notes
    -----
    Planes that a call writes, by expanding or by decoding, are complete before routes are looked at. The order is also
    what lets launches overlap (see :mod:`planfreeze.kernels.mma.launch`): before ``route_plan`` stands one that waits
    first or a plain one; ``split_fc2`` follows ``split_fc1``, whose rows it waits for tile by tile; ``micro_fc2``,
    which reads ids, weights and scales before it waits, follows ``micro_act``, and that ``micro_fc1``. That reads the
    same before it waits: between it and what writes its plane stands what writes the other, by a plain launch.
    """
    id_bits = ID_BITS[id_type]
    is_inline = mode is ScaleMode.INLINE
    if choose_backend(sharded, capacity) is Backend.MICRO:
        products = list_micro(sharded, id_bits, is_inline)
    else:
        products = list_grouped(sharded, choose_tile_m(arch, capacity), id_bits, is_inline)
    return (
        Stage(name="act_quant", payload=ActQuantPayload(hidden=sharded.model.hidden)),
        *list_planes(sharded, mode, id_bits),
        *products,
        Stage(name="topk_sum", payload=TopkSumPayload(hidden=sharded.model.hidden, top_k=sharded.model.top_k)),
    )


def list_planes(sharded: ShardedModel, mode: ScaleMode, id_bits: int) -> Iterator[Stage]:
    """List what writes the native planes of a call: nothing where scales are read inline or were never compressed."""
    experts, w13, w2 = sharded.model.experts, describe(w13_geometry(sharded)), describe(w2_geometry(sharded))
    if mode is ScaleMode.EXPAND:
        yield Stage(name="expand_w13", payload=ExpandPayload(experts=experts, **w13))
        yield Stage(name="expand_w2", payload=ExpandPayload(experts=experts, **w2))
    if mode is ScaleMode.DECODE:
        yield Stage(name="csf_presence", payload=CsfPresencePayload(experts=experts, id_bits=id_bits))
        yield Stage(name="csf_decode_w13", payload=CsfDecodePayload(**w13))
        yield Stage(name="csf_decode_w2", payload=CsfDecodePayload(**w2))


def list_micro(sharded: ShardedModel, id_bits: int, is_inline: bool) -> tuple[Stage, ...]:
    """List the products of a direct-route call."""
    model, columns = sharded.model, sharded.intermediate
    fc1 = MicroFc1Payload(
        hidden=model.hidden, intermediate=columns, top_k=model.top_k, id_bits=id_bits, csf_inline=is_inline
    )
    act = MicroActPayload(
        hidden=model.hidden,
        intermediate=columns,
        id_bits=id_bits,
        limit=limit_text(model.activation_limit),
        fast_math=model.fast_math,
    )
    fc2 = MicroFc2Payload(hidden=model.hidden, intermediate=columns, id_bits=id_bits, csf_inline=is_inline)
    return (
        Stage(name="micro_fc1", payload=fc1),
        Stage(name="micro_act", payload=act),
        Stage(name="micro_fc2", payload=fc2),
    )


def list_grouped(sharded: ShardedModel, tile_m: int, id_bits: int, is_inline: bool) -> tuple[Stage, ...]:
    """List the routing and the products of a grouped call."""
    model, columns = sharded.model, sharded.intermediate
    route = RoutePlanPayload(experts=model.experts, top_k=model.top_k, tile_m=tile_m, id_bits=id_bits)
    fc1 = SplitFc1Payload(
        hidden=model.hidden,
        intermediate=columns,
        top_k=model.top_k,
        tile_m=tile_m,
        limit=limit_text(model.activation_limit),
        fast_math=model.fast_math,
        csf_inline=is_inline,
    )
    fc2 = SplitFc2Payload(hidden=model.hidden, intermediate=columns, tile_m=tile_m, csf_inline=is_inline)
    return (
        Stage(name="route_plan", payload=route),
        Stage(name="split_fc1", payload=fc1),
        Stage(name="split_fc2", payload=fc2),
    )


def w13_geometry(sharded: ShardedModel) -> ScaleGeometry:
    """Return the scales of the first projection: one row group of up and one of gate rows."""
    columns = sharded.intermediate
    return ScaleGeometry(rows=2 * columns, columns=sharded.model.hidden // GROUP, group_rows=columns)


def w2_geometry(sharded: ShardedModel) -> ScaleGeometry:
    """Return the scales of the second projection: one row group."""
    hidden = sharded.model.hidden
    return ScaleGeometry(rows=hidden, columns=sharded.intermediate // GROUP, group_rows=hidden)


def describe(geometry: ScaleGeometry) -> dict[str, int]:
    """Return a geometry as the fields of a payload."""
    return {"rows": geometry.rows, "columns": geometry.columns, "group_rows": geometry.group_rows}


def limit_text(limit: float | None) -> str:
    """Write an activation limit as payloads hold it: the shortest text that reads back as the same number."""
    return "" if limit is None else str(float(limit))
