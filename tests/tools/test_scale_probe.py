"""The scale probes: built like any family, and their compiled PTX run on the CPU against the native plane."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from msgspec.structs import asdict

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import InvalidPayload, InvalidScales
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import InlineScales, decode, encode
from planfreeze.kernels.scales.native import native_plane, staged_tiles
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.target import target

from ..moe import ptx_machine

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tools"))
scale_probe = import_module("probes.scale_probe")
expectations = import_module("probes.expectations")

ARCH = target("sm_90a")
# Experts are few where the machine is slow: planes of 40 K tiles.
GEOMETRIES = [
    (ScaleGeometry(rows=1152, columns=160, group_rows=576), 1),
    (ScaleGeometry(rows=5120, columns=18, group_rows=5120), 1),
    (ScaleGeometry(rows=384, columns=112, group_rows=192), 1),
    (ScaleGeometry(rows=3584, columns=6, group_rows=3584), 3),
    (ScaleGeometry(rows=640, columns=32, group_rows=320), 3),
]
COMPILE = """
import importlib, json, os, pathlib, sys
os.environ["CUTE_DSL_ARCH"] = "sm_90a"
from cutlass import Int32, Int64, cute
from cutlass.cute.runtime import make_fake_stream
from planfreeze.family import LaunchInfo
for name, source in json.loads(sys.stdin.read()).items():
    module, _, attribute = source["kernel"].partition(":")
    launch = LaunchInfo(block=tuple(source["block"]), shared_bytes=source["shared_bytes"])
    kernel = getattr(importlib.import_module(module), attribute)(launch=launch, **source["constants"])
    zeros = [Int64(0)] * source["pointers"] + [Int32(0)]
    ptx = cute.compile(kernel, *zeros, make_fake_stream(), options="--keep-cubin --keep-ptx").artifacts.PTX
    pathlib.Path(name).write_text(ptx if isinstance(ptx, str) else ptx.decode())
"""


def payloads_of(geometry: ScaleGeometry) -> dict[str, Payload]:
    sizes = asdict(geometry)
    return {
        "words 0": scale_probe.ScaleWordsPayload(**sizes, copy_thread=0),
        "words 32": scale_probe.ScaleWordsPayload(**sizes, copy_thread=32),
        "planes native": scale_probe.ScalePlanesPayload(**sizes, is_inline=False),
        "planes inline": scale_probe.ScalePlanesPayload(**sizes, is_inline=True),
    }


ALL_PAYLOADS = tuple(payload for geometry, _ in GEOMETRIES for payload in payloads_of(geometry).values())


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The PTX of every probe by payload digest, compiled in one child process."""
    folder = tmp_path_factory.mktemp("probes")
    requests = {}
    for payload in ALL_PAYLOADS:
        definition = family_of(payload).define(payload, ARCH)
        assert isinstance(definition.source, CuteSource)
        requests[payload.digest] = {
            "kernel": definition.source.kernel,
            "constants": dict(definition.source.constants),
            "block": definition.source.launch.block,
            "shared_bytes": definition.source.launch.shared_bytes,
            "pointers": sum(argument.is_pointer for argument in definition.arguments),
        }
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tools'}"}
    command = [sys.executable, "-c", COMPILE]
    subprocess.run(command, input=json.dumps(requests), text=True, cwd=folder, env=environment, check=True)
    return {digest: (folder / digest).read_text() for digest in requests}


@pytest.fixture(scope="module")
def machine() -> Iterator[ModuleType]:
    """The CPU's PTX machine, taught what one whole warp does together."""

    class WarpBlock(ptx_machine.Block):
        def execute(self, instruction, active):
            op, args = instruction.op, instruction.operands
            if op[0] == "vote" or op[:3] == ["shfl", "sync", "idx"]:
                assert self.threads == 32 and active.all(), f"divergent {instruction.text}"
            if op[0] == "vote":
                assert op[2] == "any"
                self.set(args[0], np.full(32, self.value(args[1], 1).any(), np.uint64), active, 1)
            elif op[:3] == ["shfl", "sync", "idx"]:
                lanes = self.value(args[2], 32).astype(int)
                assert (lanes < 32).all()
                self.set(args[0].partition("|")[0], self.value(args[1], 32)[lanes], active, 32)
            else:
                super().execute(instruction, active)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptx_machine, "Block", WarpBlock)
        yield ptx_machine


@pytest.fixture(scope="module", params=GEOMETRIES, ids=lambda given: f"{given[0].rows}x{given[0].columns}")
def stored(request: pytest.FixtureRequest) -> tuple[ScaleGeometry, torch.Tensor, InlineScales]:
    geometry, experts = request.param
    scales = expectations.probe_scales(geometry, experts, torch.Generator().manual_seed(geometry.rows))
    plane = native_plane(geometry, scales)
    inline = encode(geometry, plane)
    headers = inline.parts()[0].view(torch.int32).view(-1, 24)[:, 16]
    kinds = set(headers.clamp(min=-1).tolist())
    assert kinds == {-1, *range(8)}
    return geometry, plane, inline


def run(machine: ModuleType, ptx: dict[str, str], payload: Payload, storage, output, total: int, blocks: int = 3):
    """Run one probe over ``blocks`` blocks and return its output, filled with poison before."""
    definition = family_of(payload).define(payload, ARCH)
    scalars = {definition.arguments[-1].name: total}
    memory = machine.Memory()
    arrays = [*(part.numpy() for part in storage), output]
    needed = [argument.elements(scalars) for argument in definition.arguments if argument.elements]
    assert all(size <= array.size for size, array in zip(needed, arrays, strict=True))
    addresses = [memory.put(array) for array in arrays]
    launch = definition.source.launch
    grid = definition.grid(scalars, blocks)
    assert grid == (blocks, 1, 1)
    kernel = machine.Kernel(re.sub(r"bar\.warp\.sync[^;]*;", "bar.sync 0;", ptx[payload.digest]))
    kernel.run(memory, [*addresses, total], grid=blocks, block=launch.block[0], shared_bytes=launch.shared_bytes)
    return memory.get(addresses[-1], output)


