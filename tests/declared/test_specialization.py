"""Which variant a value takes, held against Triton's own binder (of whichever Triton is installed)."""

import inspect
import itertools
from types import SimpleNamespace

import pytest

from planfreeze.declared.arguments import flag, integer, real, tensor
from planfreeze.declared.parameters import Parameter
from planfreeze.declared.specialization import Marking, reachable_classes
from planfreeze.dtypes import INTEGER_LIMITS
from planfreeze.errors import InvalidArgument, InvalidDeclaration

MARKINGS: tuple[Marking, ...] = ("specialized", "unaligned", "free")
EDGES = sorted(
    {
        base + offset
        for base in (0, 1, 16, 32, 2**31, -(2**31), 2**32, 2**63, -(2**63), 2**64)
        for offset in (-17, -16, -15, -2, -1, 0, 1, 2, 15, 16, 17)
    }
)
ALL = integer("x", -(2**63), 2**64 - 1)


def bind_with_triton(value: object, marking: Marking, annotation: object = inspect.Parameter.empty) -> tuple:
    """What Triton's generated binder makes of one argument: (type, specialisation)."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import KernelParam, create_function_from_signature

    parameter = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    described = KernelParam(0, parameter, marking == "free", marking == "unaligned")
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(inspect.Signature([parameter]), [described], backend)
    return tuple(bind(value)[1][0])


def compiled_as(parameter: Parameter, value: object, marking: Marking) -> tuple:
    """What planfreeze compiles the argument as, in Triton's terms."""
    from planfreeze.compilers.triton import type_name

    chosen = parameter.classify("family", value, marking)
    assert chosen in parameter.classes(marking)
    argument = parameter.argument(chosen, marking)
    if argument is None:
        return ("constexpr", *parameter.constant(chosen))
    is_divisible = argument.alignment % 16 == 0 if argument.is_pointer else argument.multiple_of == 16
    return type_name(argument), is_divisible


def in_our_terms(bound: tuple) -> tuple:
    """A binder's answer without what makes no difference to the compiled variant.

    An annotated 1 keeps its value in Triton's key, and is compiled as any other value: neither constant nor divisible.
    """
    kind, specialisation = bound
    return bound if kind == "constexpr" else (kind, specialisation == "D")


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("value", [value for value in EDGES if -(2**63) <= value < 2**64])
def test_a_bare_integer_takes_the_variant_that_triton_gives_it(value: int, marking: Marking) -> None:
    assert compiled_as(ALL, value, marking) == in_our_terms(bind_with_triton(value, marking))


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("dtype", sorted(INTEGER_LIMITS))
@pytest.mark.parametrize("as_text", [False, True])
def test_an_annotated_integer_takes_the_variant_that_triton_gives_it(
    dtype: str, marking: Marking, as_text: bool
) -> None:
    import triton.language as tl

    low, high = INTEGER_LIMITS[dtype]
    annotation = dtype if as_text else getattr(tl, dtype.replace("i", "int").replace("u", "uint"))
    parameter = integer("x", low, high, dtype=dtype)
    for value in (value for value in EDGES if low <= value <= high):
        assert compiled_as(parameter, value, marking) == in_our_terms(bind_with_triton(value, marking, annotation))


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, float("nan"), 1e300])
def test_a_float_takes_the_variant_that_triton_gives_it(value: float, marking: Marking) -> None:
    import triton.language as tl

    assert compiled_as(real("x"), value, marking) == in_our_terms(bind_with_triton(value, marking))
    assert compiled_as(real("x"), value, marking) == in_our_terms(bind_with_triton(value, marking, tl.float32))
    assert compiled_as(real("x", "f64"), value, marking) == in_our_terms(bind_with_triton(value, marking, tl.float64))


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_takes_the_variant_that_triton_gives_it(value: bool, marking: Marking) -> None:
    assert compiled_as(flag("x"), value, marking) == in_our_terms(bind_with_triton(value, marking))


