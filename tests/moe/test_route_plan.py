"""Family route_plan: sizes, the torch reference against plain loops, and the compiled kernels on the CPU against it."""

import re

import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.moe.reference_routes import plan_routes
from planfreeze.kernels.moe.route_plan import RoutePlanPayload, route_plan, shared_bytes
from planfreeze.kernels.moe.routing import COUNTER_START, COUNTS, max_m_tiles, rows_cap
from planfreeze.target import ARCHS, target

from .route_calls import OUTPUTS, POISON, Call, random_ids


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(
    ("pairs", "experts", "tile_m", "id_bits"),
    [
        (1, 384, 16, 32),
        (31, 3, 8, 64),
        (384, 384, 16, 32),
        (1023, 1, 32, 32),
        (1024, 33, 8, 32),
        (1025, 896, 8, 64),
        (3000, 1024, 32, 32),
        (2500, 32, 16, 64),
    ],
)
def test_compiled_kernel_equals_the_reference(
    monkeypatch, ptx_machine, compile_cute, arch, pairs, experts, tile_m, id_bits
):
    invalid = 0.0 if pairs == 1 else 0.1
    call = Call(random_ids(pairs, experts, pairs, invalid), experts=experts, tile_m=tile_m, id_bits=id_bits, arch=arch)
    call.check(call.run(monkeypatch, ptx_machine, compile_cute))


@pytest.mark.parametrize("grid", [1, 2, 5, 40])
def test_every_grid_gives_the_same_plan(monkeypatch, ptx_machine, compile_cute, grid):
    # One block places three times 1024 pairs; of forty, the last have none.
    call = Call(random_ids(2100, 40, 1), experts=40, tile_m=8)
    call.check(call.run(monkeypatch, ptx_machine, compile_cute, grid=grid))


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("grid", [1, 3])
def test_warps_that_run_far_apart_give_the_same_plan(monkeypatch, ptx_machine, compile_cute, grid, is_reversed):
    call = Call(random_ids(2100, 40, 2), experts=40, tile_m=16, id_bits=64)
    call.check(call.run(monkeypatch, ptx_machine, compile_cute, grid=grid, is_serial=True, is_reversed=is_reversed))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_block_without_pairs_describes_its_experts(monkeypatch, ptx_machine, compile_cute, is_reversed):
    # The third block has the experts from 64 on.
    call = Call([70, 1], experts=80, tile_m=8)
    call.check(call.run(monkeypatch, ptx_machine, compile_cute, grid=3, is_serial=True, is_reversed=is_reversed))


@pytest.mark.parametrize(
    "ids",
    [
        [-1] * 70,
        [5] * 1100,
        [0] * 16 + [4] * 17 + [2] * 15,
        [7, 3] * 600,
        [0],
        [8],
    ],
    ids=["all invalid", "one expert", "around whole tiles", "two experts", "one pair", "one invalid pair"],
)
@pytest.mark.parametrize("id_bits", [32, 64])
def test_edges_of_routings(monkeypatch, ptx_machine, compile_cute, ids, id_bits):
    call = Call(ids, experts=8, tile_m=16, id_bits=id_bits)
    found = call.run(monkeypatch, ptx_machine, compile_cute)
    call.check(found)
    if min(ids) < 0:
        assert found["tile_count"][0] == 0


def test_ids_whose_low_word_is_an_expert_are_invalid(monkeypatch, ptx_machine, compile_cute):
    call = Call([1, 2**32 + 1, 1 - 2**32, 2**63 - 1, -(2**63), 1], experts=8, tile_m=8, id_bits=64)
    found = call.run(monkeypatch, ptx_machine, compile_cute)
    call.check(found)
    assert found["token_map"][:3].tolist() == [0, 5, -1]


def test_call_without_pairs_writes_that_there_are_no_tiles(monkeypatch, ptx_machine, compile_cute):
    call = Call([], experts=8, tile_m=8)
    found = call.run(monkeypatch, ptx_machine, compile_cute)
    assert found["tile_count"][:COUNTS].tolist() == [0, COUNTER_START, 0]
    assert (found["tile_count"][COUNTS:] == POISON).all()
    assert all((found[name] == POISON).all() for name in OUTPUTS[:4])


def test_most_pairs_of_a_call(monkeypatch, ptx_machine, compile_cute):
    call = Call(random_ids(65536, 896, 4, invalid=0.01), experts=896, tile_m=32, hidden=8)
    call.check(call.run(monkeypatch, ptx_machine, compile_cute, grid=2))


