"""Family csf_decode: rules, and compiled kernels run on the CPU against the torch reference."""

import re
from functools import cache

import numpy as np
import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.scales import csf_batch
from planfreeze.kernels.scales import csf_decode as family_module
from planfreeze.kernels.scales.csf_batch import CsfBatch, decode, encode, tasks_per_expert
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload, csf_decode
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.synthetic import synthetic_scales
from planfreeze.target import ARCHS, target

from .slow_warps import POISON, extended


@cache
def make_batch(rows: int, columns: int, group_rows: int, experts: int = 3) -> CsfBatch:
    """Encode random planes with exceptions on both sides of every border of regions, and dense ones in one region."""
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    plane = native_plane(geometry, synthetic_scales(geometry, experts, torch.Generator().manual_seed(7)))
    size = geometry.native_bytes(1)
    for border in range(0, size + 1, csf_batch.TASK_BYTES):
        for offset in (border - 1, border):
            if 0 <= offset < size:
                plane[1, offset] = 3
    plane[1, size - 1] = 247
    # More exceptions in a region than a block has threads.
    plane[2, : size // 2 : 7] = 9
    return encode(geometry, plane)


def run_decode(monkeypatch, machine, compile_once, batch, present, *, arch, grid=None, is_serial=False, reverse=False):
    """Run the compiled kernel over poisoned planes."""
    geometry = batch.geometry
    payload = CsfDecodePayload(rows=geometry.rows, columns=geometry.columns, group_rows=geometry.group_rows)
    definition = csf_decode.define(payload, target(arch))
    assert isinstance(definition.source, CuteSource)
    native = np.full((batch.experts, geometry.native_bytes(1)), POISON, np.uint8)
    # Bytes of absent experts may be anything: they are not even read.
    parts = [batch.bases, batch.selectors, batch.exceptions.view(torch.int32), batch.task_offsets]
    arrays = [*(part.numpy() for part in parts), np.array(present, np.uint8), native]
    scalars = {"experts": batch.experts}
    for array, argument in zip(arrays, definition.arguments, strict=False):
        assert argument.elements(scalars) in (array.size, 0), argument.name
    memory = machine.Memory()
    addresses = [memory.put(array) for array in arrays]
    kernel = machine.Kernel(compile_once(definition.source, arch, 6, 1).ptx)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "Block", extended(machine, is_reversed=reverse))
        blocks = grid or definition.grid(scalars, 5)[0]
        kernel.run(memory, [*addresses, batch.experts], grid=blocks, block=256, is_serial=is_serial)
    return memory.get(addresses[-1], native)


def check(found, batch, present):
    expected = decode(batch).numpy()
    for expert, is_present in enumerate(present):
        wanted = expected[expert] if is_present else POISON
        assert (found[expert] == wanted).all(), f"{int((found[expert] != wanted).sum())} bytes of expert {expert}"


GEOMETRIES = [
    (64, 2, 64),
    (64, 6, 64),
    (448, 10, 448),
    (256, 8, 128),
    (384, 112, 192),
    (640, 26, 320),
    (2048, 18, 2048),
]
"""No whole column, a tile and a tail, both tails, no tails, groups of rows, regions that end inside a tail."""


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(("rows", "columns", "group_rows"), GEOMETRIES)
def test_compiled_kernel_decodes_what_the_reference_does(
    monkeypatch, ptx_machine, compile_cute, arch, rows, columns, group_rows
):
    batch = make_batch(rows, columns, group_rows)
    present = (1, 1, 1)
    check(run_decode(monkeypatch, ptx_machine, compile_cute, batch, present, arch=arch), batch, present)


@pytest.mark.parametrize(("rows", "columns", "group_rows"), [(1152, 160, 576), (5120, 18, 5120)])
def test_planes_of_a_real_layer(monkeypatch, ptx_machine, compile_cute, rows, columns, group_rows):
    batch = make_batch(rows, columns, group_rows)
    per_region = batch.task_offsets.diff(dim=1)
    assert int(per_region[1].min()) >= 2 and int(per_region.max()) > 256
    present = (0, 1, 1)
    check(run_decode(monkeypatch, ptx_machine, compile_cute, batch, present, arch="sm_90a", grid=4), batch, present)


@pytest.mark.parametrize("present", [(0, 0, 0), (0, 1, 0), (1, 0, 255)])
def test_absent_experts_keep_their_bytes(monkeypatch, ptx_machine, compile_cute, present):
    batch = make_batch(640, 26, 320)
    check(run_decode(monkeypatch, ptx_machine, compile_cute, batch, present, arch="sm_90a"), batch, present)


@pytest.mark.parametrize("grid", [1, 2, 9, 20])
def test_every_grid_decodes_the_same(monkeypatch, ptx_machine, compile_cute, grid):
    # Nine regions: of twenty blocks, eleven have none.
    batch = make_batch(640, 26, 320)
    assert 3 * tasks_per_expert(batch.geometry) == 9
    present = (1, 0, 1)
    check(run_decode(monkeypatch, ptx_machine, compile_cute, batch, present, arch="sm_90a", grid=grid), batch, present)


