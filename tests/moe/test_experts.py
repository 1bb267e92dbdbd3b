"""Weight preparation: planes, the form of the scales, factors, what is refused, memory, and the speed on a device."""

import gc
import statistics
import time
from typing import Any

import pytest
import torch
from msgspec.structs import asdict, replace
from torch import Tensor

from planfreeze.errors import InvalidExperts, NanScale, UndecodedScales, UnknownArch, UnsupportedGeometry
from planfreeze.kernels.moe import experts as preparation
from planfreeze.kernels.moe.experts import PreparedExperts, select_scales
from planfreeze.kernels.moe.weights import unpack_w2, unpack_w13
from planfreeze.kernels.scales import inline
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.native import logical_scales, native_plane
from planfreeze.kernels.scales.pools import ScratchPool
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.kernels.scales.synthetic import synthetic_scales
from planfreeze.target import ARCHS

from .expert_sources import ARMS, EXPERTS, FORMS, HIDDEN, Sources, geometries, make_sources, native_planes


@pytest.fixture(scope="module")
def sources() -> Sources:
    return make_sources(192)


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize("order", ["up_gate", "gate_up"])
@pytest.mark.parametrize("arm", list(ARMS))
def test_both_source_orders_of_every_arm_give_the_layer_back(sources: Sources, arm: str, order: str, arch: str) -> None:
    given = sources if order == "up_gate" else sources.gate_first()
    kept = {name: tensor.clone() for name, tensor in asdict(given).items()}
    made = given.prepare(arm, arch, source_order=order)
    assert (made.arch, made.arm, made.experts, made.hidden, made.intermediate) == (arch, arm, EXPERTS, HIDDEN, 192)
    assert made.is_inline == (arm == "inline")
    assert torch.equal(unpack_w13(made.w13, arch, hidden=HIDDEN, intermediate=192), sources.w13)
    assert torch.equal(unpack_w2(made.w2, arch, hidden=HIDDEN, intermediate=192), sources.w2)
    assert isinstance(made.w13_scales, FORMS[arm]) and isinstance(made.w2_scales, FORMS[arm])
    for plane, geometry, source in zip(
        native_planes(made), geometries(HIDDEN, 192), (sources.w13_scales, sources.w2_scales), strict=True
    ):
        assert torch.equal(logical_scales(geometry, plane), source.clamp(max=247))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in asdict(given).items())


@pytest.mark.parametrize(
    ("intermediate", "options", "arm"),
    [
        (192, ARMS["inline"], "inline"),
        (192, ARMS["expand"], "expand"),
        (192, ARMS["native"], "native"),
        (192, {"weight_format": "mxfp4", "is_csf_inline": False}, "native"),
        (256, ARMS["inline"], "expand"),
        (256, ARMS["expand"], "expand"),
        (256, ARMS["native"], "native"),
        (64, ARMS["inline"], "inline"),
    ],
)
def test_the_rules_choose_the_form(intermediate: int, options: dict[str, Any], arm: str) -> None:
    made = make_sources(intermediate).prepare("native", **options)
    assert made.arm == arm
    assert {type(made.w13_scales), type(made.w2_scales)} == {FORMS[arm]}


