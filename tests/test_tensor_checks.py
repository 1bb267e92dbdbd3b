"""Checks of tensors: what is taken in one go is what a look at every tensor accepts, whatever tensors do meanwhile."""

import gc
import threading
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from planfreeze.binding import Signature
from planfreeze.dtypes import DType
from planfreeze.errors import InvalidArgument
from planfreeze.family import Argument, pointer, scalar

from .checked_calls import check_words, without_extension

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies
from torch._subclasses import FakeTensorMode  # noqa: E402 - torch is there from here on
from torch.overrides import TorchFunctionMode  # noqa: E402

from .tensor_changes import CHANGES, MODES, UNREADABLE, free  # noqa: E402

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


def make_signature(
    *, is_one_by_one: bool = False, arguments: Sequence[Argument] = ARGUMENTS, device: Any = DEVICE
) -> Signature:
    with pytest.MonkeyPatch.context() as patch:
        if is_one_by_one:
            without_extension(patch)
        return Signature("the program", tuple(arguments), device)


def make_both(**options: Any) -> tuple[Signature, Signature]:
    return make_signature(**options), make_signature(is_one_by_one=True, **options)


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
        return check_words(signature, **call)
    except (InvalidArgument, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


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
def test_what_is_taken_in_one_go_is_what_a_look_at_every_tensor_accepts_with_the_same_words(steps: Any) -> None:
    both, plain = make_both()
    call = make_call()
    assert outcome(both, call) == outcome(plain, call)
    for mode, name, change, is_kept in steps:
        with MODES[mode]():
            try:
                changed = call | {name: CHANGES[change](call[name])}
            except (RuntimeError, AssertionError, TypeError):  # torch refuses the change
                changed = call
            assert outcome(both, changed) == outcome(both, changed) == outcome(plain, changed)
        if change in UNREADABLE or mode == "fake tensors":
            call = make_call()
        elif is_kept and isinstance(changed[name], torch.Tensor):
            call = changed


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_every_change_of_a_call_is_judged_alike_on_both_roads(change: str, name: str) -> None:
    (both, plain), call = make_both(), make_call()
    outcome(both, call)
    call[name] = CHANGES[change](call[name])
    assert outcome(both, call) == outcome(plain, call)


PLAIN = ["another like it", "longer", "needs a gradient", "negated lazily", "nothing", "parameter"]


def test_plain_tensors_and_parameters_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = make_signature()
    monkeypatch.setattr(signature, "_check_tensors", lambda *values: pytest.fail("looked at"))
    for change in PLAIN:
        for mode in MODES.values():
            call = make_call()
            call["x"] = CHANGES[change](call["x"])
            with mode():
                words = check_words(signature, **call)
            assert words[:8] == call["x"].data_ptr().to_bytes(8, "little"), change
    twice = make_call()
    twice["z"] = twice["x"]
    assert len(check_words(signature, **twice)) == 32


def make_of(dtype: Any) -> Any:
    """A tensor of a dtype, or None where torch makes none."""
    try:
        return torch.zeros(16, dtype=torch.uint8).view(dtype)
    except RuntimeError:
        return None


NAMES = {"bool": "bool", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
NAMES |= {f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)} | {
    f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)
}
NAMES |= {f"f{bits}": f"float{bits}" for bits in (16, 32, 64)}


def test_every_type_of_arguments_is_taken_in_one_go_and_no_other_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = {found for name in dir(torch) if isinstance(found := getattr(torch, name), torch.dtype)}
    calls = [{"x": tensor} for dtype in dtypes if (tensor := make_of(dtype)) is not None]
    assert len(calls) > 20
    wanted = {name: getattr(torch, NAMES[name]) for name in get_args(DType)}
    device = SimpleNamespace(**vars(DEVICE) | {"dtypes": wanted})
    for name, dtype in wanted.items():
        arguments = [Argument(name="x", dtype=name, is_pointer=True, alignment=1)]
        both, plain = make_both(arguments=arguments, device=device)
        assert [outcome(both, call) for call in calls] == [outcome(plain, call) for call in calls]
        monkeypatch.setattr(both, "_check_tensors", lambda *values: [0])
        assert [call["x"].dtype for call in calls if outcome(both, call) != bytes(8)] == [dtype]


class Refusing(TorchFunctionMode):  # type: ignore[misc]
    """Lets nobody see what a tensor is."""

    def __torch_function__(self, call: Any, types: Any, values: Any = (), named: Any = None) -> Any:
        raise RuntimeError("refused")