@pytest.mark.parametrize("tile_m", [8, 16, 32])
def test_reference_groups_by_expert_in_pair_order(tile_m):
    ids = random_ids(300, 9, 5).view(50, 6)
    weights = torch.rand(50, 6, generator=torch.Generator().manual_seed(6))
    plan = plan_routes(ids, weights, 9, tile_m, 64)
    assert len(plan.token_map) == rows_cap(64 * 6, experts=9, tile_m=tile_m) == tile_m * len(plan.tile_expert)
    row = tile = 0
    for expert in range(9):
        pairs = [pair for pair, found in enumerate(ids.flatten().tolist()) if found == expert]
        for first in range(0, len(pairs), tile_m):
            group = pairs[first : first + tile_m]
            rest = tile_m - len(group)
            assert plan.token_map[row : row + tile_m].tolist() == group + [-1] * rest
            assert plan.row_weight[row : row + tile_m].tolist() == weights.flatten()[group].tolist() + [0.0] * rest
            assert (int(plan.tile_expert[tile]), int(plan.tile_valid[tile])) == (expert, len(group))
            row, tile = row + tile_m, tile + 1
    assert int(plan.tile_count[0]) == tile
    assert (plan.token_map[row:] == -1).all() and (plan.tile_valid[tile:] == 0).all()


@pytest.mark.parametrize(
    ("capacity", "m_tiles", "rows"),
    [(64, 407, 6512), (128, 431, 6896), (512, 575, 9200), (1536, 959, 15344), (4096, 1919, 30704)],
)
def test_sizes_of_a_capacity(capacity, m_tiles, rows):
    assert max_m_tiles(6 * capacity, experts=384, tile_m=16) == m_tiles
    assert rows_cap(6 * capacity, experts=384, tile_m=16) == rows


@pytest.mark.parametrize("tile_m", [8, 16, 32])
def test_no_routing_exceeds_the_bound(tile_m):
    for experts in (1, 3, 10):
        bounds = [max_m_tiles(pairs, experts=experts, tile_m=tile_m) for pairs in range(200)]
        assert bounds == sorted(bounds)
        for pairs, bound in enumerate(bounds):
            # The most tiles: one pair for every expert, the rest for the last.
            lone = min(experts, pairs)
            most = max((n - 1 + -((n - 1 - pairs) // tile_m) for n in range(1, lone + 1)), default=0)
            assert most <= bound


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize("id_bits", [32, 64])
def test_cubin_holds_its_values_in_registers(compile_cute, cuobjdump, arch, id_bits):
    definition = route_plan.define(RoutePlanPayload(experts=384, top_k=6, tile_m=16, id_bits=id_bits), target(arch))
    assert isinstance(definition.source, CuteSource)
    compiled = compile_cute(definition.source, arch, 8, 4)
    sass = cuobjdump(compiled.cubin, "-sass")
    assert not re.search(r"\b(LDL|STL)\b", sass) and "MATCH.ANY" in sass
    # A counter of one address is one access for the whole warp.
    assert len(re.findall(r"ATOMS\.POPC\.INC", sass)) == 8
    usage = re.search(r"REG:(\d+) STACK:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None and int(usage[2]) == 0 and int(usage[1]) <= 64


def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute):
    source = route_plan.define(RoutePlanPayload(experts=384, top_k=6, tile_m=16, id_bits=32), target("sm_90a")).source
    first, second = (compile_cute(source, "sm_90a", 8, 4, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()


@pytest.mark.parametrize("arch", list(ARCHS))
def test_arguments_cover_what_the_kernel_touches(arch):
    payload = RoutePlanPayload(experts=384, top_k=6, tile_m=16, id_bits=64)
    assert family_of(payload) is route_plan and route_plan.version == 1
    definition = route_plan.define(payload, target(arch))
    scalars = {"pairs": 384, "hidden": 5120, "rows": 6512, "m_tiles": 407}
    sizes = [(a.name, a.dtype, a.elements(scalars), a.alignment) for a in definition.arguments if a.elements]
    assert sizes == [
        ("topk_ids", "i64", 384, 8),
        ("topk_weights", "f32", 384, 4),
        ("token_map", "i32", 6512, 16),
        ("row_weight", "f32", 6512, 16),
        ("tile_expert", "i32", 407, 16),
        ("tile_valid", "i32", 407, 16),
        ("tile_count", "i32", 410, 16),
        ("route_output", "bf16", 384 * 5120, 16),
    ]
    assert [a.name for a in definition.arguments if not a.is_pointer] == ["pairs", "hidden", "rows", "m_tiles"]
    # Buffers that the worst routing of so many pairs does not fit are refused.
    short = {**scalars, "pairs": 385}
    assert [a.elements(short) for a in definition.arguments[2:7]] == [6528, 6528, 408, 408, 411]
    pairs = (0, 1, 3072, 3073, 65536)
    assert [definition.grid({"pairs": count}, 40)[0] for count in pairs] == [6, 6, 6, 7, 40]
    assert shared_bytes(1024) <= target(arch).max_shared_bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"experts": 0}, "experts = 0 is not in 1..1024"),
        ({"experts": 1025}, "experts = 1025"),
        ({"top_k": 33}, "top_k = 33 is not in 1..32"),
        ({"tile_m": 64}, "tile_m = 64 is none of 8, 16, 32"),
        ({"id_bits": 16}, "id_bits = 16 is neither 32 nor 64"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        RoutePlanPayload(**{"experts": 384, "top_k": 6, "tile_m": 16, "id_bits": 32, **changes})
