"""Looks of tensors: what is taken for known is what a check of every tensor accepts, whatever tensors do meanwhile."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from planfreeze.binding import Signature
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument, pointer, scalar
from planfreeze.tensor_looks import TensorLooks, find_guards

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

DEVICE: Any = SimpleNamespace(
    torch=torch, torch_device=torch.device("cpu"), dtypes={"f32": torch.float32, "i32": torch.int32}
)
COUNT = 24
ARGUMENTS = (
    pointer("x", "f32", lambda s: s["count"]),
    scalar("count"),
    Argument(
        name="y", dtype="i32", is_pointer=True, alignment=4, elements=lambda s: s["count"] + 8, is_contiguous=False
    ),
    pointer("z", "f32", lambda s: s["count"], alignment=8),
)


class Subclass(torch.Tensor):  # type: ignore[misc]
    """Tensors whose facts are what Python says."""


def make_signature(*, has_guards: bool, arguments: Sequence[Argument] = ARGUMENTS) -> Signature:
    with pytest.MonkeyPatch.context() as patch:
        if not has_guards:
            patch.setattr("planfreeze.binding.find_guards", lambda torch: None)
        return Signature("the program", tuple(arguments), DEVICE)


def make_call() -> dict[str, Any]:
    """A call that is right: tensors that begin in the middle of their storage, and one with strides."""
    return {
        "x": torch.zeros(64)[4:28].view(4, 6),
        "count": COUNT,
        "y": torch.zeros(8, 16, dtype=torch.int32)[:6, :8],
        "z": torch.zeros(64)[2:26],
    }


def outcome(signature: Signature, call: dict[str, Any]) -> Any:
    try:
        return signature.check((), call)[0]
    except (InvalidArgument, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def resize(tensor: Any) -> Any:
    return tensor.resize_(max(1, tensor.numel() - 1))


def set_data(tensor: Any) -> Any:
    tensor.data = torch.zeros(2 * tensor.numel() + 1, dtype=tensor.dtype)[1:].double()
    return tensor


def set_other_data(tensor: Any) -> Any:
    tensor.data = torch.zeros(2 * tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return tensor


def free(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


def move(tensor: Any) -> Any:
    return tensor.set_(torch.zeros(200, dtype=tensor.dtype).untyped_storage(), 1, tensor.size(), tensor.stride())


def turn(tensor: Any) -> Any:
    return tensor.transpose_(0, -1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda t: t,
    "another like it": lambda t: torch.zeros_like(t),
    "a view of it": lambda t: t.view(t.shape),
    "one element later": lambda t: torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape),
    "four elements later": lambda t: torch.zeros(t.numel() + 4, dtype=t.dtype)[4:].view(t.shape),
    "longer": lambda t: torch.zeros(2 * t.numel(), dtype=t.dtype),
    "shorter": lambda t: torch.zeros(t.numel() - 1, dtype=t.dtype),
    "empty": lambda t: torch.zeros(0, dtype=t.dtype),
    "first row": lambda t: t[:1],
    "transposed": lambda t: t.reshape(2, -1).T,
    "every second": lambda t: torch.zeros(2 * t.numel(), dtype=t.dtype)[::2],
    "expanded": lambda t: torch.zeros(1, dtype=t.dtype).expand(t.shape),
    "another dtype": lambda t: t.double(),
    "the same bits of another dtype": lambda t: t.view(torch.int32 if t.dtype == torch.float32 else torch.float32),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "compressed": lambda t: t.reshape(2, -1).to_sparse_csr(),
    "needs a gradient": lambda t: torch.zeros(t.shape, dtype=t.dtype).requires_grad_(t.is_floating_point()),
    "parameter": lambda t: torch.nn.Parameter(torch.zeros(t.shape, dtype=t.dtype), requires_grad=False),
    "subclass": lambda t: torch.zeros(t.shape, dtype=t.dtype).as_subclass(Subclass),
    "negated lazily": lambda t: torch._neg_view(torch.zeros(t.shape, dtype=t.dtype)),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "resized in place": resize,
    "other data of another dtype": set_data,
    "other data": set_other_data,
    "freed": free,
    "moved in place": move,
    "turned in place": turn,
    "no tensor": lambda t: "rows",
    "none": lambda t: None,
}
UNREADABLE = {"freed", "sparse", "compressed", "zeros without memory"}
"""What no other change is made from: their elements are nowhere."""
MODES = {
    "plain": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
steps = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(sorted(MODES)),
        strategies.sampled_from(["x", "y", "z"]),
        strategies.sampled_from(sorted(CHANGES)),
        strategies.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(steps)
def test_a_known_look_is_accepted_where_a_check_of_every_tensor_accepts_and_gives_the_same_words(steps: Any) -> None:
    known, plain = make_signature(has_guards=True), make_signature(has_guards=False)
    call = make_call()
    assert outcome(known, call) == outcome(plain, call)
    for mode, name, change, is_kept in steps:
        with MODES[mode]():
            try:
                changed = call | {name: CHANGES[change](call[name])}
            except RuntimeError:  # torch refuses the change
                changed = call
            assert outcome(known, changed) == outcome(known, changed) == outcome(plain, changed)
        if change in UNREADABLE:
            call = make_call()
        elif is_kept and isinstance(changed[name], torch.Tensor):
            call = changed


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_every_change_of_a_known_call_is_judged_as_without_looks(change: str, name: str) -> None:
    known, plain, call = make_signature(has_guards=True), make_signature(has_guards=False), make_call()
    outcome(known, call)
    call[name] = CHANGES[change](call[name])
    assert outcome(known, call) == outcome(plain, call)


def test_tensors_that_look_as_known_ones_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = make_signature(has_guards=True)
    signature.check((), make_call())
    monkeypatch.setattr(signature, "_check_tensors", lambda *values: pytest.fail("looked at"))
    for count in range(3):
        call = make_call()
        words = signature.check((), call)[0]
        assert words[:8] == call["x"].data_ptr().to_bytes(8, "little"), count


def test_alignments_that_are_no_powers_of_two_are_held_to_as_well() -> None:
    signature = make_signature(has_guards=True, arguments=[pointer("x", "f32", lambda s: 1, alignment=12)])
    memory = torch.zeros(16)
    for _ in range(2):
        accepted = [type(outcome(signature, {"x": memory[i : i + 1]})) is bytes for i in range(12)]
        assert accepted == [(memory.data_ptr() + 4 * i) % 12 == 0 for i in range(12)]


def test_a_look_keeps_no_tensor_alive() -> None:
    signature, call = make_signature(has_guards=True), make_call()
    alive = [weakref.ref(value) for value in call.values() if isinstance(value, torch.Tensor)]
    for _ in range(2):
        signature.check((), call)
    call.clear()
    gc.collect()
    assert [found() for found in alive] == [None] * 3


def count_made(calls: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """How many matches are made for calls, and how many calls match."""
    made = matched = 0

    def make_match(tensors: Sequence[Any]) -> Any:
        nonlocal made
        made += 1
        return guards(tensors)

    guards = find_guards(torch)
    assert guards is not None
    looks = TensorLooks(make_match)
    for tensors in calls:
        if looks.match(*tensors):
            matched += 1
        else:
            looks.learn(tensors)
    return made, matched


def test_looks_that_alternate_are_learnt_ever_more_rarely() -> None:
    one, other = [torch.zeros(4)], [torch.zeros(5)]
    made, matched = count_made([one, other] * 512)
    assert made <= 10 and 500 <= matched <= 524
    assert count_made([[torch.zeros(size)] for size in range(1024)]) == (11, 0)
    assert count_made([*[[torch.zeros(size)] for size in range(64)], *[one] * 128])[1] >= 64


def test_nothing_is_learnt_of_what_cannot_be_compared() -> None:
    twice = torch.zeros(4)
    nested = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)])
    for tensors in ([twice, twice], [twice, twice.as_subclass(Subclass)], [nested], [torch.eye(3).to_sparse_csr()]):
        assert count_made([tensors] * 2)[1] == 0


def test_threads_that_learn_each_its_own_look_get_their_own_words() -> None:
    signature, wrong = make_signature(has_guards=True), []

    def run(size: int) -> None:
        for _ in range(300):
            call = make_call() | {"x": torch.zeros(size)}
            expected = call["x"].data_ptr().to_bytes(8, "little")
            if signature.check((), call)[0][:8] != expected:
                wrong.append(size)
            if type(outcome(signature, call | {"x": torch.zeros(COUNT - 1)})) is bytes:
                wrong.append(COUNT - 1)

    threads = [threading.Thread(target=run, args=(COUNT + place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def blind(*tensors: Any, **sizes: Any) -> Any:
    return SimpleNamespace(check=lambda *tensors: True)


def refusing(*tensors: Any) -> Any:
    return SimpleNamespace(check=lambda *tensors: True)


@pytest.mark.parametrize("guards", [None, blind, refusing, lambda *tensors, **sizes: None])
def test_a_torch_without_guards_that_compare_is_checked_one_by_one(
    guards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", guards)
    assert find_guards.__wrapped__(torch) is None
