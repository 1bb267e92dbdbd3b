"""Family split_fc2: its rules, and the sm_90a cubins."""

import re

import pytest

from planfreeze.errors import InvalidPayload
from planfreeze.family import family_of
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload, pipeline_sm_90a, split_fc2
from planfreeze.target import target

DS41 = {"hidden": 5120, "intermediate": 576}
VARIANTS = [(tile_m, csf_inline) for tile_m in (8, 16, 32) for csf_inline in (False, True)]


def make_payload(**changes):
    return SplitFc2Payload(**{**DS41, "tile_m": 16, **changes})


def compile_variant(compile_cute, *, fresh=0, **changes):
    """Compile a variant for sm_90a."""
    definition = split_fc2.define(make_payload(**changes), target("sm_90a"))
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    return compile_cute(definition.source, "sm_90a", pointers, 4, fresh)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 5248}, "hidden = 5248 is not a positive multiple of 256"),
        ({"hidden": 0}, "hidden = 0"),
        ({"intermediate": 288}, "intermediate = 288 is not a positive multiple of 64 .remainder 32"),
        ({"intermediate": -64}, "intermediate = -64"),
        ({"tile_m": 24}, "tile_m = 24 is not 8, 16 or 32"),
        ({"intermediate": 512, "csf_inline": True}, "intermediate % 128 == 64, here it is 0"),
        ({"hidden": 5120.0}, "is a float"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        make_payload(**changes)


def test_payload_accepts_the_limits():
    for changes in ({"hidden": 256}, {"intermediate": 64}, {"intermediate": 512}, {"tile_m": 8}, {"tile_m": 32}):
        assert len(make_payload(**changes).digest) == 64


@pytest.mark.parametrize("tile_m", [8, 32])
def test_sm_120a_has_tiles_of_16_rows_only(tile_m):
    assert split_fc2.define(make_payload(), target("sm_120a"))
    with pytest.raises(InvalidPayload, match=f"tile_m = {tile_m} is not 16 on sm_120a"):
        split_fc2.define(make_payload(tile_m=tile_m), target("sm_120a"))


def test_inline_flag_enters_the_encoding_only_when_set():
    native, inline = make_payload(), make_payload(csf_inline=True)
    assert b"csf_inline" not in native.encode() and b"csf_inline" in inline.encode()
    assert native == make_payload(csf_inline=False) and native != inline
    assert "csf_inline" not in dict(split_fc2.define(native, target("sm_90a")).source.constants)


def test_payload_finds_its_family():
    assert family_of(make_payload()) is split_fc2 and split_fc2.version == 1


@pytest.mark.parametrize(("arch", "row_bytes"), [("sm_90a", 640 + 5 * 16), ("sm_120a", 640 + 5 * 4)])
@pytest.mark.parametrize("csf_inline", [False, True])
def test_arguments_are_the_contract(arch, row_bytes, csf_inline):
    definition = split_fc2.define(make_payload(csf_inline=csf_inline), target(arch))
    scalars = {"pairs": 7, "experts": 3, "rows": 48, "m_tiles": 3}
    # ds41: 40 row blocks, 5 K tiles.
    scales = (
        [("tiles", "u8", 3 * 40 * 5 * 96), ("bases", "u8", 3 * 40 * 128), ("raw", "u8", 0)]
        if csf_inline
        else [("scales", "u8", 3 * 5120 * 18)]
    )
    expected = [
        ("intermediate", "u8", 48 * row_bytes),
        ("w2", "u8", 3 * 5120 * 288),
        *scales,
        ("token_map", "i32", 48),
        ("row_weight", "f32", 48),
        ("tile_expert", "i32", 3),
        ("tile_valid", "i32", 3),
        ("tile_count", "i32", 6),
        ("alpha", "f32", 3),
        ("route_output", "bf16", 7 * 5120),
    ]
    tensors, words = definition.arguments[:-4], definition.arguments[-4:]
    assert [(a.name, a.dtype, a.elements(scalars)) for a in tensors] == expected
    assert all(a.is_pointer for a in tensors)
    tables = {"tile_expert", "tile_valid", "tile_count"}
    assert {a.name: a.alignment for a in tensors} == {a.name: 4 if a.name in tables else 16 for a in tensors}
    assert [(a.name, a.dtype, a.is_pointer) for a in words] == [
        (name, "i32", False) for name in ("pairs", "experts", "rows", "m_tiles")
    ]
    # Fewer rows than the tiles have: the buffers that would do for so many rows are refused.
    assert tensors[0].elements({**scalars, "rows": 47}) == 48 * row_bytes
    assert definition.source.kernel == f"planfreeze.kernels.moe.split_fc2_{arch}_cute:SplitFc2"
    assert dict(definition.source.constants)["tile_m"] == 16


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_grid_is_the_tasks_or_what_is_resident(arch):
    grid = split_fc2.define(make_payload(), target(arch)).grid
    scalars = {"pairs": 6, "experts": 384, "rows": 96}
    assert grid({**scalars, "m_tiles": 6}, 528) == (240, 1, 1)
    assert grid({**scalars, "m_tiles": 407}, 528) == (528, 1, 1)


@pytest.mark.parametrize(("arch", "tile_m"), [("sm_90a", 8), ("sm_90a", 16), ("sm_90a", 32), ("sm_120a", 16)])
@pytest.mark.parametrize("csf_inline", [False, True])
def test_shared_memory_fits_the_blocks_the_registers_are_limited_for(arch, tile_m, csf_inline):
    launch = split_fc2.define(make_payload(tile_m=tile_m, csf_inline=csf_inline), target(arch)).source.launch
    reserved = 1024  # per block, by the system (CUDA Programming Guide, technical specifications table)
    assert launch.min_blocks * (launch.shared_bytes + reserved) <= target(arch).sm_shared_bytes


@pytest.mark.parametrize(("tile_m", "csf_inline"), VARIANTS)
def test_sm_90a_operands_start_at_whole_swizzle_patterns(compile_cute, tile_m, csf_inline):
    pipeline = pipeline_sm_90a(tile_m=tile_m, csf_inline=csf_inline)
    assert pipeline.stage_bytes % 1024 == 0 and pipeline.activations % 1024 == 0
    assert pipeline.landed + 8 <= pipeline.stage_bytes
    # Shared memory itself starts at one: the kernel does not align it.
    assert ".extern .shared .align 1024" in compile_variant(compile_cute, tile_m=tile_m, csf_inline=csf_inline).ptx


@pytest.mark.parametrize(("tile_m", "csf_inline"), VARIANTS)
def test_sm_90a_code_uses_the_tensor_cores_without_waiting_for_each_product(
    compile_cute, cuobjdump, tile_m, csf_inline
):
    sass = cuobjdump(compile_variant(compile_cute, tile_m=tile_m, csf_inline=csf_inline).cubin, "-sass")
    counts = {name: len(re.findall(name, sass)) for name in ("QGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")}
    # Two products for each K32 group of a whole step and of the tail, for every width of the tile. They are one group
    # up to 8 rows, of a tile of 32 up to 16, else each is. For 24 and 32 rows steps are multiplied in halves. More
    # pairs than groups would mean that the products are serialised.
    products, groups, ends = {8: (12, 6, 2), 16: (24, 18, 4), 32: (40, 28, 8)}[tile_m]
    assert counts == {"QGMMA": products, "WARPGROUP.ARRIVE": groups, "WARPGROUP.DEPBAR": groups}
    widths = {int(found) for found in re.findall(r"QGMMA\.64x(\d+)x32\.F32\.E4M3\.E4M3", sass)}
    assert widths == {8: {8}, 16: {8, 16}, 32: {8, 16, 24, 32}}[tile_m]
    # All but the last group of a step are waited for with one more in flight.
    assert len(re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", sass)) == groups - ends
    assert "UBLKCP" in sass and not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize(("tile_m", "csf_inline"), VARIANTS)
def test_sm_90a_registers_fit_the_blocks_wanted(compile_cute, cuobjdump, tile_m, csf_inline):
    usage = cuobjdump(compile_variant(compile_cute, tile_m=tile_m, csf_inline=csf_inline).cubin, "-res-usage")
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    # Five warps a block: 3 blocks leave at most four warps for a quarter of the registers of an SM, 4 blocks five.
    assert registers <= (128 if tile_m == 32 else 96) and stack == 0
    (symbol,) = re.findall(r"Function (\S+):", usage)
    assert re.fullmatch(r"kernel_cutlass_kernel_SplitFc2_+0", symbol)


# Whole steps alone are multiplied in halves where 9 to 16 rows are valid.
@pytest.mark.parametrize(("intermediate", "products"), [(64, 8), (512, 12)])
def test_sm_90a_code_has_the_steps_its_k_needs(compile_cute, cuobjdump, intermediate, products):
    sass = cuobjdump(compile_variant(compile_cute, intermediate=intermediate).cubin, "-sass")
    assert len(re.findall("QGMMA", sass)) == products


@pytest.mark.parametrize("intermediate", [64, 256, 1152])
@pytest.mark.parametrize("tile_m", [16, 32])
def test_sm_90a_code_spills_nothing_however_many_its_steps_are(compile_cute, cuobjdump, tile_m, intermediate):
    cubin = compile_variant(compile_cute, tile_m=tile_m, intermediate=intermediate).cubin
    assert not re.search(r"\b(LDL|STL)\b", cuobjdump(cubin, "-sass"))


@pytest.mark.parametrize("tile_m", [8, 16, 32])
def test_sm_90a_consumers_are_the_same_for_both_storages(compile_cute, tile_m):
    # Bit identity: from the weight words to the stored row, both kinds of scales meet the same arithmetic.
    def arithmetic(ptx):
        return re.findall(r"wgmma\.mma_async\S*|mul\.rn\.f32|fma\.rn\.f32|cvt\.rn\.bf16\.f32", ptx)

    native, inline = (
        compile_variant(compile_cute, tile_m=tile_m, csf_inline=csf_inline).ptx for csf_inline in (False, True)
    )
    # Four rows of every result column: three factors each in the epilogue.
    columns = tile_m // 4
    assert arithmetic(native) == arithmetic(inline)
    assert arithmetic(native).count("cvt.rn.bf16.f32") == 4 * columns
    # For every width: K32 groups of a step and of the tail, of 24 and 32 rows two of each.
    results = {8: 6 * 2, 16: 6 * (2 + 4), 32: 6 * (2 + 4) + 4 * (6 + 8)}[tile_m]
    assert arithmetic(native).count("fma.rn.f32") == 4 * results


def test_sm_90a_cubin_does_not_depend_on_folder_process_or_hash_seed(compile_cute):
    cubins = [compile_variant(compile_cute, csf_inline=True, fresh=seed).cubin for seed in (0, 1234)]
    assert cubins[0] != cubins[1] and cubins[0].read_bytes() == cubins[1].read_bytes()
    contents = {compile_variant(compile_cute, tile_m=m, csf_inline=i).cubin.read_bytes() for m, i in VARIANTS}
    assert len(contents) == len(VARIANTS)