def test_words_of_every_tile_are_those_a_native_stage_holds(machine, ptx, stored):
    geometry, plane, inline = stored
    expected = expectations.expected_words(geometry, plane).numpy()
    for copier in ("words 0", "words 32"):
        poison = np.full(expected.shape, -1, np.int32)
        found = run(machine, ptx, payloads_of(geometry)[copier], inline.parts(), poison, len(expected))
        np.testing.assert_array_equal(found, expected)


def test_planes_of_both_storages_are_the_scales_of_the_native_plane(machine, ptx, stored):
    geometry, plane, inline = stored
    expected = expectations.expected_planes(geometry, plane).numpy().view(np.int32)
    payloads = payloads_of(geometry)
    for payload, storage in (("planes native", (plane,)), ("planes inline", inline.parts())):
        poison = np.full(expected.shape, -1, np.int32)
        found = run(machine, ptx, payloads[payload], storage, poison, len(expected))
        np.testing.assert_array_equal(found, expected)


def test_a_wrong_storage_byte_changes_the_output(machine, ptx):
    geometry, experts = GEOMETRIES[4]
    scales = expectations.probe_scales(geometry, experts, torch.Generator().manual_seed(1))
    plane = native_plane(geometry, scales)
    inline = encode(geometry, plane)
    tiles, bases, raw = (part.clone() for part in inline.parts())
    bases[5] ^= 1
    expected = expectations.expected_words(geometry, plane).numpy()
    poison = np.full(expected.shape, -1, np.int32)
    payload = payloads_of(geometry)["words 0"]
    found = run(machine, ptx, payload, (tiles, bases, raw), poison, len(expected))
    # Slot 5 of the first row block is row 9; other rows are untouched.
    assert set(np.argwhere(found != expected)[:, 1]) == {9}
    assert np.argwhere(found != expected)[:, 0].max() < geometry.k_tiles


@pytest.mark.parametrize(("geometry", "experts"), GEOMETRIES, ids=lambda given: str(getattr(given, "rows", given)))
def test_expectations_say_what_the_geometry_says(geometry, experts):
    plane = torch.randint(0, 248, (experts, geometry.native_bytes(1)), dtype=torch.uint8)
    words = expectations.expected_words(geometry, plane)
    planes = expectations.expected_planes(geometry, plane)
    slots = staged_tiles(geometry, plane).view(torch.int32).view(-1, 4, 8, 4)
    # Slot 32*warp + 4*quad + nt holds row 32*warp + 8*nt + quad.
    assert torch.equal(slots.transpose(2, 3).reshape(-1, 128), words)
    expert, k_tile, pair_rows = experts - 1, geometry.k_tiles - 1, geometry.rows // 2
    halves = min(geometry.group_rows, pair_rows) // 64
    for half_tile in (0, 1, halves - 1):
        stage = (expert * halves + half_tile) * geometry.k_tiles + k_tile
        for group, row in ((0, 0), (1, 9), (1, 63)):
            slot = 64 * group + {0: 0, 9: 5, 63: 63}[row]
            for column in range(4):
                value = planes[stage, column, slot].item()
                if 4 * k_tile + column < geometry.columns:
                    offset = geometry.offset(group * pair_rows + 64 * half_tile + row, 4 * k_tile + column)
                    byte = int(plane[expert, offset])
                    assert value == (2.0 ** (byte - 127) if byte else 0.0)
                else:
                    assert value == 0.0


def test_the_probes_build_like_any_family_and_use_no_local_memory(tmp_path):
    plan = Plan(model="probes", tp=1, target=ARCH, payloads=ALL_PAYLOADS)
    store = Store.open(tmp_path / "store", writable=True)
    report = build_plans([plan], store, jobs=1, toolchains=tmp_path / "toolchains")
    assert [outcome.reason for outcome in report.outcomes if outcome.record is None] == []
    assert {outcome.record.stack_bytes for outcome in report.outcomes} == {0}
    (frozen,) = report.plans
    assert {family.reference for family in frozen.families} == {
        "probes.scale_probe:scale_words",
        "probes.scale_probe:scale_planes",
    }


def test_inline_storage_of_one_group_is_that_of_its_two_halves(stored):
    geometry, plane, inline = stored
    paired = scale_probe.paired_geometry(geometry.rows, geometry.columns, geometry.group_rows)
    assert paired.groups == 2 and paired.row_blocks == geometry.row_blocks
    halved = InlineScales(geometry=paired, experts=inline.experts, storage=inline.storage, raw_tiles=inline.raw_tiles)
    assert torch.equal(decode(halved), plane)


def test_payloads_out_of_range_are_refused():
    sizes = {"rows": 384, "columns": 112, "group_rows": 192}
    with pytest.raises(InvalidPayload):
        scale_probe.ScaleWordsPayload(**sizes, copy_thread=123)
    with pytest.raises(InvalidScales):
        scale_probe.ScaleWordsPayload(**{**sizes, "columns": 5}, copy_thread=0)
    for rows, group_rows in ((384, 128), (384, 384), (192, 192)):
        with pytest.raises(InvalidPayload):
            scale_probe.ScalePlanesPayload(rows=rows, columns=112, group_rows=group_rows, is_inline=True)
