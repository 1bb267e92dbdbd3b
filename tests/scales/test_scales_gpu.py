"""Scales on a CUDA device: the same bytes as on the CPU, and nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import decode, encode
from planfreeze.kernels.scales.native import logical_scales, native_plane, staged_tiles
from planfreeze.kernels.scales.synthetic import synthetic_scales

pytestmark = pytest.mark.gpu

CASES = [
    (1152, 160, 576, 576),
    (1152, 160, 576, 0),
    (5120, 18, 5120, 0),
    (384, 112, 192, 192),
    (3584, 6, 3584, 0),
]


@pytest.mark.parametrize(("rows", "columns", "group_rows", "rotation"), CASES)
def test_the_device_encodes_the_same_bytes(rows: int, columns: int, group_rows: int, rotation: int) -> None:
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    scales = synthetic_scales(geometry, 40, torch.Generator().manual_seed(5))
    plane = native_plane(geometry, scales, rotation=rotation)
    on_device = native_plane(geometry, scales.cuda(), rotation=rotation)
    assert torch.equal(on_device.cpu(), plane)
    assert torch.equal(logical_scales(geometry, on_device, rotation=rotation).cpu(), scales.clamp(max=247))
    assert torch.equal(staged_tiles(geometry, on_device).cpu(), staged_tiles(geometry, plane))
    expected, inline = encode(geometry, plane), encode(geometry, on_device)
    assert inline.raw_tiles == expected.raw_tiles
    assert torch.equal(inline.storage.cpu(), expected.storage)
    assert torch.equal(decode(inline, first=1, last=3).cpu(), plane[1:3])


def test_encoding_keeps_only_the_storage() -> None:
    geometry = ScaleGeometry(rows=5120, columns=18, group_rows=5120)
    generator = torch.Generator(device="cuda").manual_seed(5)
    plane = native_plane(geometry, synthetic_scales(geometry, 384, generator))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    inline = encode(geometry, plane)
    size_bytes = -(-inline.storage.numel() // 512) * 512
    assert torch.cuda.memory_allocated() == allocated + size_bytes
    torch.cuda.empty_cache()
    # A large allocation is at most rounded up to 2 MiB, or opens one 20 MiB segment.
    assert torch.cuda.memory_reserved() - reserved <= max(size_bytes + 2 * 2**20, 20 * 2**20)


def test_prepared_layers_strand_few_pages() -> None:
    script = Path(__file__).with_name("stranded_pages.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["stranded_mib"] < found["limit_mib"] == 40
