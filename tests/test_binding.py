"""Arguments as the driver reads them: numbers of every type, ranges, and tensors that need not be contiguous."""

import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from planfreeze.binding import Signature
from planfreeze.declarations import triton_family
from planfreeze.declared.arguments import flag, integer, real, tensor
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument
from planfreeze.tensor_checks import find_obstacle

from .checked_calls import check_words, without_extension

torch = pytest.importorskip("torch")
DEVICE: Any = SimpleNamespace(
    torch=torch, torch_device=torch.device("cpu"), dtypes={"f32": torch.float32, "i32": torch.int32}
)


@pytest.fixture(params=["in one go", "one by one"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test holds on both roads: with the extension, and without it."""
    assert find_obstacle(torch) == ""
    if request.param == "one by one":
        without_extension(monkeypatch)
    return str(request.param)


def signature(*arguments: Argument | None) -> Signature:
    return Signature("the program", tuple(found for found in arguments if found is not None), DEVICE)


def number(dtype: Any, **limits: Any) -> Argument:
    return Argument(name="x", dtype=dtype, is_pointer=False, alignment=1, **limits)


def words_of(bound: Signature, *values: Any) -> list[bytes]:
    """The words of a call, one for each parameter, which are the same when the call is made again."""
    words, again = (check_words(bound, *values) for _ in range(2))
    assert words == again
    return [words[8 * bound.places.index(i) :][:8] for i in range(len(bound.arguments))]


def integers_of(bound: Signature, *values: Any) -> list[int]:
    return [int.from_bytes(word, "little", signed=True) for word in words_of(bound, *values)]


LIMITS = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}


@pytest.mark.parametrize("dtype", LIMITS)
def test_integers_of_every_type_reach_the_kernel_with_their_own_bytes(dtype: str) -> None:
    bits = int(dtype[1:])
    low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    argument = number(dtype, minimum=low)
    for value in {low, high, 0, 1, low + 1, high - 1}:
        bound = signature(argument)
        (word,) = words_of(bound, value)
        assert word[: argument.size_bytes] == struct.pack("<" + LIMITS[dtype], value)
        assert bound.check((value,), {}, memoryview(bytearray(8))).scalars == {"x": value}
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidArgument, match=f"x = {value} is"):
            check_words(signature(argument), value)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 0.1, math.inf, -math.inf, 1e-45, 3.4e38])
def test_floats_reach_the_kernel_by_their_bits(value: float) -> None:
    for dtype, code, size in (("f32", "<f", 4), ("f64", "<d", 8)):
        (word,) = words_of(signature(number(dtype)), value)
        assert word[:size] == struct.pack(code, value)
    (word,) = words_of(signature(number("f32")), 1e300)
    assert word[:4] == struct.pack("<f", math.inf)


def test_truth_values_are_one_byte_and_nothing_else_is_one() -> None:
    for value in (True, False):
        (word,) = words_of(signature(number("bool")), value)
        assert word[:1] == struct.pack("<?", value)
    for dtype, wrong in (("bool", 1), ("f32", 1), ("f64", True), ("i32", True), ("i32", 1.0)):
        with pytest.raises(InvalidArgument, match=f"is a {type(wrong).__name__}, not a"):
            check_words(signature(number(dtype)), wrong)


def test_a_value_that_equals_an_integer_of_an_earlier_call_is_refused_all_the_same() -> None:
    bound = signature(number("i32"))
    assert integers_of(bound, 1) == [1]
    for wrong in (True, 1.0, [1], torch.tensor(1)):
        with pytest.raises(InvalidArgument, match=f"is a {type(wrong).__name__}, not an int"):
            check_words(bound, wrong)


def test_the_rule_of_sizes_is_asked_once_for_equal_integers() -> None:
    asked: list[int] = []

    def elements(scalars: Any) -> int:
        asked.append(scalars["x"])
        return int(scalars["x"])

    bound = signature(Argument(name="t", dtype="f32", is_pointer=True, alignment=4, elements=elements), number("i32"))
    values = torch.zeros(8)
    for count in (4, 8, 4, 8):
        check_words(bound, values, count)
    assert asked == [4, 8]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="t has 8 elements, the kernel may touch 9"):
            check_words(bound, values, 9)


def test_a_program_for_multiples_of_16_is_given_no_other_value() -> None:
    bound = signature(integer("x", -64, 64).argument("i32-by-16", "specialized"))
    assert [integers_of(bound, value) for value in (-32, 0, 64)] == [[-32], [0], [64]]
    with pytest.raises(InvalidArgument, match="x = 24 is no multiple of 16"):
        check_words(bound, 24)
    with pytest.raises(InvalidArgument, match="x = -80 is less than -64"):
        check_words(bound, -80)


def test_a_tensor_with_strides_has_to_reach_as_far_as_the_kernel_touches() -> None:
    strided = tensor("x", "f32", contiguous=False, elements=lambda s: 3 * 8 + 4).argument("f32", "specialized")
    whole = torch.zeros(4, 8)
    address = whole.data_ptr()
    assert integers_of(signature(strided), whole[:, :4]) == [address]
    with pytest.raises(InvalidArgument, match="x has 20 elements, the kernel may touch 28"):
        check_words(signature(strided), whole[:3, :4])
    plain = tensor("x", "f32").argument("f32", "specialized")
    with pytest.raises(InvalidArgument, match="x is not contiguous"):
        check_words(signature(plain), whole[:, :4])
    assert integers_of(signature(plain), whole[:0]) == [whole[:0].data_ptr()]


def test_a_call_of_a_family_passes_what_its_program_takes() -> None:
    family = triton_family(
        kernel="no.such:kernel",
        arguments=(
            tensor("x", "f32", alignment=4),
            integer("n", 1, 2**40),
            real("factor"),
            flag("is_even"),
            tensor("bias", "f32", optional=True),
        ),
        name="binding_family",
    )(one_block)
    from planfreeze.target import target

    memory = torch.zeros(64)
    for place, n, bias in [(0, 1, None), (1, 2**33, memory), (4, 16, None)]:
        payload, passed = family.select(memory[place:], n, 0.5, True, bias)
        arguments = family.define(payload, target("sm_90a")).arguments
        words = integers_of(Signature("the program", arguments, DEVICE), *passed)
        assert len(words) == len(passed) == 3 + (n != 1) + (bias is not None)
        assert words[0] == memory.data_ptr() + 4 * place
        assert bias is None or words[-1] == memory.data_ptr()


def one_block(scalars: Any, constants: Any) -> tuple[int]:
    return (1,)
