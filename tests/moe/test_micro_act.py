"""Family micro_act: its rules, and its compiled kernels on the CPU against numpy and the torch reference."""

import re

import numpy as np
import pytest
import torch

from planfreeze.errors import InvalidPayload
from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.moe.geometry import (
    intermediate_bytes,
    intermediate_scale_offset,
    padded_width,
    projection_parts,
)
from planfreeze.kernels.moe.micro_act import MicroActPayload, micro_act
from planfreeze.kernels.moe.reference import activation_scales, arrange_activations, join_parts, quantise_mxfp8
from planfreeze.target import ARCHS, target

EXPERTS = 3
HIDDEN = 5120
ALPHA = torch.tensor([0.5, 1.25, 3.0])
POISON = 0xEE
f32 = np.float32


def fma(a, b, c):
    """Fused multiply-add of f32: the product is exact in f64."""
    return f32(a.astype(np.float64) * np.float64(b) + np.asarray(c, np.float64))


def exponential(x):
    """What the kernel computes for exp, operation by operation."""
    x = np.minimum(np.maximum(x, f32(-64)), f32(128))
    shifted = fma(x, f32(1.4426950408889634), f32(12582912))
    whole = shifted - f32(12582912)
    rest = fma(whole, f32(-1.42860677e-6), fma(whole, f32(-0.693145751953125), x))
    result = np.full_like(rest, f32(1 / 5040))
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        result = fma(result, rest, f32(factor))
    n = np.nan_to_num(whole).astype(np.int32)
    return result * np.ldexp(f32(1), n >> 1) * np.ldexp(f32(1), n - (n >> 1))


def divide(x, arch, hidden=HIDDEN):
    """Return f32 parts whose sum is about ``x``: the order of the additions matters. Zeros and subnormals are exact."""
    x, generator = x.float(), torch.Generator().manual_seed(6)
    parts = torch.randn(projection_parts(arch, hidden), *x.shape, generator=generator)
    parts = torch.where(x.abs() < 1e-30, 0 * x, parts)
    parts[0] = torch.where(x.abs() < 1e-30, x, x - parts[1:].sum(0))
    return parts


def activation(projections, limit=None):
    """bf16 of silu(gate) * up with every operation rounded to f32."""
    with np.errstate(all="ignore"):
        gate, up = np.split(projections.float().numpy(), 2, axis=-1)
        if limit is not None:
            gate, up = np.minimum(gate, f32(limit)), np.maximum(np.minimum(up, f32(limit)), f32(-limit))
        product = gate * (f32(1) / (exponential(-gate) + f32(1))) * up
    return torch.from_numpy(product).bfloat16()


def make_projections(pairs, intermediate):
    """Random rows, with zeros, both ends of the range, subnormals, infinities and NaN in the first row."""
    generator = torch.Generator().manual_seed(4)
    x = 4 * torch.randn(pairs, 2, intermediate, generator=generator)
    x[:, :, 7::32] *= 30
    x[:, 1, 32:48] *= 1e-3
    x = x.bfloat16()
    x[0, 0, 0:32] = 0
    x[1, 0, 0:32] = torch.linspace(-104, 104, 32).bfloat16()
    x[1, 1, 32:64] = -0.0
    x[0, 0, 32] = torch.inf
    x[1, 0, 33] = torch.nan
    x[2, 0, 0:64] = torch.arange(64).to(torch.int16).view(torch.bfloat16)
    x[2, 1, 3] = torch.nan
    return x.flatten(1)


def approximated(ptx_machine):
    """Return a block of the machine with the f32 instructions of this kernel.

    The approximate ones are exact here: what a device computes for them differs in the last bits.
    """

    class Block(ptx_machine.Block):
        def execute(self, instruction, active):
            made = {
                "fma": lambda a, b, c: fma(a, b, c),
                "min": np.minimum,
                "max": np.maximum,
                "neg": np.negative,
                "rcp": lambda a: f32(1) / a,
                "ex2": lambda a: f32(np.exp2(a.astype(np.float64))),
            }.get(instruction.op[0])
            if made is None or instruction.op[-1] != "f32":
                return super().execute(instruction, active)
            assert instruction.op[1] in ("rn", "NaN", "approx", "f32"), instruction.text
            operands = [ptx_machine.floats(self.value(name, 32)) for name in instruction.operands[1:]]
            with np.errstate(all="ignore"):
                self.set(instruction.operands[0], ptx_machine.bits_of(made(*operands)), active)

    return Block