@pytest.mark.parametrize("reverse", [False, True])
def test_exceptions_are_written_last(monkeypatch, ptx_machine, compile_cute, reverse):
    batch = make_batch(2048, 18, 2048)
    found = run_decode(
        monkeypatch, ptx_machine, compile_cute, batch, (1, 1, 1), arch="sm_90a", is_serial=True, reverse=reverse
    )
    check(found, batch, (1, 1, 1))


def test_batch_without_exceptions_reads_none(monkeypatch, ptx_machine, compile_cute):
    geometry = ScaleGeometry(rows=192, columns=6, group_rows=192)
    batch = encode(geometry, torch.full((2, geometry.native_bytes(1)), 247, dtype=torch.uint8))
    assert not len(batch.exceptions)
    check(run_decode(monkeypatch, ptx_machine, compile_cute, batch, (1, 1), arch="sm_90a"), batch, (1, 1))


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(
    "payload",
    [
        CsfDecodePayload(rows=1152, columns=160, group_rows=576),
        CsfDecodePayload(rows=5120, columns=18, group_rows=5120),
    ],
    ids=lambda payload: f"{payload.rows}x{payload.columns}",
)
def test_decoding_moves_whole_vectors_between_registers(compile_cute, cuobjdump, arch, payload):
    source = csf_decode.define(payload, target(arch)).source
    assert isinstance(source, CuteSource)
    compiled = compile_cute(source, arch, 6, 1)
    sass = cuobjdump(compiled.cubin, "-sass")
    assert not re.search(r"\b(LDL|STL|LDS|STS)\b", sass)
    # Two vectors of each thread, then an exception, then those beyond one for each thread.
    stores = re.findall(r"\b(STG\.E\S*|BAR\.SYNC)", sass)
    assert stores[:3] == ["STG.E.128", "STG.E.128", "BAR.SYNC"] and set(stores[3:]) == {"STG.E.U8"}
    # 32 registers leave an SM of 65536 eight blocks of 256 threads, all it can hold.
    usage = re.search(r"REG:(\d+) STACK:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None and int(usage[1]) <= 32 and int(usage[2]) == 0


@pytest.mark.parametrize(
    "payload",
    [CsfDecodePayload(rows=5120, columns=18, group_rows=5120), CsfPresencePayload(experts=384, id_bits=32)],
    ids=lambda payload: payload.family_name,
)
def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute, payload):
    definition = family_of(payload).define(payload, target("sm_90a"))
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    first, second = (compile_cute(definition.source, "sm_90a", pointers, 1, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()


@pytest.mark.parametrize(
    ("sizes", "tasks"), [((1152, 160, 576), 23), ((5120, 18, 5120), 12), ((384, 112, 192), 6), ((64, 2, 64), 1)]
)
def test_decoding_takes_the_parts_of_a_batch(sizes, tasks):
    rows, columns, group_rows = sizes
    payload = CsfDecodePayload(rows=rows, columns=columns, group_rows=group_rows)
    assert family_of(payload) is csf_decode and csf_decode.version == 1
    assert payload.tasks == tasks == tasks_per_expert(payload.geometry)
    assert (family_module.TASK_BYTES, family_module.MAX_NATIVE_BYTES) == (
        csf_batch.TASK_BYTES,
        csf_batch.MAX_NATIVE_BYTES,
    )
    definition = csf_decode.define(payload, target("sm_90a"))
    found = [(a.name, a.dtype, a.elements({"experts": 3}), a.alignment) for a in definition.arguments if a.elements]
    size = rows * columns
    assert found == [
        ("bases", "u8", 3 * rows, 16),
        ("selectors", "u8", 3 * size // 8, 16),
        ("exceptions", "i32", 0, 4),
        ("task_offsets", "i64", 3 * (tasks + 1), 8),
        ("presence", "u8", 3, 1),
        ("native", "u8", 3 * size, 16),
    ]
    assert [definition.grid({"experts": 3}, resident)[0] for resident in (2, 1000)] == [2, 3 * tasks]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: CsfDecodePayload(rows=256, columns=8, group_rows=96), "group_rows = 96 is not a multiple of 64"),
        (lambda: CsfDecodePayload(rows=128, columns=7, group_rows=128), "columns = 7 is odd"),
        (lambda: CsfDecodePayload(rows=2**17, columns=128, group_rows=2**17), "16777216 scales, not below 2.24"),
        (lambda: CsfPresencePayload(experts=0, id_bits=32), "experts = 0 is not in 1..65536"),
        (lambda: CsfPresencePayload(experts=8, id_bits=16), "id_bits = 16 is neither 32 nor 64"),
    ],
)
def test_payloads_refuse_what_no_kernel_has(make, reason):
    with pytest.raises(InvalidPayload, match=reason):
        make()
