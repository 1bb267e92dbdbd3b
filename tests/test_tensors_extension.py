"""The extension that takes tensors: it is built here, counts as torch does, and no argument harms it."""

import ctypes
import gc
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from planfreeze import tensor_checks
from planfreeze._tensors import NoView, TensorCheck
from planfreeze.tensor_checks import find_obstacle, make_check, take_nothing

from .dlpack_tables import Table, TakeView, export

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

EXCHANGE = torch.Tensor.__dlpack_c_exchange_api__
CLASSES = (torch.Tensor, torch.nn.Parameter)
LIKE = torch.empty(0)


@pytest.fixture
def shown() -> Iterator[SimpleNamespace]:
    """What the library of the test says that any tensor is, and a check of one by it."""
    facts = SimpleNamespace(status=0, data=64, dimensions=0, sizes=None, strides=None, byte_offset=0)

    def show(tensor: Any, view: Any) -> int:
        found = view.contents
        found.data, found.dimensions, found.byte_offset = facts.data, facts.dimensions, facts.byte_offset
        found.device[:], (found.code, found.bits, found.lanes) = (1, 0), (2, 32, 1)
        facts.kept = [
            None if row is None else (ctypes.c_int64 * len(row))(*row) for row in (facts.sizes, facts.strides)
        ]
        found.sizes, found.strides = (ctypes.cast(row, ctypes.POINTER(ctypes.c_int64)) for row in facts.kept)
        return int(facts.status)

    table = Table(1, 3, None, (None,) * 3, TakeView(show))
    facts.table = table
    facts.capsule = export(table)
    yield facts


def elements_of(facts: SimpleNamespace, *, is_contiguous: bool) -> int | None:
    """The most elements that a check takes a tensor to have; None where it takes it for nothing."""
    take = TensorCheck(facts.capsule, CLASSES, ((0, LIKE, 1, is_contiguous),)).take
    word, low, high = bytearray(8), 0, 2**63 - 1
    if not take((LIKE,), struct.pack("@q", 0), word):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if take((LIKE,), struct.pack("@q", middle), word) else (low, middle - 1)
    return low


def test_the_extension_is_installed_and_this_torch_lets_it_look() -> None:
    assert find_obstacle(torch) == ""
    assert make_check(torch, LIKE.device, [(0, LIKE.dtype, 1, True)]) is not take_nothing
    assert tensor_checks.build_check(torch, LIKE.device, []).__self__.__class__ is TensorCheck


HIGH = 2**62
VIEWS: list[tuple[list[int], list[int] | None, int | None, int | None]] = [
    ([], [], 1, 1),
    ([5], [1], 5, 5),
    ([5], [2], None, 9),
    ([5], [0], None, 1),
    ([2, 3], [3, 1], 6, 6),
    ([2, 3], [1, 2], None, 6),
    ([2, 3], [4, 1], None, 7),
    ([1, 3, 1], [9, 1, 7], 3, 3),
    ([2, 0, 3], [1, 1, 1], 0, 0),
    ([0, 3], [5, 2], 0, 0),
    ([5], [-1], None, None),
    ([-5], [1], None, None),
    ([HIGH, HIGH], [HIGH, 1], None, None),
    ([HIGH, 4], [4, 1], None, None),
    ([HIGH, HIGH], [0, 0], None, None),
    ([3], [HIGH], None, None),
    ([2], [2**63 - 1], None, None),
    ([5], None, None, None),
]


@pytest.mark.parametrize(("sizes", "strides", "contiguous", "spanned"), VIEWS)
def test_elements_are_counted_as_torch_counts_them(
    shown: SimpleNamespace, sizes: list[int], strides: list[int] | None, contiguous: int | None, spanned: int | None
) -> None:
    shown.dimensions, shown.sizes, shown.strides = len(sizes), sizes, strides
    assert elements_of(shown, is_contiguous=True) == contiguous
    assert elements_of(shown, is_contiguous=False) == spanned


def test_addresses_begin_behind_the_offset_and_are_held_to_their_alignment(shown: SimpleNamespace) -> None:
    for alignment in (1, 4, 12, 16, 48, 2**40):
        take = TensorCheck(shown.capsule, CLASSES, ((1, LIKE, alignment, True),)).take
        for shown.data, shown.byte_offset in [(0, 0), (64, 0), (64, 8), (2**40, 0), (48, 48), (2**63, 2)]:
            word, address = bytearray(16), shown.data + shown.byte_offset
            is_right = address > 0 and address % alignment == 0
            assert take((None, LIKE), struct.pack("@qq", 1, 77), word) is is_right
            assert struct.unpack("@QQ", word) == ((address, 77) if is_right else (0, 0))


