"""Gates: every name of a function meets the check; taken off, the function is what it was."""

import inspect
import math
import threading
from types import ModuleType
from typing import Any

import pytest

from planfreeze.guard.attempts import NO_ATTEMPT, Attempt, definition_of, user_location
from planfreeze.guard.gates import install_gate


class RefusedError(Exception):
    """What the gate of a test raises."""


def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    return Attempt(road="test", kernel=repr(arguments), signature=repr(options), location=user_location("?:0"))


def refuse(attempt: Attempt) -> None:
    raise RefusedError(attempt)


def plain(first: int, second: int = 2, *, third: int = 3) -> tuple[int, int, int]:
    return first, second, third


def make_closure(offset: int, scale: int) -> Any:
    def scaled(value: int) -> int:
        return value * scale + offset

    return scaled


def make_module(**functions: Any) -> ModuleType:
    module = ModuleType("gated")
    vars(module).update(functions)
    return module


class Owner:
    """A class with the three kinds of functions."""

    def method(self, value: int) -> int:
        return value + 1

    @staticmethod
    def static(value: int) -> int:
        return value + 2

    @classmethod
    def of_class(cls, value: int) -> tuple[type, int]:
        return cls, value


@pytest.mark.parametrize("function", [plain, make_closure(1, 10), lambda value: value])
def test_a_name_bound_before_is_gated_and_restored(function: Any) -> None:
    code, defaults, keywords, attributes = (
        function.__code__,
        function.__defaults__,
        function.__kwdefaults__,
        dict(function.__dict__),
    )
    expected, signature = function(5), inspect.signature(function)
    release = install_gate(make_module(name=function), "name", describe, refuse)
    with pytest.raises(RefusedError):
        function(5)
    assert inspect.signature(function) == signature
    release()
    assert function(5) == expected
    assert function.__code__ is code and function.__kwdefaults__ is keywords
    assert function.__defaults__ is defaults and function.__dict__ == attributes
    release()
    assert function.__code__ is code


def test_an_admitted_call_gets_its_arguments_and_defaults() -> None:
    seen: list[Attempt] = []
    release = install_gate(make_module(name=plain), "name", describe, seen.append)
    try:
        assert plain(1) == (1, 2, 3)
        assert plain(1, third=9) == (1, 2, 9)
        assert plain(1, second=8) == (1, 8, 3)
    finally:
        release()
    assert [attempt.signature for attempt in seen] == ["{}", "{'third': 9}", "{'second': 8}"]
    assert seen[0].location.startswith(__file__)


@pytest.mark.parametrize("name", ["method", "static", "of_class"])
def test_functions_of_classes_are_gated_for_instances_that_exist(name: str) -> None:
    bound = getattr(Owner(), name)
    expected = bound(3)
    release = install_gate(Owner, name, describe, refuse)
    with pytest.raises(RefusedError):
        bound(3)
    release()
    assert bound(3) == expected


def test_a_builtin_is_gated_at_its_attribute() -> None:
    module = make_module(root=math.sqrt)
    release = install_gate(module, "root", describe, refuse)
    with pytest.raises(RefusedError):
        module.root(4.0)
    kept = module.root
    release()
    assert module.root is math.sqrt and kept(4.0) == 2.0


def test_a_gate_others_wrapped_goes_inert() -> None:
    module = make_module(root=math.sqrt)
    release = install_gate(module, "root", describe, refuse)
    inner = module.root
    module.root = lambda value: inner(value) + 1
    release()
    assert module.root(4.0) == 3.0


def test_code_others_exchanged_later_is_left_alone() -> None:
    def first(value: int) -> int:
        return value

    def second(value: int) -> int:
        return -value

    release = install_gate(make_module(name=first), "name", describe, refuse)
    gated, first.__code__ = first.__code__, second.__code__
    release()
    assert first(4) == -4
    first.__code__ = gated
    assert first(4) == 4


def test_what_an_admitted_call_calls_is_part_of_it_in_its_own_thread_only() -> None:
    def inner() -> None:
        pass

    def outer() -> None:
        inner()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    seen: list[Attempt] = []
    releases = [install_gate(make_module(name=each), "name", describe, seen.append) for each in (inner, outer)]
    outer()
    for release in releases:
        release()
    assert len(seen) == 2


def test_a_call_without_attempt_goes_on() -> None:
    release = install_gate(make_module(name=plain), "name", lambda arguments, options: None, refuse)
    try:
        assert plain(1) == (1, 2, 3)
    finally:
        release()


def test_what_a_call_that_is_no_attempt_calls_is_watched() -> None:
    def inner() -> None:
        pass

    def outer() -> None:
        inner()

    seen: list[Attempt] = []
    releases = [
        install_gate(make_module(name=outer), "name", lambda arguments, options: NO_ATTEMPT, seen.append),
        install_gate(make_module(name=inner), "name", describe, seen.append),
    ]
    outer()
    for release in releases:
        release()
    assert len(seen) == 1


def test_the_rest_of_a_call_that_led_to_an_attempt_is_part_of_it_and_no_more() -> None:
    def lower() -> None:
        pass

    def assemble() -> None:
        pass

    def serve(is_hit: bool) -> None:
        if not is_hit:
            lower()
            assemble()

    seen: list[Attempt] = []
    releases = [
        install_gate(make_module(name=serve), "name", lambda arguments, options: NO_ATTEMPT, seen.append),
        install_gate(make_module(name=lower), "name", describe, seen.append),
        install_gate(make_module(name=assemble), "name", describe, seen.append),
    ]
    for is_hit, count in ((True, 0), (False, 1), (False, 2)):
        serve(is_hit)
        assert len(seen) == count
    assemble()
    assert len(seen) == 3, "outside the call it is an attempt again"
    for release in releases:
        release()


@pytest.mark.parametrize(("is_covering", "count"), [(True, 1), (False, 2)])
def test_an_admitted_call_covers_what_it_calls_unless_it_is_said_not_to(is_covering: bool, count: int) -> None:
    def inner() -> None:
        pass

    def outer() -> None:
        inner()

    seen: list[Attempt] = []
    releases = [
        install_gate(make_module(name=outer), "name", describe, seen.append, is_covering=is_covering),
        install_gate(make_module(name=inner), "name", describe, seen.append),
    ]
    outer()
    for release in releases:
        release()
    assert len(seen) == count


def test_a_missing_function_is_an_error() -> None:
    with pytest.raises(AttributeError, match="gated has no function name"):
        install_gate(make_module(), "name", describe, refuse)


def test_a_call_from_no_user_frame_is_located_at_the_definition() -> None:
    places: list[str] = []
    namespace: dict[str, Any] = {"__name__": "planfreeze.probe", "note": places.append, "locate": user_location}
    exec("def run(): note(locate('kernel.py:7'))", namespace)
    thread = threading.Thread(target=namespace["run"])
    thread.start()
    thread.join()
    assert places == ["kernel.py:7"]
    assert definition_of(plain) == f"{__file__}:{plain.__code__.co_firstlineno}"
    assert definition_of(math.sqrt) == "unknown:0"
