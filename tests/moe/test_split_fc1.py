"""Family split_fc1: its rules, and the code of its sm_90a kernel."""

import re

import pytest

from planfreeze.errors import InvalidPayload
from planfreeze.family import family_of
from planfreeze.kernels.moe.geometry import intermediate_bytes
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload, pipeline_sm_90a, split_fc1, warpgroups_sm_90a
from planfreeze.target import target

DS41 = {"hidden": 5120, "intermediate": 576, "top_k": 6, "tile_m": 8}
TILE_ROWS = (8, 16, 32)
NARROW = "planfreeze.kernels.moe.split_fc1_sm_90a_cute:SplitFc1"
WIDE = "planfreeze.kernels.moe.split_fc1_wide_sm_90a_cute:WideSplitFc1"


def make_payload(**changes):
    return SplitFc1Payload(**{**DS41, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 5248}, "hidden = 5248 is not a positive multiple of 256"),
        ({"hidden": 0}, "hidden = 0"),
        ({"intermediate": 288}, "intermediate = 288 is not a positive multiple of 64 .remainder 32"),
        ({"intermediate": -64}, "intermediate = -64"),
        ({"top_k": 0}, "top_k = 0 is not in 1..32"),
        ({"top_k": 33}, "top_k = 33"),
        ({"tile_m": 24}, "tile_m = 24 is none of 8, 16 and 32"),
        ({"limit": "7"}, "limit = '7' is not a finite positive f32"),
        ({"limit": "0.0"}, "limit = '0.0'"),
        ({"intermediate": 512, "csf_inline": True}, "intermediate % 128 == 64, here it is 0"),
        ({"hidden": 5120.0}, "is a float"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        make_payload(**changes)


def test_flags_enter_the_encoding_only_when_set():
    plain = make_payload()
    for name, value in (("limit", "7.0"), ("fast_math", True), ("csf_inline", True)):
        changed = make_payload(**{name: value})
        assert name.encode() not in plain.encode() and name.encode() in changed.encode()
        assert plain != changed
        assert name not in dict(split_fc1.define(plain, target("sm_90a")).source.constants)
        assert dict(split_fc1.define(changed, target("sm_90a")).source.constants)[name] == value


def test_payload_finds_its_family():
    assert family_of(make_payload()) is split_fc1 and split_fc1.version == 1


@pytest.mark.parametrize("tile_m", [8, 32])
def test_sm_120a_has_sixteen_rows_only(tile_m):
    with pytest.raises(InvalidPayload, match=f"tile_m = {tile_m} on sm_120a, which has 16"):
        split_fc1.define(make_payload(tile_m=tile_m), target("sm_120a"))


@pytest.mark.parametrize(("arch", "scale_type"), [("sm_90a", "f32"), ("sm_120a", "u8")])
@pytest.mark.parametrize("csf_inline", [False, True])
def test_arguments_are_the_contract(arch, scale_type, csf_inline):
    definition = split_fc1.define(make_payload(tile_m=16, csf_inline=csf_inline), target(arch))
    # ds41: 10 row blocks, 40 K tiles.
    scalars = {"tokens": 7, "experts": 3, "rows": 100, "m_tiles": 5}
    scales = (
        [("tiles", "u8", 3 * 10 * 40 * 96), ("bases", "u8", 3 * 10 * 128), ("raw", "u8", 0)]
        if csf_inline
        else [("scales", "u8", 3 * 1152 * 160)]
    )
    expected = [
        ("a8", "u8", 7 * 5120),
        ("a_scale", scale_type, 7 * 160),
        ("w13", "u8", 3 * 1152 * 2560),
        *scales,
        ("token_map", "i32", 100),
        ("tile_expert", "i32", 5),
        ("tile_valid", "i32", 5),
        ("tile_count", "i32", 8),
        ("alpha", "f32", 3),
        ("intermediate", "u8", intermediate_bytes(arch, 100, 576)),
    ]
    tensors, values = definition.arguments[:-4], definition.arguments[-4:]
    assert [(a.name, a.dtype, a.elements(scalars)) for a in tensors] == expected
    assert all(a.is_pointer and a.alignment == 16 for a in tensors)
    assert [(a.name, a.dtype, a.is_pointer) for a in values] == [
        (name, "i32", False) for name in ("tokens", "experts", "rows", "m_tiles")
    ]
    # Fewer rows than the m tiles have do not make the buffers smaller.
    sizes = {a.name: a.elements({**scalars, "rows": 79}) for a in tensors}
    assert sizes["token_map"] == 80 and sizes["intermediate"] == intermediate_bytes(arch, 80, 576)
    assert definition.source.kernel == f"planfreeze.kernels.moe.split_fc1_{arch}_cute:SplitFc1"


@pytest.mark.parametrize(("intermediate", "tile_m", "kernel"), [(576, 16, NARROW), (576, 32, WIDE), (320, 32, NARROW)])
def test_many_rows_are_multiplied_by_three_warpgroups_where_that_divides_the_tiles(intermediate, tile_m, kernel):
    definition = split_fc1.define(make_payload(intermediate=intermediate, tile_m=tile_m), target("sm_90a"))
    assert definition.source.kernel == kernel
    scalars = {"tokens": 8, "experts": 384, "rows": 640, "m_tiles": 20}
    assert definition.grid(scalars, 528) == (20 * (intermediate // 64) // (3 if kernel == WIDE else 1), 1, 1)


@pytest.mark.parametrize(("arch", "tiles"), [("sm_90a", 9), ("sm_120a", 5)])
def test_grid_is_the_tasks_or_what_is_resident(arch, tiles):
    grid = split_fc1.define(make_payload(tile_m=16), target(arch)).grid
    scalars = {"tokens": 8, "experts": 384, "rows": 640, "m_tiles": 40}
    assert grid(scalars, 528) == (40 * tiles, 1, 1)
    assert grid(scalars, 100) == (100, 1, 1)


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("tile_m", TILE_ROWS)
def test_shared_memory_fits_the_blocks_the_registers_are_limited_for(tile_m, csf_inline):
    arch = target("sm_90a")
    launch = split_fc1.define(make_payload(tile_m=tile_m, csf_inline=csf_inline), arch).source.launch
    reserved = 1024  # per block, by the system (CUDA Programming Guide, technical specifications table)
    assert launch.min_blocks == (1 if tile_m == 32 else 4)
    assert launch.min_blocks * (launch.shared_bytes + reserved) <= arch.sm_shared_bytes


def test_shared_memory_of_sm_120a_fits_two_blocks():
    arch = target("sm_120a")
    launch = split_fc1.define(make_payload(tile_m=16), arch).source.launch
    assert launch.min_blocks == 2 and launch.shared_bytes == 22656 and launch.block == (128, 1, 1)
    assert 2 * (launch.shared_bytes + 1024) <= arch.sm_shared_bytes


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("tile_m", TILE_ROWS)
def test_parts_of_a_stage_are_aligned_and_apart(tile_m, csf_inline):
    warpgroups = warpgroups_sm_90a(tile_m=tile_m, intermediate=576)
    pipeline = pipeline_sm_90a(tile_m=tile_m, csf_inline=csf_inline, warpgroups=warpgroups)
    assert pipeline.activations % 1024 == pipeline.stage_bytes % 1024 == 0
    assert pipeline.task == pipeline.activation_scales + 16 * tile_m and pipeline.full == pipeline.task + 16
    assert pipeline.task % 16 == pipeline.full % 8 == pipeline.exchange % 16 == 0
    assert pipeline.landed + 8 <= pipeline.stage_bytes
    # A float per consumer thread and half of its sums.
    assert pipeline.block_bytes - pipeline.exchange == warpgroups * 4 * 128 * tile_m // 2


@pytest.fixture
def compiled(compile_cute):
    """Return a function that compiles a variant once."""

    def compile_variant(tile_m, csf_inline):
        definition = split_fc1.define(make_payload(tile_m=tile_m, csf_inline=csf_inline), target("sm_90a"))
        pointers = sum(argument.is_pointer for argument in definition.arguments)
        return compile_cute(definition.source, "sm_90a", pointers, 4)

    return compile_variant


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize("tile_m", TILE_ROWS)
def test_sm_90a_code_uses_the_tensor_cores_without_waiting_for_each_product(compiled, cuobjdump, tile_m, csf_inline):
    made = compiled(tile_m, csf_inline)
    # The swizzle follows address bits.
    assert re.search(r"\.extern \.shared \.align 1024 ", made.ptx)
    sass = cuobjdump(made.cubin, "-sass")
    counts = {name: len(re.findall(name, sass)) for name in ("QGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")}
    # Two products for each K32 group of a step, for every width of the tile. They are one group up to 8 rows, of a tile
    # of 32 up to 16, else each is. More pairs than groups would mean that the products are serialised.
    products, groups, widths = {
        8: (8, 4, {8}),
        16: (16, 12, {8, 16}),
        32: (32, 24, {8, 16, 24, 32}),
    }[tile_m]
    assert counts == {"QGMMA": products, "WARPGROUP.ARRIVE": groups, "WARPGROUP.DEPBAR": groups}
    assert {int(width) for width in re.findall(r"QGMMA\.64x(\d+)x32\.F32\.E4M3\.E4M3", sass)} == widths
    # All but the last are waited for with one more in flight.
    assert len(re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", sass)) == groups - len(widths)
    assert not re.search(r"\b(LDL|STL)\b", sass)
    # A row of 16-byte chunks per quarter of a warp, and the scales of a row per lane.
    copies = tile_m // 4 + -(-tile_m // 32)
    assert "UBLKCP" in sass and len(re.findall(r"LDGSTS\.E\.BYPASS\.LTC128B\.128", sass)) == copies


@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize(("tile_m", "limit"), [(8, 96), (16, 96), (32, 128)])
def test_sm_90a_registers_fit_the_blocks(compiled, cuobjdump, tile_m, limit, csf_inline):
    usage = cuobjdump(compiled(tile_m, csf_inline).cubin, "-res-usage")
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    # A quarter of an SM, 16384 registers, gets 5 warps of four blocks, or 4 of one.
    assert registers <= limit and stack == 0
    (symbol,) = re.findall(r"Function (\S+):", usage)
    kernel = "WideSplitFc1" if tile_m == 32 else "SplitFc1"
    assert re.fullmatch(rf"kernel_cutlass_kernel_{kernel}_+0", symbol)


@pytest.mark.parametrize("csf_inline", [False, True])
def test_sm_90a_registers_of_32_rows_fit_three_blocks_of_one_warpgroup(compile_cute, cuobjdump, csf_inline):
    payload = make_payload(intermediate=320, tile_m=32, csf_inline=csf_inline)
    definition = split_fc1.define(payload, target("sm_90a"))
    launch = definition.source.launch
    assert launch.min_blocks == 3 and 3 * (launch.shared_bytes + 1024) <= target("sm_90a").sm_shared_bytes
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    usage = cuobjdump(compile_cute(definition.source, "sm_90a", pointers, 4).cubin, "-res-usage")
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    # A quarter of an SM gets 4 of their 15 warps.
    assert registers <= 128 and stack == 0