FREED = torch.zeros(64)[6:]


@pytest.mark.parametrize(("data", "byte_offset"), [(0, 0), (0, 24), (24, 0)])
def test_a_tensor_has_no_memory_where_its_address_is_0_or_nothing_but_its_offset(
    shown: SimpleNamespace, data: int, byte_offset: int
) -> None:
    take = TensorCheck(shown.capsule, CLASSES, ((0, LIKE, 1, False),)).take
    shown.data, shown.byte_offset = data, byte_offset
    for shown.dimensions, shown.sizes, shown.strides, is_right in (
        (0, None, None, False),
        (2, [4, 2], [2, 1], False),
        (2, [4, 0], [2, 1], True),
    ):
        word = bytearray(8)
        assert take((FREED,), struct.pack("@q", 0), word) is is_right
        assert not is_right or struct.unpack("@Q", word) == (data + byte_offset,)
        assert take((FREED,), struct.pack("@q", 1), word) is False
    shown.dimensions, shown.byte_offset = 0, byte_offset + 4  # now there is memory, from 4 on
    assert take((FREED,), struct.pack("@q", 1), word) is True


def test_a_tensor_that_has_no_view_is_not_taken(shown: SimpleNamespace) -> None:
    take = TensorCheck(shown.capsule, CLASSES, ((0, LIKE, 1, True),)).take
    shown.status = -1
    assert take((LIKE,), bytes(8), bytearray(8)) is False
    with pytest.raises(NoView, match="no view"):
        TensorCheck(shown.capsule, CLASSES, ((0, LIKE, 1, True),))


NO_VIEWS = {
    "no plain tensor": (lambda: "rows", "no plain tensor"),
    "bits": (lambda: torch.empty(0, dtype=torch.bits8), "no view of .*: Bit types are not supported by dlpack"),
    "nowhere": (lambda: torch.empty(0, device="meta"), "no view of .*: Cannot pack tensors on meta"),
}


@pytest.mark.parametrize("like", NO_VIEWS)
def test_a_row_that_is_like_what_has_no_view_is_told_from_every_other_error(like: str) -> None:
    make, reason = NO_VIEWS[like]
    with pytest.raises(NoView, match=reason):
        TensorCheck(EXCHANGE, CLASSES, ((0, make(), 1, True),))
    assert NoView.__bases__ == (Exception,)
    with pytest.raises(ValueError, match="alignment of 0"):
        TensorCheck(EXCHANGE, CLASSES, ((0, make(), 0, True),))


def test_versions_of_the_table_that_are_not_known_are_refused_but_an_older_one_behind_them_is_found(
    shown: SimpleNamespace,
) -> None:
    newer = Table(2, 0, ctypes.addressof(shown.table))
    assert TensorCheck(export(newer), CLASSES, ()).take((), b"", bytearray()) is True
    for table, reason in [
        (Table(2, 0, None), "is 2, not 1"),
        (Table(0, 9, None), "is 0, not 1"),
        (Table(1), "no views"),
    ]:
        with pytest.raises(ValueError, match=reason):
            TensorCheck(export(table), CLASSES, ())
    with pytest.raises(ValueError, match="incorrect name"):
        TensorCheck(export(shown.table, b"another"), CLASSES, ())


def stand_in(**facts: Any) -> Any:
    return SimpleNamespace(Tensor=SimpleNamespace(**facts))


def test_what_keeps_tensors_from_being_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_obstacle.__wrapped__
    assert find(stand_in()) == "this torch hands out no views of tensors to C; 2.10 is the first that does"
    strange = Table(2, 0, None)
    assert "not known here: its version of DLPack is 2" in find(stand_in(__dlpack_c_exchange_api__=export(strange)))
    monkeypatch.setitem(sys.modules, "planfreeze._tensors", None)
    assert find(torch).startswith("the extension is not installed: ")
    monkeypatch.setattr(tensor_checks, "find_obstacle", find)
    assert make_check(torch, LIKE.device, [(0, LIKE.dtype, 1, True)]) is take_nothing


