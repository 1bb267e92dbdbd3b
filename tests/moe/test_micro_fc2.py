"""Family micro_fc2: its rules, and the sm_90a cubins."""

import re

import pytest

from planfreeze.dtypes import ITEM_BYTES
from planfreeze.errors import InvalidPayload
from planfreeze.family import family_of
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload, micro_fc2
from planfreeze.target import target

DS41 = {"hidden": 5120, "intermediate": 576}
VARIANTS = [(id_bits, csf_inline) for id_bits in (32, 64) for csf_inline in (False, True)]


def make_payload(**changes):
    return MicroFc2Payload(**{**DS41, "id_bits": 32, **changes})


def compile_variant(compile_cute, *, fresh=0, **changes):
    """Compile a variant for sm_90a."""
    definition = micro_fc2.define(make_payload(**changes), target("sm_90a"))
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    return compile_cute(definition.source, "sm_90a", pointers, 3, fresh)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 5248}, "hidden = 5248 is not a positive multiple of 256"),
        ({"hidden": 0}, "hidden = 0"),
        ({"intermediate": 288}, "intermediate = 288 is not a positive multiple of 64 .remainder 32"),
        ({"intermediate": -64}, "intermediate = -64"),
        ({"id_bits": 16}, "id_bits = 16 is neither 32 nor 64"),
        ({"intermediate": 512, "csf_inline": True}, "intermediate % 128 == 64, here it is 0"),
        ({"hidden": 5120.0}, "is a float"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        make_payload(**changes)


def test_payload_accepts_the_limits():
    for changes in ({"hidden": 256}, {"intermediate": 64}, {"intermediate": 512}):
        assert len(make_payload(**changes).digest) == 64


def test_inline_flag_enters_the_encoding_only_when_set():
    native, inline = make_payload(), make_payload(csf_inline=True)
    assert b"csf_inline" not in native.encode() and b"csf_inline" in inline.encode()
    assert native == make_payload(csf_inline=False) and native != inline
    assert "csf_inline" not in dict(micro_fc2.define(native, target("sm_90a")).source.constants)


def test_payload_finds_its_family():
    assert family_of(make_payload()) is micro_fc2 and micro_fc2.version == 1


@pytest.mark.parametrize(("arch", "row_bytes"), [("sm_90a", 640 + 5 * 16), ("sm_120a", 640 + 5 * 4)])
@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize(("id_bits", "id_type"), [(32, "i32"), (64, "i64")])
def test_arguments_are_the_contract(arch, row_bytes, csf_inline, id_bits, id_type):
    definition = micro_fc2.define(make_payload(id_bits=id_bits, csf_inline=csf_inline), target(arch))
    scalars = {"pairs": 7, "experts": 3, "rows": 48}
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
        ("topk_ids", id_type, 7),
        ("topk_weights", "f32", 7),
        ("alpha", "f32", 3),
        ("route_output", "bf16", 7 * 5120),
    ]
    *tensors, pairs, experts, rows = definition.arguments
    assert [(a.name, a.dtype, a.elements(scalars)) for a in tensors] == expected
    assert all(a.is_pointer for a in tensors)
    alignments = {a.name: a.alignment for a in tensors}
    assert alignments.pop("topk_ids") == ITEM_BYTES[id_type] and alignments.pop("topk_weights") == 4
    assert set(alignments.values()) == {16}
    found = [(a.name, a.dtype, a.is_pointer) for a in (pairs, experts, rows)]
    assert found == [("pairs", "i32", False), ("experts", "i32", False), ("rows", "i32", False)]
    # Fewer rows than pairs: the buffer that would do for so many rows is refused.
    assert tensors[0].elements({**scalars, "rows": 6}) == 7 * row_bytes
    assert definition.source.kernel == f"planfreeze.kernels.moe.micro_fc2_{arch}_cute:MicroFc2"


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_grid_is_the_tasks_or_what_is_resident(arch):
    grid = micro_fc2.define(make_payload(), target(arch)).grid
    assert grid({"pairs": 6, "experts": 384, "rows": 48}, 528) == (240, 1, 1)
    assert grid({"pairs": 48, "experts": 384, "rows": 48}, 528) == (528, 1, 1)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("csf_inline", [False, True])
def test_shared_memory_fits_the_blocks_the_registers_are_limited_for(arch, csf_inline):
    launch = micro_fc2.define(make_payload(csf_inline=csf_inline), target(arch)).source.launch
    reserved = 1024  # per block, by the system (CUDA Programming Guide, technical specifications table)
    assert launch.min_blocks * (launch.shared_bytes + reserved) <= target(arch).sm_shared_bytes


@pytest.mark.parametrize(("id_bits", "csf_inline"), VARIANTS)
def test_sm_90a_code_uses_the_tensor_cores_without_waiting_for_each_product(
    compile_cute, cuobjdump, id_bits, csf_inline
):
    sass = cuobjdump(compile_variant(compile_cute, id_bits=id_bits, csf_inline=csf_inline).cubin, "-sass")
    counts = {name: len(re.findall(name, sass)) for name in ("QGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")}
    # Four groups of two products in a whole step, two in the tail. More pairs than groups would mean that the
    # products are serialised.
    assert counts == {"QGMMA": 12, "WARPGROUP.ARRIVE": 6, "WARPGROUP.DEPBAR": 6}
    assert "QGMMA.64x8x32.F32.E4M3.E4M3" in sass and "UBLKCP" in sass
    assert not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize(("id_bits", "csf_inline"), VARIANTS)
def test_sm_90a_registers_fit_four_blocks(compile_cute, cuobjdump, id_bits, csf_inline):
    usage = cuobjdump(compile_variant(compile_cute, id_bits=id_bits, csf_inline=csf_inline).cubin, "-res-usage")
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    assert registers <= 96 and stack == 0
    (symbol,) = re.findall(r"Function (\S+):", usage)
    assert re.fullmatch(r"kernel_cutlass_kernel_MicroFc2_+0", symbol)


@pytest.mark.parametrize(("intermediate", "products"), [(64, 4), (512, 8)])
def test_sm_90a_code_has_the_steps_its_k_needs(compile_cute, cuobjdump, intermediate, products):
    sass = cuobjdump(compile_variant(compile_cute, intermediate=intermediate).cubin, "-sass")
    assert len(re.findall("QGMMA", sass)) == products


def test_sm_90a_consumers_are_the_same_for_both_storages(compile_cute):
    # Bit identity: from the weight words to the stored row, both kinds of scales meet the same arithmetic.
    def arithmetic(ptx):
        return re.findall(r"wgmma\.mma_async\S*|mul\.rn\.f32|fma\.rn\.f32|cvt\.rn\.bf16\.f32", ptx)

    native, inline = (compile_variant(compile_cute, csf_inline=csf_inline).ptx for csf_inline in (False, True))
    assert arithmetic(native) == arithmetic(inline) and len(arithmetic(native)) > 12


def test_sm_90a_cubin_does_not_depend_on_folder_process_or_hash_seed(compile_cute):
    cubins = [compile_variant(compile_cute, csf_inline=True, fresh=seed).cubin for seed in (0, 1234)]
    assert cubins[0] != cubins[1] and cubins[0].read_bytes() == cubins[1].read_bytes()
    contents = {compile_variant(compile_cute, id_bits=b, csf_inline=i).cubin.read_bytes() for b, i in VARIANTS}
    assert len(contents) == len(VARIANTS)
