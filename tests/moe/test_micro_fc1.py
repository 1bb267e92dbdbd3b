import re
import shutil
from pathlib import Path

import pytest

import planfreeze
from planfreeze.dtypes import ITEM_BYTES
from planfreeze.errors import InvalidPayload
from planfreeze.family import family_of
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload, micro_fc1
from planfreeze.target import target

DS41 = {"hidden": 5120, "intermediate": 576, "top_k": 6}
VARIANTS = tuple((id_bits, csf_inline) for id_bits in (32, 64) for csf_inline in (False, True))


def make_payload(**changes):
    return MicroFc1Payload(**{**DS41, "id_bits": 32, **changes})


def compile_variant(compile_cute, id_bits, csf_inline, **process):
    """Compile a variant for sm_90a."""
    definition = micro_fc1.define(make_payload(id_bits=id_bits, csf_inline=csf_inline), target("sm_90a"))
    pointers = sum(argument.is_pointer for argument in definition.arguments)
    return compile_cute(definition.source, "sm_90a", pointers, 2, **process)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 5248}, "hidden = 5248 is not a positive multiple of 256"),
        ({"hidden": 0}, "hidden = 0"),
        ({"intermediate": 288}, "intermediate = 288 is not a positive multiple of 64 .remainder 32"),
        ({"intermediate": -64}, "intermediate = -64"),
        ({"top_k": 0}, "top_k = 0 is not in 1..32"),
        ({"top_k": 33}, "top_k = 33"),
        ({"id_bits": 16}, "id_bits = 16 is neither 32 nor 64"),
        ({"intermediate": 512, "csf_inline": True}, "intermediate % 128 == 64, here it is 0"),
        ({"hidden": 5120.0}, "is a float"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        make_payload(**changes)


def test_payload_accepts_the_limits():
    for changes in ({"hidden": 256}, {"intermediate": 64}, {"top_k": 1}, {"top_k": 32}, {"intermediate": 512}):
        assert len(make_payload(**changes).digest) == 64


def test_inline_flag_enters_the_encoding_only_when_set():
    native, inline = make_payload(), make_payload(csf_inline=True)
    assert b"csf_inline" not in native.encode() and b"csf_inline" in inline.encode()
    assert native == make_payload(csf_inline=False) and native != inline
    assert "csf_inline" not in dict(micro_fc1.define(native, target("sm_90a")).source.constants)


def test_payload_finds_its_family():
    assert family_of(make_payload()) is micro_fc1 and micro_fc1.version == 2


@pytest.mark.parametrize(("arch", "scale_type"), [("sm_90a", "f32"), ("sm_120a", "u8")])
@pytest.mark.parametrize("csf_inline", [False, True])
@pytest.mark.parametrize(("id_bits", "id_type"), [(32, "i32"), (64, "i64")])
def test_arguments_are_the_contract(arch, scale_type, csf_inline, id_bits, id_type):
    payload = make_payload(id_bits=id_bits, csf_inline=csf_inline)
    definition = micro_fc1.define(payload, target(arch))
    # Seven pairs are two tokens. ds41: 10 row blocks, 40 K tiles.
    scalars = {"pairs": 7, "experts": 3}
    scales = (
        [("tiles", "u8", 3 * 10 * 40 * 96), ("bases", "u8", 3 * 10 * 128), ("raw", "u8", 0)]
        if csf_inline
        else [("scales", "u8", 3 * 1152 * 160)]
    )
    expected = [
        ("a8", "u8", 2 * 5120),
        ("a_scale", scale_type, 2 * 160),
        ("w13", "u8", 3 * 1152 * 2560),
        *scales,
        ("topk_ids", id_type, 7),
        ("projections", "f32", {"sm_90a": 4, "sm_120a": 1}[arch] * 7 * 1152),
    ]
    *tensors, pairs, experts = definition.arguments
    assert [(a.name, a.dtype, a.elements(scalars)) for a in tensors] == expected
    assert all(a.is_pointer for a in tensors)
    alignments = {a.name: a.alignment for a in tensors}
    assert alignments.pop("topk_ids") == ITEM_BYTES[id_type] and set(alignments.values()) == {16}
    assert [(a.name, a.dtype, a.is_pointer) for a in (pairs, experts)] == [
        ("pairs", "i32", False),
        ("experts", "i32", False),
    ]
    assert definition.source.kernel == f"planfreeze.kernels.moe.micro_fc1_{arch}_cute:MicroFc1"


@pytest.mark.parametrize(("arch", "tasks"), [("sm_90a", 9 * 4), ("sm_120a", 10)])
def test_grid_is_the_tasks_or_what_is_resident(arch, tasks):
    grid = micro_fc1.define(make_payload(), target(arch)).grid
    assert grid({"pairs": 6, "experts": 384}, 528) == (6 * tasks, 1, 1)
    assert grid({"pairs": 128, "experts": 384}, 528) == (528, 1, 1)


def test_kernels_are_told_of_parts_where_k_has_several():
    def constants(arch, hidden):
        return dict(micro_fc1.define(make_payload(hidden=hidden), target(arch)).source.constants)

    assert (constants("sm_90a", 5120)["parts"], constants("sm_90a", 768)["parts"]) == (4, 2)
    assert "parts" not in constants("sm_120a", 5120)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("csf_inline", [False, True])
def test_shared_memory_fits_the_blocks_the_registers_are_limited_for(arch, csf_inline):
    launch = micro_fc1.define(make_payload(csf_inline=csf_inline), target(arch)).source.launch
    reserved = 1024  # per block, by the system (CUDA Programming Guide, technical specifications table)
    assert launch.min_blocks * (launch.shared_bytes + reserved) <= target(arch).sm_shared_bytes


@pytest.mark.parametrize(("id_bits", "csf_inline"), VARIANTS)
def test_sm_90a_code_uses_the_tensor_cores_without_waiting_for_each_product(
    compile_cute, cuobjdump, id_bits, csf_inline
):
    sass = cuobjdump(compile_variant(compile_cute, id_bits, csf_inline).cubin, "-sass")
    counts = {name: len(re.findall(name, sass)) for name in ("QGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR")}
    # Four groups of two products. More pairs than groups would mean that the products are serialised.
    assert counts == {"QGMMA": 8, "WARPGROUP.ARRIVE": 4, "WARPGROUP.DEPBAR": 4}
    assert "QGMMA.64x8x32.F32.E4M3.E4M3" in sass and "UBLKCP" in sass
    assert not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize(("id_bits", "csf_inline"), VARIANTS)
def test_sm_90a_registers_fit_four_blocks(compile_cute, cuobjdump, id_bits, csf_inline):
    usage = cuobjdump(compile_variant(compile_cute, id_bits, csf_inline).cubin, "-res-usage")
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    assert registers <= 96 and stack == 0
    (symbol,) = re.findall(r"Function (\S+):", usage)
    assert re.fullmatch(r"kernel_cutlass_kernel_MicroFc1_+0", symbol)


def test_cubins_do_not_depend_on_path_process_or_hash_seed(compile_cute, tmp_path):
    package = Path(planfreeze.__file__).parent
    shutil.copytree(package, tmp_path / "planfreeze", ignore=shutil.ignore_patterns("__pycache__"))
    contents = set()
    for variant in VARIANTS:
        here = compile_variant(compile_cute, *variant).cubin
        elsewhere = compile_variant(compile_cute, *variant, fresh=1234, root=tmp_path).cubin
        assert here != elsewhere and here.read_bytes() == elsewhere.read_bytes()
        contents.add(here.read_bytes())
    assert len(contents) == len(VARIANTS)