@pytest.mark.parametrize("marking", MARKINGS)
def test_none_takes_the_variant_that_triton_gives_it(marking: Marking) -> None:
    assert compiled_as(tensor("x", "f32", optional=True), None, marking) == bind_with_triton(None, marking)


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "uint8", "float64"])
def test_every_slice_of_a_buffer_takes_the_variant_that_triton_gives_it(dtype: str, marking: Marking) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(4096, dtype=torch.uint8)
    start = -buffer.data_ptr() % 16
    whole = buffer[start : start + 2048].view(getattr(torch, dtype))
    names = {"int32": "i32", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "uint8": "u8"}
    parameter = tensor("x", names.get(dtype, {"float64": "f64"}.get(dtype, dtype)), alignment=1)
    seen = set()
    for k in range(32):
        variant = compiled_as(parameter, whole[k:], marking)
        assert variant == in_our_terms(bind_with_triton(whole[k:], marking))
        seen.add(variant)
    assert len(seen) == (2 if marking == "specialized" and whole.element_size() < 16 else 1)


def test_a_program_for_aligned_addresses_is_never_given_another() -> None:
    aligned, unaligned = tensor("x", "f32", alignment=4).classes("specialized")
    parameter = tensor("x", "f32", alignment=4)
    assert parameter.argument(aligned, "specialized").alignment == 16
    assert parameter.argument(unaligned, "specialized").alignment == 4
    with pytest.raises(InvalidArgument, match="argument x at 0x1004 is not aligned to the 16 bytes"):
        tensor("x", "f32").classify("family", SimpleNamespace(data_ptr=lambda: 0x1004, dtype="f32"), "specialized")


@pytest.mark.parametrize("value", [2**64, 2**64 + 16, -(2**63) - 1])
def test_an_integer_that_triton_cannot_represent_is_refused_here_too(value: int) -> None:
    with pytest.raises(OverflowError):
        bind_with_triton(value, "specialized")
    with pytest.raises(InvalidArgument, match="it is declared for"):
        ALL.classify("family", value, "specialized")


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_only_an_int_is_an_integer(value: object) -> None:
    with pytest.raises(InvalidArgument, match="not an int"):
        ALL.classify("family", value, "specialized")


RANGES = [(1, 1), (0, 0), (2, 15), (1, 4096), (16, 16), (-40, -3), (2**31 - 20, 2**31 + 20), (2**63 - 9, 2**63 + 9)]


@pytest.mark.parametrize("marking", MARKINGS)
@pytest.mark.parametrize("dtype", [None, "i64", "i32"])
@pytest.mark.parametrize("step", [1, 3, 8, 16, 48])
@pytest.mark.parametrize("limits", RANGES)
def test_the_classes_of_a_range_are_exactly_those_of_its_values(
    limits: tuple[int, int], step: int, dtype: str | None, marking: Marking
) -> None:
    low, high = limits
    values = [value for value in range(low, high + 1) if value % step == 0]
    if not values or (dtype and not INTEGER_LIMITS[dtype][0] <= low <= high <= INTEGER_LIMITS[dtype][1]):
        with pytest.raises(InvalidDeclaration):
            integer("x", low, high, multiple_of=step, dtype=dtype)
        return
    parameter = integer("x", low, high, multiple_of=step, dtype=dtype)
    reached = {parameter.classify("family", value, marking) for value in values}
    assert set(parameter.classes(marking)) == reached


def test_a_range_reaches_no_class_that_none_of_its_values_has() -> None:
    def names(low: int, high: int, step: int = 1) -> list[str]:
        return [found.name for found in reachable_classes(low, high, step, dtype=None, marking="specialized")]

    assert names(1, 1) == ["one"]
    assert names(2, 15) == ["i32"]
    assert names(16, 4096, 16) == ["i32-by-16"]
    assert names(1, 4096) == ["one", "i32-by-16", "i32"]
    assert names(2, 2**31) == ["i32-by-16", "i32", "i64-by-16"]


@pytest.mark.parametrize(("low", "high"), list(itertools.pairwise([2**31 - 1, 2**31, 2**31 + 1])))
def test_the_width_changes_exactly_between_31_and_32_bits(low: int, high: int) -> None:
    found = {ALL.classify("family", value, "free") for value in (low, high)}
    assert found == ({"i32", "i64"} if low == 2**31 - 1 else {"i64"})
