"""Family ``expand``: payload, launch rules, machine code, and results through Triton's interpreter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planfreeze.elf import read_cubin
from planfreeze.errors import InvalidPayload
from planfreeze.family import Definition, TritonSource, family_of
from planfreeze.kernels.scales.expand import ExpandPayload, expand
from planfreeze.key import source_roots
from planfreeze.sources import read_sources
from planfreeze.target import ARCHS, target

CHECKS = Path(__file__).with_name("expand_checks.py")
DS41_W13 = ExpandPayload(experts=384, rows=1152, columns=160, group_rows=576)
DS41_W2 = ExpandPayload(experts=384, rows=5120, columns=18, group_rows=5120)
KIMI_W13 = ExpandPayload(experts=896, rows=384, columns=112, group_rows=192)
KIMI_W2 = ExpandPayload(experts=896, rows=3584, columns=6, group_rows=3584)
BOTH_TAILS = ExpandPayload(experts=3, rows=640, columns=10, group_rows=320)


def define(payload: ExpandPayload) -> Definition:
    return expand.define(payload, target("sm_90a"))


# Experts, rows, columns, rows of a group, rotation.
LAYERS = [
    (3, 1152, 160, 576, 576),
    (3, 1152, 160, 576, 0),
    (3, 5120, 18, 5120, 0),
    (3, 384, 112, 192, 192),
    (3, 3584, 6, 3584, 0),
]
# One tile, two tiles, both tails, a part of the last block, no tails.
SMALL = [(1, 64, 2, 64, 0), (1, 64, 6, 64, 0), (1, 448, 10, 448, 0), (2, 640, 10, 320, 0), (3, 256, 8, 128, 0)]


@pytest.fixture(scope="module")
def interpreted() -> dict[tuple[int, ...], Any]:
    """Run the kernel in a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    planes = [*LAYERS, *SMALL]
    command = [sys.executable, str(CHECKS), *(",".join(map(str, sizes)) for sizes in planes)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(planes, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_expansion_gives_the_native_plane(interpreted: dict[tuple[int, ...], Any], sizes: tuple[int, ...]) -> None:
    found = interpreted[sizes]
    assert found["wrong_bytes"] == 0
    assert found["is_equal"]
    assert found["raw_tiles"] > 0
    assert any(1 <= count <= 7 for count in found["record_counts"])


@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_expansion_of_small_planes(interpreted: dict[tuple[int, ...], Any], sizes: tuple[int, ...]) -> None:
    found = interpreted[sizes]
    assert found["wrong_bytes"] == 0
    assert found["is_equal"]


def test_arguments_in_order() -> None:
    found = [(a.name, a.dtype, a.is_pointer, a.alignment) for a in define(DS41_W13).arguments]
    assert found == [("storage", "u8", True, 16), ("native", "u8", True, 16), ("tiles", "i32", False, 1)]


@pytest.mark.parametrize(
    ("payload", "tiles", "blocks", "storage_bytes", "native_bytes"),
    [
        (DS41_W13, 153_600, 19_200, 15_237_120, 70_778_880),
        (DS41_W2, 76_800, 9_600, 9_338_880, 35_389_440),
        (BOTH_TAILS, 54, 7, 54 * 96 + 18 * 128, 3 * 6400),
    ],
)
def test_launch_rules(payload: ExpandPayload, tiles: int, blocks: int, storage_bytes: int, native_bytes: int) -> None:
    definition = define(payload)
    storage, native, _ = definition.arguments
    assert payload.experts * payload.geometry.tiles == tiles
    assert definition.grid({"tiles": tiles}, 0) == (blocks, 1, 1)
    assert storage.elements({"tiles": tiles}) == storage_bytes
    assert native.elements({"tiles": tiles}) == native_bytes


def test_more_tiles_than_the_plane_has_are_refused() -> None:
    _, native, tiles = define(BOTH_TAILS).arguments
    assert native.elements({"tiles": 1}) == 3 * 6400
    assert tiles.maximum == 3 * BOTH_TAILS.geometry.tiles


def test_the_source_is_named_by_geometry_alone() -> None:
    source = define(DS41_W2).source
    assert isinstance(source, TritonSource)
    assert dict(source.constants) == DS41_W2.to_fields()
    assert source.num_warps == 4
    assert family_of(DS41_W2) is expand


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((8, 256, 8, 96), "group_rows = 96 is not a multiple of 64"),
        ((8, 128, 7, 128), "columns = 7 is odd"),
        ((0, 128, 8, 128), "experts = 0 with 2 tiles each"),
        ((2**30, 128, 8, 128), "experts = 1073741824 with 2 tiles each: not 1..2147483640 tiles"),
    ],
)
def test_geometries_that_name_no_program(sizes: tuple[int, int, int, int], reason: str) -> None:
    experts, rows, columns, group_rows = sizes
    with pytest.raises(InvalidPayload, match=reason):
        ExpandPayload(experts=experts, rows=rows, columns=columns, group_rows=group_rows)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "payload", [DS41_W13, DS41_W2, KIMI_W13, KIMI_W2, BOTH_TAILS], ids=lambda p: f"{p.rows}x{p.columns}"
)
def test_machine_code_moves_whole_vectors(
    payload: ExpandPayload, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planfreeze.compilers.assignments import KeyedText
    from planfreeze.compilers.triton import compile_program

    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    definition = expand.define(payload, target(arch))
    text = KeyedText(read_sources(source_roots(expand, definition)))
    program = compile_program(definition.source, definition.arguments, target(arch), text)
    (kernel,) = read_cubin(program.cubin).kernels
    assert (kernel.stack_bytes, program.launch.shared_bytes) == (0, 0)
    # 40 registers leave an SM of 65536 twelve blocks of 128 threads.
    assert kernel.registers <= 40
    operations = disassemble(program.cubin, tmp_path)
    assert not [op for op in operations if op.startswith(("LDL", "STL", "LDS", "STS"))]
    has_column_tail = payload.geometry.has_column_tail
    widths = ["STG.E.128", *(["STG.E.64"] if has_column_tail else [])] * 2
    stores = [op for op in operations if op.startswith("STG")]
    assert sorted(stores[:-1]) == sorted(widths)
    assert stores[-1] == "STG.E.U8"
    barrier = next(i for i, op in enumerate(operations) if op.startswith("BAR.SYNC"))
    assert [op for op in operations[barrier:] if op.startswith("STG")] == ["STG.E.U8"]


def disassemble(cubin: bytes, folder: Path) -> list[str]:
    """Return the operations of a cubin in order, without predicates and operands."""
    import triton

    file = folder / "program.cubin"
    file.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    listing = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", listing, re.MULTILINE)