def run(
    monkeypatch,
    ptx_machine,
    compile_cute,
    arch,
    parts,
    ids,
    *,
    rows,
    hidden=HIDDEN,
    id_bits=32,
    limit="",
    fast_math=False,
):
    """Run the compiled kernel; return payload ``(rows, padded)`` and scales ``(tiles, rows, 4)`` as stored."""
    intermediate = parts.shape[2] // 2
    payload = MicroActPayload(
        hidden=hidden, intermediate=intermediate, id_bits=id_bits, limit=limit, fast_math=fast_math
    )
    definition = micro_act.define(payload, target(arch))
    assert isinstance(definition.source, CuteSource)
    monkeypatch.setattr(ptx_machine, "Block", approximated(ptx_machine))
    memory = ptx_machine.Memory()
    buffer = np.full(intermediate_bytes(arch, rows, intermediate), POISON, np.uint8)
    ids = np.array(ids, np.int32 if id_bits == 32 else np.int64)
    addresses = [memory.put(values) for values in (parts.numpy(), ids, ALPHA.numpy(), buffer)]
    kernel = ptx_machine.Kernel(compile_cute(definition.source, arch, 4, 3).ptx)
    grid = definition.grid({"pairs": ids.size}, 1)[0]
    with np.errstate(all="ignore"):
        kernel.run(memory, [*addresses, ids.size, EXPERTS, rows], grid=grid, block=32)
    found = memory.get(addresses[-1], buffer)
    first = intermediate_scale_offset(arch, rows, intermediate, 0, 0)
    scale_type = np.float32 if arch == "sm_90a" else np.uint8
    return found[:first].reshape(rows, -1), found[first:].view(scale_type).reshape(-1, rows, 4)


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(
    ("hidden", "intermediate", "id_bits", "limit"),
    [(5120, 192, 32, ""), (768, 64, 64, "7.0"), (5120, 128, 32, "0.1"), (256, 576, 64, "")],
)
def test_compiled_kernel_equals_the_operations_bit_for_bit(
    monkeypatch, ptx_machine, compile_cute, arch, hidden, intermediate, id_bits, limit
):
    ids, rows = (2, 0, 1, -1, 1, EXPERTS), 8
    if id_bits == 64:
        ids = (2, 0, 1, -1, 1, 2**32)
    parts = divide(make_projections(len(ids), intermediate), arch, hidden)
    found, found_scales = run(
        monkeypatch, ptx_machine, compile_cute, arch, parts, ids, rows=rows, hidden=hidden, id_bits=id_bits, limit=limit
    )
    x = join_parts(parts, torch.tensor(ids), ALPHA)
    payload, scales = quantise_mxfp8(activation(x, float(limit) if limit else None))
    payload = arrange_activations(payload, arch).numpy()
    scales = activation_scales(scales, arch).numpy()
    tiles = padded_width(intermediate) // 128
    for pair, expert in enumerate(ids):
        if 0 <= expert < EXPERTS:
            np.testing.assert_array_equal(found[pair, :intermediate], payload[pair])
            assert not found[pair, intermediate:].any()
            row_scales = found_scales[:, pair].reshape(tiles * 4)
            np.testing.assert_array_equal(row_scales[: intermediate // 32], scales[pair])
            assert not row_scales[intermediate // 32 :].view(np.uint8).any()
    untouched = [pair for pair in range(rows) if pair >= len(ids) or not 0 <= ids[pair] < EXPERTS]
    assert (found[untouched] == POISON).all() and (found_scales[:, untouched].view(np.uint8) == POISON).all()
    # The blocks of the edge cases: zeros have byte 127, an infinity or a NaN byte 255.
    if not limit:
        zero, invalid = (1.0, np.inf) if arch == "sm_90a" else (127, 255)
        assert [found_scales[0, 0, 0], found_scales[0, 0, 1], found_scales[0, 1, 1]] == [zero, invalid, invalid]


def test_activation_is_close_to_float64(monkeypatch, ptx_machine, compile_cute):
    # Of the bf16 values before quantisation, those that differ from float64's lie on a rounding boundary.
    x = torch.randn(400, 512, generator=torch.Generator().manual_seed(5)).mul(6).bfloat16()
    gate, up = x.double().chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up).bfloat16()
    found = activation(x)
    differs = found != expected
    assert differs.double().mean() < 1e-4
    assert ((found.double() - expected.double()).abs() <= 2.0**-7 * expected.double().abs()).all()


def test_exponential_is_within_one_ulp():
    x = np.linspace(-64, 88.72, 400_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    errors = np.abs(exponential(x).astype(np.float64) - exact) / np.spacing(exact.astype(np.float32))
    assert errors.max() <= 1.0
    with np.errstate(all="ignore"):
        ends = exponential(np.array([-np.inf, np.inf, 88.73, np.nan, 0.0], np.float32))
    assert 0 < ends[0] < 2.0**-80 and ends[1] == ends[2] == np.inf and np.isnan(ends[3]) and ends[4] == 1


@pytest.mark.parametrize("arch", list(ARCHS))
def test_fast_math_differs_in_roundings_only(monkeypatch, ptx_machine, compile_cute, arch):
    parts = divide(make_projections(6, 192)[3:5], arch)
    found, scales = run(monkeypatch, ptx_machine, compile_cute, arch, parts, (0, 1), rows=2, fast_math=True)
    payload, expected_scales = quantise_mxfp8(activation(join_parts(parts, torch.tensor([0, 1]), ALPHA)))
    payload = arrange_activations(payload, arch).numpy()
    np.testing.assert_array_equal(
        scales.transpose(1, 0, 2).reshape(2, -1)[:, :6], activation_scales(expected_scales, arch).numpy()
    )
    # One step of E4M3 where a bf16 rounding flips.
    steps = np.abs(found[:, :192].astype(int) - payload.astype(int))
    assert steps.max() <= 1 and (steps != 0).mean() < 0.01


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize("fast_math", [False, True])
def test_cubin_holds_its_values_in_registers(compile_cute, cuobjdump, arch, fast_math):
    payload = MicroActPayload(hidden=HIDDEN, intermediate=576, id_bits=32, limit="7.0", fast_math=fast_math)
    source = micro_act.define(payload, target(arch)).source
    assert isinstance(source, CuteSource)
    compiled = compile_cute(source, arch, 4, 3)
    sass = cuobjdump(compiled.cubin, "-sass")
    assert not re.search(r"\b(LDL|STL)\b", sass) and ("MUFU.EX2" in sass) == fast_math
    assert re.search(r"STACK:0\b", cuobjdump(compiled.cubin, "-res-usage"))


def test_cubin_is_the_same_from_another_process_folder_and_hash_seed(compile_cute):
    source = micro_act.define(MicroActPayload(hidden=HIDDEN, intermediate=192, id_bits=32), target("sm_90a")).source
    first, second = (compile_cute(source, "sm_90a", 4, 3, seed) for seed in (0, 7))
    assert first.cubin != second.cubin
    assert first.cubin.read_bytes() == second.cubin.read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 640}, "hidden = 640 is not a positive multiple of 256"),
        ({"intermediate": 288}, "intermediate = 288 is not a positive multiple of 64 .remainder 32"),
        ({"intermediate": 0}, "intermediate = 0"),
        ({"id_bits": 16}, "id_bits = 16 is neither 32 nor 64"),
        *(
            ({"limit": text}, f"limit = '{re.escape(text)}' is not a finite positive f32")
            for text in ("7", "7.00", "-7.0", "0.0", "inf", "nan", "seven", "1e+300", "1e-60", " 7.0")
        ),
        ({"limit": 7.0}, "is a float"),
        ({"fast_math": 1}, "fast_math = 1 is a int"),
    ],
)
def test_payload_refuses_what_no_kernel_has(changes, reason):
    with pytest.raises(InvalidPayload, match=reason):
        MicroActPayload(**{"hidden": HIDDEN, "intermediate": 576, "id_bits": 32, **changes})


