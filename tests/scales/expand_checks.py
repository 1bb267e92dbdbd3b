"""Checks of the expansion that do not care how the kernel is launched.

Run with ``TRITON_INTERPRET=1`` the file launches through Triton's interpreter, on the CPU, and prints what it found
as JSON, one line for each plane: ``python tests/scales/expand_checks.py EXPERTS,ROWS,COLUMNS,GROUP_ROWS,ROTATION...``.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from planfreeze.family import Definition
from planfreeze.kernels.scales.expand import ExpandPayload, expand
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.synthetic import synthetic_scales
from planfreeze.target import target

Launch = Callable[[ExpandPayload, Tensor, Tensor, int], None]
"""Runs the program of a payload on ``storage, native, tiles`` and waits for it."""

POISON = 0xFF


def compare_expansion(
    launch: Launch, payload: ExpandPayload, *, rotation: int = 0, device: str = "cpu", seed: int = 1
) -> dict[str, object]:
    """Expand synthetic scales over poison. ``is_equal``: the result is the native plane, byte for byte."""
    geometry, experts = payload.geometry, payload.experts
    scales = synthetic_scales(geometry, experts, torch.Generator(device=device).manual_seed(seed))
    plane = native_plane(geometry, scales, rotation=rotation)
    inline = encode(geometry, plane)
    expanded = torch.full_like(plane, POISON)
    launch(payload, inline.storage, expanded, experts * geometry.tiles)
    headers = inline.parts()[0].view(torch.int32).view(-1, 24)[:, 16]
    return {
        "is_equal": torch.equal(expanded, plane),
        "raw_tiles": inline.raw_tiles,
        "record_counts": sorted(set(headers[headers >= 0].tolist())),
        "wrong_bytes": int((expanded != plane).sum()),
    }


def compare_wide_offsets(launch: Launch, *, device: str = "cuda") -> dict[str, object]:
    """Expand a plane of more than 2^31 bytes, all of them 127. Takes 2.6 GB of device memory."""
    payload = ExpandPayload(experts=32769, rows=128, columns=512, group_rows=128)
    geometry = payload.geometry
    plane = torch.full((payload.experts, geometry.native_bytes(1)), 127, dtype=torch.uint8, device=device)
    inline = encode(geometry, plane)
    plane.fill_(POISON)
    launch(payload, inline.storage, plane, payload.experts * geometry.tiles)
    wrong = sum(int((part != 127).sum()) for part in plane.split(1024))
    return {"is_equal": wrong == 0, "wrong_bytes": wrong, "native_bytes": plane.numel()}


def interpret(payload: ExpandPayload, storage: Tensor, native: Tensor, tiles: int) -> None:
    """Launch as the family says, through Triton's interpreter."""
    definition: Definition = expand.define(payload, target("sm_90a"))
    module, _, attribute = definition.source.kernel.partition(":")
    kernel = getattr(import_module(module), attribute)
    kernel[definition.grid({"tiles": tiles}, 0)](storage, native, tiles, **dict(definition.source.constants))


def main(arguments: list[str]) -> None:
    for argument in arguments:
        experts, rows, columns, group_rows, rotation = map(int, argument.split(","))
        payload = ExpandPayload(experts=experts, rows=rows, columns=columns, group_rows=group_rows)
        sys.stdout.write(json.dumps(compare_expansion(interpret, payload, rotation=rotation)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
