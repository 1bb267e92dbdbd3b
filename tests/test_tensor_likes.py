"""Tensors that checks are made from: made once, in no mode of torch, and what fails then is told."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planfreeze import tensor_checks
from planfreeze.tensor_checks import find_obstacle, known_likes, make_check, make_likes, prepare_checks, take_nothing

torch = pytest.importorskip("torch")

from .tensor_changes import MODES  # noqa: E402 - torch is there from here on

CPU = torch.device("cpu")
ROW = (0, torch.float32, 4, True)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No tensor is known at the beginning, and none of the test's at the end."""
    known_likes.cache_clear()
    yield
    known_likes.cache_clear()


def transform(name: str) -> Callable[[Callable[[], None]], None]:
    """A function of torch that calls another one inside a transform."""

    def call(inside: Callable[[], None]) -> None:
        getattr(torch.func, name)(lambda tensor: (inside(), tensor.sum())[1])(torch.zeros(2, 3))

    return call


def enter(name: str) -> Callable[[Callable[[], None]], None]:
    """What calls a function inside a mode."""

    def call(inside: Callable[[], None]) -> None:
        with MODES[name]():
            inside()

    return call


SURROUNDINGS = {name: enter(name) for name in MODES} | {
    name: transform(name) for name in ("vmap", "grad", "functionalize")
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_check_that_is_made_in_any_mode_takes_plain_tensors(surroundings: str) -> None:
    takes: list[Any] = []
    SURROUNDINGS[surroundings](lambda: takes.append(make_check(torch, CPU, [ROW])))
    tensor, word = torch.zeros(3), bytearray(8)
    assert takes[0]((tensor,), bytes(8), memoryview(word)) is True
    assert word == tensor.data_ptr().to_bytes(8, "little")


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_what_keeps_tensors_from_being_taken_is_asked_in_any_mode(surroundings: str) -> None:
    found: list[str] = []
    SURROUNDINGS[surroundings](lambda: found.append(find_obstacle.__wrapped__(torch)))
    assert found == [""]


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_what_is_kept_is_a_plain_tensor_in_any_mode(surroundings: str) -> None:
    SURROUNDINGS[surroundings](lambda: make_check(torch, CPU, [ROW]))
    (kept,) = known_likes(torch, CPU).values()
    assert type(kept) is torch.Tensor and not kept.is_inference() and kept.device == CPU
    assert not torch._is_functional_tensor(kept) and not torch._C._functorch.is_functorch_wrapped_tensor(kept)
    assert kept.untyped_storage().nbytes() == 0


def test_a_tensor_is_made_once_for_a_device_and_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, Any]] = []
    empty = torch.empty

    def count(*sizes: int, dtype: Any, device: Any) -> Any:
        made.append((device, dtype))
        return empty(*sizes, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", count)
    for dtypes in ([torch.float32, torch.int32], [torch.float32], [torch.int32, torch.uint8, torch.int32]):
        for device in (CPU, torch.device("meta")):
            make_check(torch, device, [(place, dtype, 4, True) for place, dtype in enumerate(dtypes)])
    assert len(made) == len(set(made)) == 6
    assert make_likes(torch, torch.device("cpu"), {torch.uint8}) is make_likes(torch, CPU, set())


def test_what_was_prepared_takes_no_thread_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_checks(torch, CPU, [torch.float32, torch.int32])
    monkeypatch.setattr(tensor_checks, "ThreadPoolExecutor", None)
    assert make_check(torch, CPU, [ROW, (1, torch.int32, 4, True)]) is not take_nothing
    with pytest.raises(TypeError):
        make_check(torch, CPU, [(0, torch.uint8, 1, True)])


class OutOfMemory(RuntimeError):
    """As torch raises where a device has no room."""


@pytest.mark.parametrize("error", [OutOfMemory("CUDA out of memory"), RuntimeError("CUDA error"), TypeError("ours")])
def test_an_error_of_torch_or_of_our_own_is_not_taken_for_a_tensor_without_a_view(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*sizes: int, **options: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", fail)
        with pytest.raises(type(error), match=str(error)):
            make_check(torch, CPU, [ROW])
    assert make_check(torch, CPU, [ROW]) is not take_nothing  # what failed is not kept
    with pytest.raises(TypeError):
        make_check(torch, CPU, [("first", torch.float32, 4, True)])


def test_where_tensors_are_not_taken_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_checks, "find_obstacle", lambda torch: "another reason")
    assert make_check(torch, CPU, [ROW]) is take_nothing
    assert known_likes(torch, CPU) == {}


def test_a_check_keeps_no_tensor_that_it_was_made_from() -> None:
    kept = weakref.ref(make_likes(torch, CPU, {torch.float32})[torch.float32])
    take = make_check(torch, CPU, [ROW])
    known_likes.cache_clear()
    gc.collect()
    assert kept() is None and take((torch.zeros(1),), bytes(8), memoryview(bytearray(8))) is True