def test_a_type_that_torch_exports_to_nobody_is_left_to_python() -> None:
    assert make_check(torch, LIKE.device, [(0, torch.bits8, 1, True)]) is take_nothing


WRONG: dict[str, Callable[[Any], Any]] = {
    "too few": lambda take: take((LIKE,), bytes(8)),
    "too many": lambda take: take((LIKE,), bytes(8), bytearray(8), 1),
    "a list of values": lambda take: take([LIKE], bytes(8), bytearray(8)),
    "no values": lambda take: take((), bytes(8), bytearray(8)),
    "no bytes": lambda take: take((LIKE,), bytearray(8), bytearray(8)),
    "no numbers": lambda take: take((LIKE,), b"", bytearray(8)),
    "half a number": lambda take: take((LIKE,), bytes(7), bytearray(8)),
    "no room": lambda take: take((LIKE,), bytes(16), bytearray(15)),
    "room that is not written": lambda take: take((LIKE,), bytes(8), bytes(8)),
    "room with gaps": lambda take: take((LIKE,), bytes(8), memoryview(bytearray(32))[::2]),
    "room that was given back": lambda take: take((LIKE,), bytes(8), released()),
    "named": lambda take: take(values=(LIKE,), numbers=bytes(8), words=bytearray(8)),
}


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise(wrong: str) -> None:
    take = TensorCheck(EXCHANGE, CLASSES, ((0, LIKE, 4, True),)).take
    with pytest.raises((TypeError, ValueError, IndexError, BufferError)):
        WRONG[wrong](take)
    assert take((LIKE,), bytes(8), bytearray(8)) is True


anything = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.binary(max_size=24)
    | strategies.binary(max_size=24).map(bytearray)
    | strategies.text(max_size=3)
    | strategies.sampled_from([LIKE, EXCHANGE, CLASSES, torch.zeros(3), torch.float32, torch.Tensor]),
    lambda inner: strategies.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)
rows = strategies.tuples(
    strategies.integers(-1, 3), anything | strategies.just(LIKE), strategies.integers(-1, 9), anything
)


@hypothesis.settings(deadline=None, max_examples=400)
@hypothesis.given(
    exchange=strategies.just(EXCHANGE) | anything,
    classes=strategies.just(CLASSES) | anything,
    made_of=strategies.lists(rows, max_size=3).map(tuple) | anything,
    calls=strategies.lists(strategies.tuples(anything, anything, anything), max_size=4),
)
def test_whatever_it_is_given_it_answers_or_raises(exchange: Any, classes: Any, made_of: Any, calls: Any) -> None:
    ordinary = (TypeError, ValueError, IndexError, BufferError, OverflowError, RuntimeError, AttributeError, NoView)
    with suppress(*ordinary):
        take = TensorCheck(exchange, classes, made_of).take
        for call in calls:
            with suppress(*ordinary):
                assert take(*call) in (True, False)


def test_nothing_is_kept_by_calls_and_nothing_by_checks_that_are_gone() -> None:
    tensors = (torch.zeros(3), torch.zeros(3, dtype=torch.uint8), torch.zeros(4, 4).T, "no tensor")
    likes = (LIKE, torch.empty(0, dtype=torch.uint8))
    held = (*tensors, *likes, EXCHANGE, CLASSES, TensorCheck, torch.uint8, torch.float32, None, True, False)
    numbers, words = bytes(16), bytearray(16)

    def work() -> None:
        for _ in range(500):
            check = TensorCheck(EXCHANGE, CLASSES, ((0, likes[0], 1, True), (1, likes[1], 1, True)))
            for values in ((tensors[0], tensors[1]), (tensors[2], tensors[1]), (tensors[1], tensors[0]), tensors[2:]):
                check.take(values, numbers, words)
            for row in ((0, "none", 1, True), (0, likes[0], 0, True), (0, torch.bits8, 1, True)):
                with pytest.raises((NoView, ValueError)):
                    TensorCheck(EXCHANGE, CLASSES, ((1, likes[1], 1, True), row))
            with pytest.raises(IndexError):
                check.take(tensors[:1], numbers, words)

    work()
    gc.collect()
    before = [sys.getrefcount(found) for found in held]
    tracemalloc.start()
    try:
        work()
        gc.collect()
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    after = [sys.getrefcount(found) for found in held]
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) < 100
    assert kept_bytes < 20_000