def test_fields_at_their_defaults_are_in_neither_digest_nor_source():
    sizes = {"hidden": HIDDEN, "intermediate": 576, "id_bits": 32}
    plain = MicroActPayload(**sizes)
    assert plain == MicroActPayload(**sizes, limit="", fast_math=False)
    assert len({plain, *(MicroActPayload(**sizes, limit=text) for text in ("7.0", "0.1"))}) == 3
    constants = dict(micro_act.define(plain, target("sm_90a")).source.constants)
    assert not {"limit", "fast_math"} & set(constants)


@pytest.mark.parametrize("arch", list(ARCHS))
def test_arguments_cover_what_the_kernel_touches(arch):
    payload = MicroActPayload(hidden=HIDDEN, intermediate=576, id_bits=64)
    assert family_of(payload) is micro_act and micro_act.version == 2
    definition = micro_act.define(payload, target(arch))
    scalars = {"pairs": 7, "experts": 3, "rows": 8}
    sizes = [(a.name, a.dtype, a.elements(scalars), a.alignment) for a in definition.arguments if a.elements]
    row_bytes = {"sm_90a": 640 + 5 * 16, "sm_120a": 640 + 5 * 4}[arch]
    assert sizes == [
        ("projections", "f32", {"sm_90a": 4, "sm_120a": 1}[arch] * 7 * 1152, 16),
        ("topk_ids", "i64", 7, 8),
        ("alpha", "f32", 3, 16),
        ("intermediate", "u8", 8 * row_bytes, 16),
    ]
    assert [a.name for a in definition.arguments if not a.is_pointer] == ["pairs", "experts", "rows"]
    # Fewer rows than pairs: the buffer that would do for so many rows is refused.
    assert definition.arguments[3].elements({**scalars, "rows": 6}) == 7 * row_bytes
    assert definition.grid(scalars, 1) == (7 * 5, 1, 1)
