"""Checks of the scale rebuilds: what a kernel makes of stored scales equals what the native plane says."""

from typing import Any

import torch
from checks import DEVICE, generator, require
from probes.expectations import expected_planes, expected_words, probe_scales
from probes.scale_probe import ScalePlanesPayload, ScaleWordsPayload

from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.sessions import Session

EXPERTS = 3


def make_scales(payload: ScaleWordsPayload | ScalePlanesPayload) -> tuple[ScaleGeometry, torch.Tensor, InlineScales]:
    """Make scales with 0 to 7 records in a tile, and raw tiles, in both forms."""
    geometry = ScaleGeometry(rows=payload.rows, columns=payload.columns, group_rows=payload.group_rows)
    plane = native_plane(geometry, probe_scales(geometry, EXPERTS, generator(5)))
    inline = encode(geometry, plane)
    require(inline.raw_tiles > 0, "the data has no raw tile")
    return geometry, plane, inline


def check_words(session: Session, payload: ScaleWordsPayload) -> dict[str, Any]:
    """Rebuild every tile's words per thread; they equal the staged native words."""
    geometry, plane, inline = make_scales(payload)
    expected = expected_words(geometry, plane)
    found = torch.full_like(expected, -1)
    session.program(payload).bind(*inline.parts(), found, EXPERTS * geometry.tiles).launch()
    torch.cuda.synchronize()
    require(torch.equal(found, expected), f"{int((found != expected).sum())} words differ from the native ones")
    return {"compared_with": "native words", "tiles": EXPERTS * geometry.tiles}


def check_planes(session: Session, native: ScalePlanesPayload, inline: ScalePlanesPayload) -> dict[str, Any]:
    """Rebuild every stage's fp32 plane from both forms; both equal the native plane's scales."""
    geometry, plane, storage = make_scales(native)
    expected = expected_planes(geometry, plane)
    for payload, scales in ((native, (plane,)), (inline, storage.parts())):
        found = torch.full(expected.shape, torch.nan, device=DEVICE)
        session.program(payload).bind(*scales, found, len(expected)).launch()
        torch.cuda.synchronize()
        different = int((found.view(torch.int32) != expected.view(torch.int32)).sum())
        require(different == 0, f"{different} scales of {payload} differ")
    return {"compared_with": "native scales", "stages": len(expected)}