def test_the_form_follows_the_rules_module(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def choose(sharded: Any, options: Any) -> tuple[str, ...]:
        asked.append((sharded.model.hidden, sharded.intermediate, sharded.model.weight_format, options.is_csf_inline))
        return ("expand",)

    monkeypatch.setattr(preparation, "choose_arms", choose)
    assert sources.prepare("inline").arm == "expand"
    assert asked == [(HIDDEN, 192, "mxfp4_csf", True)]


def test_the_environment_is_not_asked(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_CSF_INLINE", "0")
    assert sources.prepare("inline").is_inline


def test_inline_experts_hold_nothing_else(sources: Sources) -> None:
    made = sources.prepare("inline")
    held = list(asdict(made).values())
    assert not any(isinstance(value, CsfBatch) for value in held)
    storage = made.w13_scales.storage.nbytes + made.w2_scales.storage.nbytes
    codes = sources.w13.nbytes + sources.w2.nbytes
    assert made.size_bytes == codes + storage + 2 * 4 * EXPERTS
    planes = {plane.data_ptr() for plane in native_planes(made)}
    assert not planes & {value.data_ptr() for value in held if isinstance(value, Tensor)}


def test_sizes_are_those_of_the_parts(sources: Sources) -> None:
    for arm in ARMS:
        made = sources.prepare(arm)
        w13, w2 = made.sizes["w13_scales"], made.sizes["w2_scales"]
        if arm == "native":
            assert (w13, w2) == (sources.w13_scales.nbytes, sources.w2_scales.nbytes)
        elif arm == "expand":
            assert (w13, w2) == (made.w13_scales.size_bytes, made.w2_scales.size_bytes)
        else:
            assert (w13, w2) == (made.w13_scales.storage.nbytes, made.w2_scales.storage.nbytes)
        assert made.size_bytes == sources.w13.nbytes + sources.w2.nbytes + w13 + w2 + 2 * 4 * EXPERTS


def test_operands_of_a_kernel(sources: Sources) -> None:
    native, compressed = sources.prepare("native"), sources.prepare("inline")
    assert select_scales(native, "w13") == (native.w13_scales,)
    assert select_scales(native, "w2") == (native.w2_scales,)
    for projection, storage in (("w13", compressed.w13_scales), ("w2", compressed.w2_scales)):
        parts = select_scales(compressed, projection)
        assert [part.data_ptr() for part in parts] == [part.data_ptr() for part in storage.parts()]
        assert torch.equal(torch.cat(parts), storage.storage)
    with pytest.raises(UndecodedScales, match=r"scales of w2 are a CSF batch.*pydoc planfreeze.kernels.scales"):
        select_scales(sources.prepare("expand"), "w2")
    with pytest.raises(InvalidExperts, match="projection is 'w3', not w13 or w2"):
        select_scales(native, "w3")


def test_factors_are_multiplied_in_fp32(sources: Sources) -> None:
    one, two = torch.tensor([1.1, -2.3, 3.7]), torch.tensor([0.3])
    made = sources.prepare("inline", alpha1=one, input_scale=two, down_scale=one)
    assert torch.equal(made.alpha1, one * two)
    assert not torch.equal(made.alpha1.double(), one.double() * two.double())
    assert torch.equal(made.alpha2, one)
    assert made.alpha2.data_ptr() != one.data_ptr()
    alone = sources.prepare("inline", alpha2=two, input_scale=one)
    assert torch.equal(alone.alpha2, two.repeat(EXPERTS)) and alone.alpha2.is_contiguous()
    assert torch.equal(alone.alpha1, one)
    plain = sources.prepare("native")
    assert plain.alpha1.tolist() == plain.alpha2.tolist() == [1.0] * EXPERTS
    assert plain.alpha1.dtype == torch.float32


def strided(tensor: Tensor) -> Tensor:
    return torch.stack((tensor, tensor), dim=-1)[..., 0]


REFUSED = [
    ("w13", lambda t: t.to(torch.int8), "w13 is torch.int8, not torch.uint8"),
    ("w13", lambda t: t[0], r"w13 is of shape \(384, 128\), not \[experts, rows, K/2\]"),
    ("w13", lambda t: t[:0], r"w13 is of shape \(0, 384, 128\)"),
    ("w13", strided, r"w13 is strided \(98304, 256, 2\)"),
    ("w13_scales", lambda t: t.float(), "w13_scales is torch.float32, not torch.uint8"),
    ("w13_scales", lambda t: t[:, :, 1:].contiguous(), r"w13_scales is of shape \(3, 384, 7\), not \[3, 384, 8\]"),
    ("w13_scales", strided, "w13_scales is strided"),
    ("w2", lambda t: t.to("meta"), "w2 is on meta, not on cpu like w13"),
    ("w2", lambda t: t[:2], r"w2 is of shape \(2, 256, 96\), not \[3, 256, 96\]"),
    ("w2", lambda t: t[:, :128].contiguous(), r"w2 is of shape \(3, 128, 96\)"),
    ("w2_scales", lambda t: t.to("meta"), "w2_scales is on meta"),
    ("w2_scales", lambda t: t[..., None], r"w2_scales is of shape \(3, 256, 6, 1\), not \[3, 256, 6\]"),
    ("w2_scales", strided, "w2_scales is strided"),
]


@pytest.mark.parametrize(("name", "change", "reason"), REFUSED)
def test_a_tensor_that_does_not_fit_is_named(sources: Sources, name: str, change: Any, reason: str) -> None:
    with pytest.raises(InvalidExperts, match=reason):
        replace(sources, **{name: change(getattr(sources, name))}).prepare("inline")


@pytest.mark.parametrize("name", ["alpha1", "alpha2", "input_scale", "down_scale"])
def test_a_factor_that_does_not_fit_is_named(sources: Sources, name: str) -> None:
    for factor, reason in (
        (torch.ones(2), rf"{name} is of shape \(2,\), not \[1\] or \[3\]"),
        (torch.ones(()), rf"{name} is of shape \(\)"),
        (torch.ones(3, dtype=torch.float64), f"{name} is torch.float64, not torch.float32"),
        (torch.ones(3, device="meta"), f"{name} is on meta"),
        (torch.ones(6)[::2], f"{name} is strided"),
    ):
        with pytest.raises(InvalidExperts, match=reason):
            sources.prepare("inline", **{name: factor})


def test_unknown_options_are_refused(sources: Sources) -> None:
    with pytest.raises(InvalidExperts, match="source_order is 'w31', not up_gate or gate_up"):
        sources.prepare("inline", source_order="w31")
    with pytest.raises(InvalidExperts, match="weight_format is 'nvfp4', not mxfp4_csf or mxfp4"):
        sources.prepare("inline", weight_format="nvfp4")
    with pytest.raises(UnknownArch):
        sources.prepare("inline", arch="sm_90")
    narrow = {
        name: tensor[:, :192].contiguous() if name[:3] == "w13" else tensor for name, tensor in asdict(sources).items()
    }
    with pytest.raises(UnsupportedGeometry, match="intermediate = 96"):
        Sources(**narrow).prepare("inline")


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize(
    ("name", "expert", "row", "column"), [("w13_scales", 1, 200, 7), ("w13_scales", 0, 0, 0), ("w2_scales", 2, 255, 5)]
)
def test_a_nan_is_located(sources: Sources, name: str, expert: int, row: int, column: int, arm: str) -> None:
    scales = getattr(sources, name).clone()
    scales[expert, row, column] = 255
    scales[2, 255, 5] = 255
    with pytest.raises(NanScale, match=f"{name}: the scale at expert {expert}, row {row}, column {column} is 255"):
        replace(sources, **{name: scales}).prepare(arm)
    scales[scales == 255] = 254
    made = replace(sources, **{name: scales}).prepare(arm)
    assert max(int(plane.max()) for plane in native_planes(made)) == 247


def test_small_steps_give_the_same_experts(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {arm: sources.prepare(arm) for arm in ARMS}
    monkeypatch.setattr("planfreeze.kernels.scales.native.CHUNK_BYTES", 1)
    for arm, expected in whole.items():
        assert_same(sources.prepare(arm), expected)


def tensors_of(made: PreparedExperts) -> dict[str, Tensor]:
    """Every tensor of prepared experts."""
    found: dict[str, Tensor] = {}
    for name, value in asdict(made).items():
        if isinstance(value, InlineScales):
            found[name] = value.storage
        elif isinstance(value, CsfBatch):
            parts = ("bases", "selectors", "exceptions", "task_offsets")
            found |= {f"{name}.{part}": getattr(value, part) for part in parts}
        elif isinstance(value, Tensor):
            found[name] = value
    return found


def assert_same(made: PreparedExperts, expected: PreparedExperts) -> None:
    ours, theirs = tensors_of(made), tensors_of(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.cpu(), theirs[name].cpu()), name


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["up_gate", "gate_up"])
@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize(("hidden", "intermediate"), [(5120, 576), (1024, 320), (512, 256)])
def test_the_device_prepares_the_same_experts(hidden: int, intermediate: int, arm: str, order: str) -> None:
    sources = make_sources(intermediate, hidden=hidden, experts=8)
    made = sources.cuda().prepare(arm, source_order=order)
    assert_same(made, sources.prepare(arm, source_order=order))
    assert {tensor.device.type for tensor in tensors_of(made).values()} == {"cuda"}


@pytest.mark.gpu
@pytest.mark.parametrize("arm", list(ARMS))
def test_preparation_keeps_only_the_experts(arm: str) -> None:
    sources = make_sources(576, hidden=1024, experts=64).cuda()
    sources.prepare(arm)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    made = sources.prepare(arm)
    sizes = [-(-tensor.nbytes // 512) * 512 for tensor in tensors_of(made).values()]
    assert torch.cuda.memory_allocated() == allocated + sum(sizes)
    torch.cuda.empty_cache()
    # A large allocation is at most rounded up to 2 MiB, or opens one 20 MiB segment; small ones share 2 MiB.
    assert torch.cuda.memory_reserved() - reserved <= sum(sizes) + 2 * 2**20 * len(sizes) + 20 * 2**20


@pytest.mark.gpu
def test_a_ds41_layer_is_encoded_in_50_ms() -> None:
    experts, times = 384, []
    generator = torch.Generator(device="cuda").manual_seed(3)
    for _ in range(5):
        layer_ms = 0.0
        for geometry in geometries(5120, 576):
            pool = ScratchPool(generator.device)
            with pool.use():
                plane = native_plane(geometry, synthetic_scales(geometry, experts, generator))
            torch.cuda.synchronize()
            start = time.perf_counter()
            made = inline.encode(geometry, plane, pool=pool)
            torch.cuda.synchronize()
            layer_ms += (time.perf_counter() - start) * 1e3
            assert made.raw_tiles > 0
            del plane, pool
        times.append(layer_ms)
    # The first layer also loads torch's kernels.
    assert statistics.median(times[1:]) <= 50, times
