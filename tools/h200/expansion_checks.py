"""Checks of the expansion of inline scales on a device."""

from typing import Any

import torch
from checks import DEVICE, POISON, generator, require
from torch import Tensor

from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.kernels.scales.synthetic import synthetic_scales
from planfreeze.sessions import Session


def check_expand(session: Session, payload: ExpandPayload) -> dict[str, Any]:
    """Expand over a target filled with 0xFF; the native plane comes back byte for byte."""
    plane = native_plane(payload.geometry, synthetic_scales(payload.geometry, payload.experts, generator(1)))
    inline = encode(payload.geometry, plane)
    expand(session, payload, inline, found := torch.full_like(plane, POISON))
    require(torch.equal(found, plane), "the expanded plane is not the native plane")
    headers = inline.parts()[0].view(-1, 96)[:, 64:68].contiguous().view(torch.int32)
    records = int(((headers > 0) & (headers < 8)).sum())
    require(inline.raw_tiles > 0 and records > 0, "the data has no raw tile or no exception record")
    return {"compared_with": "native plane", "raw_tiles": inline.raw_tiles, "tiles_with_records": records}


def check_wide_expand(session: Session, payload: ExpandPayload) -> dict[str, Any]:
    """Expand a plane of more than 2^31 bytes, of one constant: offsets are 64 bits wide."""
    geometry, experts = payload.geometry, payload.experts
    storage = torch.zeros(geometry.inline_bytes(experts), dtype=torch.uint8, device=DEVICE)
    inline = InlineScales(geometry=geometry, experts=experts, storage=storage, raw_tiles=0)
    inline.parts()[1].fill_(127)
    found = torch.full((experts, geometry.native_bytes(1)), POISON, dtype=torch.uint8, device=DEVICE)
    require(found.numel() > 2**31, "the plane has no offset beyond 2^31")
    expand(session, payload, inline, found)
    wrong = sum(int((part != 127).sum()) for part in found.split(1024))
    require(wrong == 0, f"{wrong} bytes of the wide plane are not 127")
    return {"compared_with": "constant plane", "plane_bytes": found.numel()}


def expand(session: Session, payload: ExpandPayload, inline: InlineScales, native: Tensor) -> None:
    """Launch one expansion."""
    tiles = payload.experts * payload.geometry.tiles
    session.program(payload).bind(inline.storage, native, tiles).launch()
    torch.cuda.synchronize()