@pytest.mark.parametrize("mode", sorted(MODES))
def test_bytes_are_told_from_integers_of_fewer_bits_in_every_mode(mode: str) -> None:
    device = SimpleNamespace(**vars(DEVICE) | {"dtypes": {"u8": torch.uint8}})
    both, plain = make_both(arguments=[pointer("x", "u8", lambda s: 16)], device=device)
    for dtype, is_right in ((torch.uint8, True), (torch.uint4, False), (torch.int8, False)):
        call = {"x": torch.zeros(16, dtype=torch.uint8).view(dtype)}
        with MODES[mode]():
            assert outcome(both, call) == outcome(plain, call)
        assert (type(outcome(both, call)) is bytes) == is_right
        with Refusing():
            assert outcome(both, call) == outcome(plain, call) == "RuntimeError: refused"


def test_tensors_in_transforms_of_functions_are_judged_alike_on_both_roads() -> None:
    both, plain = make_both()
    seen: list[str] = []

    def look(tensor: Any) -> Any:
        call = make_call() | {"x": tensor}
        assert outcome(both, call) == outcome(plain, call)
        seen.append(str(outcome(both, call)))
        return tensor.sum()

    rows = torch.zeros(2, COUNT)
    torch.vmap(look)(rows)
    torch.func.grad(look)(rows[0])
    torch.func.jvp(look, (rows[0],), (rows[0],))
    torch.func.functionalize(look)(rows[0])
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(rows[0], rows[1]))
    assert ["storage" in verdict for verdict in seen] == [True, True, True, False, False]
    assert "x has no memory here for its 24 elements" in seen[3]


def test_a_program_that_is_made_among_fake_tensors_judges_as_any_other() -> None:
    with FakeTensorMode():
        made_there = make_signature()
    both, plain = make_both()
    for change in CHANGES.values():
        call = make_call()
        call["x"] = change(call["x"])
        assert outcome(made_there, call) == outcome(both, call) == outcome(plain, call)


def test_sizes_beyond_those_of_any_tensor_are_refused() -> None:
    for elements, is_right in [(-5, True), (0, True), (24, True), (25, False), (2**63, False), (2**70, False)]:
        for signature in make_both(arguments=[pointer("x", "f32", lambda s, count=elements: count)]):
            assert (type(outcome(signature, {"x": torch.zeros(24)})) is bytes) == is_right


FREED = ["freed", "freed in part of another", "functional", "functional part of another", "zeros without memory"]


@pytest.mark.parametrize("change", FREED)
def test_a_tensor_without_memory_is_refused(change: str) -> None:
    aligned = pointer("x", "f32", lambda s: COUNT, alignment=32)
    for signature in (*make_both(), *make_both(arguments=[aligned])):
        call = make_call() | {"x": CHANGES[change](torch.zeros(COUNT))}
        call = call if len(signature.arguments) > 1 else {"x": call["x"]}
        with pytest.raises(InvalidArgument, match="x has no memory here for its 24 elements"):
            check_words(signature, **call)


def test_a_tensor_without_elements_needs_no_memory_where_no_elements_are_needed() -> None:
    for needed, verdict in ((0, bytes(8)), (1, "x has 0 elements, the kernel may touch 1")):
        for signature in make_both(arguments=[pointer("x", "f32", lambda s, needed=needed: needed)]):
            for tensor in (torch.zeros(0), torch.zeros(3, 0), torch.zeros(9)[4:4], free(torch.zeros(8)[4:4])):
                found = outcome(signature, {"x": tensor})
                assert found == verdict if needed == 0 else verdict in found


def test_alignments_that_are_no_powers_of_two_are_held_to_as_well() -> None:
    memory = torch.zeros(16)
    for signature in make_both(arguments=[pointer("x", "f32", lambda s: 1, alignment=12)]):
        accepted = [type(outcome(signature, {"x": memory[i : i + 1]})) is bytes for i in range(12)]
        assert accepted == [(memory.data_ptr() + 4 * i) % 12 == 0 for i in range(12)]


def test_a_check_keeps_no_tensor_alive() -> None:
    signature, call = make_signature(), make_call()
    alive = [weakref.ref(value) for value in call.values() if isinstance(value, torch.Tensor)]
    for _ in range(2):
        check_words(signature, **call)
    call.clear()
    gc.collect()
    assert [found() for found in alive] == [None] * 3


def test_threads_that_check_calls_of_one_program_get_their_own_words() -> None:
    signature, wrong = make_signature(), []

    def run(size: int) -> None:
        for _ in range(300):
            call = make_call() | {"x": torch.zeros(size)}
            expected = call["x"].data_ptr().to_bytes(8, "little")
            if check_words(signature, **call)[:8] != expected:
                wrong.append(size)
            if type(outcome(signature, call | {"x": torch.zeros(COUNT - 1)})) is bytes:
                wrong.append(COUNT - 1)

    threads = [threading.Thread(target=run, args=(COUNT + place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
