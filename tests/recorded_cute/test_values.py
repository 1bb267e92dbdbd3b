"""Values as fields: they come back as they were, in another process too, or are refused with their place."""

import functools
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from planfreeze.errors import UnnameableConstant
from planfreeze.recorded.cute_calls import make_options
from planfreeze.recorded.cute_function import CuteFunctionPayload
from planfreeze.recorded.spelling import spell_value
from planfreeze.recorded.values import field_modules, freeze_value, thaw_value

MODULE = "values_of_somebody"
TEXT = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from dataclasses import dataclass
from typing import Optional
MAYBE = Optional[list[int]]
class Color(Enum):
    RED = 1
Point = namedtuple("Point", "x y")
@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    color: object = None
class Private:
    __slots__ = ("__hidden", "plain")
    def __init__(self): self.__hidden, self.plain = 5, [1]
    def __eq__(self, other): return self.__hidden == other.__hidden and self.plain == other.plain
class Base: pass
class Plain(Base):
    def __init__(self, **held): vars(self).update(held)
    def __eq__(self, other): return type(other) is Plain and vars(self) == vars(other)
def double(x): return 2 * x
def adder(n, *more, scale=1):
    def add(x: int, y: float = 0.5, *, z=None):
        return scale * (x + n + sum(more))
    return add
def twins(flag):
    if flag:
        def twin(): return 1
    else:
        def twin(): return 2
    return twin
def unset():
    def early(): return late
    return early
    late = 1
"""


@pytest.fixture(scope="module")
def somebody(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("somebody")
    (folder / f"{MODULE}.py").write_text(TEXT)
    sys.path.insert(0, str(folder))
    try:
        yield __import__(MODULE)
    finally:
        sys.path.remove(str(folder))
        del sys.modules[MODULE]


VALUES = {
    "plain": lambda m: (1, True, "text", 0.1, None, -0.0),
    "containers": lambda m: [1, (2, [3]), {"a": {"b": (4,)}, 5: None}],
    "a class": lambda m: m.Plain,
    "an enumeration member": lambda m: m.Color.RED,
    "a named tuple": lambda m: m.Point(1, [2]),
    "a dataclass with slots": lambda m: m.Tile(8, m.Color.RED),
    "private slots": lambda m: m.Private(),
    "nested instances": lambda m: m.Plain(a=m.Plain(b=(1, 2)), c=[m.Tile(4)], d=m.double),
    "an annotation": lambda m: m.MAYBE,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(somebody: Any, name: str) -> None:
    value = VALUES[name](somebody)
    frozen = freeze_value("value", value)
    back = thaw_value(frozen)
    assert back == value and type(back) is type(value)
    assert freeze_value("value", back) == frozen
    # As a recording's file and a plan hold it.
    payload = CuteFunctionPayload(function="m:f", arguments=(("x", ("constant", frozen)),))
    assert CuteFunctionPayload.from_fields(payload.to_fields()).digest == payload.digest
    assert isinstance(spell_value(frozen), str)


CALLS = {
    "a number": lambda m, path: ("\0number", "os:mkdir", path),
    "a named tuple": lambda m, path: ("\0named tuple", "os:mkdir", path),
    "a class that is no number": lambda m, path: ("\0number", "pathlib:Path", path),
    "a decorator": lambda m, path: tuple(("compile", True) if part == ("", True) else part for part in add_field(m)),
}


def add_field(somebody: Any) -> Any:
    return freeze_value("function", somebody.adder(1))


@pytest.mark.parametrize("name", CALLS)
def test_a_field_that_was_changed_by_hand_calls_nothing(somebody: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(UnnameableConstant):
        thaw_value(CALLS[name](somebody, str(tmp_path / "made")))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("option", ["import_module", "DumpDir", "KeepPTX"])
def test_an_option_that_was_changed_by_hand_is_none(option: str, tmp_path: Path) -> None:
    payload = CuteFunctionPayload(function="m:f", options=((option, str(tmp_path)),))
    with pytest.raises(UnnameableConstant, match=option):
        make_options(payload)


def test_a_shared_object_is_no_cycle(somebody: Any) -> None:
    shared = somebody.Plain(a=1)
    assert thaw_value(freeze_value("value", (shared, [shared]))) == (shared, [shared])


def test_true_and_one_and_their_containers_differ(somebody: Any) -> None:
    values = [1, True, 1.0, "1", (1,), [1], (True,), {1: 1}, {True: 1}, somebody.Point(1, 1), (1, 1)]
    frozen = [repr(freeze_value("value", value)) for value in values]
    assert len(set(frozen)) == len(values)


def test_functions_inside_functions_come_back_with_what_they_capture(somebody: Any) -> None:
    add = somebody.adder(10, 1, 2, scale=3)
    frozen = freeze_value("function", add)
    back = thaw_value(frozen)
    assert back(5) == add(5) == 54
    assert (back.__defaults__, back.__kwdefaults__, back.__annotations__) == (
        add.__defaults__,
        add.__kwdefaults__,
        add.__annotations__,
    )
    assert freeze_value("function", back) == frozen
    assert freeze_value("function", somebody.adder(10, 1, 2, scale=4)) != frozen
    assert field_modules(frozen)[0] == MODULE
    assert spell_value(frozen) == f"{MODULE}:adder.<locals>.add(more=(1, 2), n=10, scale=3)"


REFUSED = {
    "a lambda": lambda m: lambda: 1,
    "a partial": lambda m: functools.partial(m.double, 1),
    "a bare object": lambda m: object(),
    "a module": lambda m: sys,
    "an ordered dictionary": lambda m: OrderedDict(a=1),
    "a set": lambda m: {1},
    "bytes": lambda m: b"1",
    "an iterator": lambda m: iter([1]),
    "a subclass of int": lambda m: types.new_class("Number", (int,))(3),
    "one of two functions of a name": lambda m: m.twins(True),
    "a cell that is not set": lambda m: m.unset(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_place(somebody: Any, name: str) -> None:
    with pytest.raises(UnnameableConstant) as caught:
        freeze_value("self", somebody.Plain(held=[0, REFUSED[name](somebody)]))
    assert caught.value.name.removeprefix("type(").startswith(("self.held[1]", "captured late"))


def test_an_object_that_holds_itself_is_refused(somebody: Any) -> None:
    held = somebody.Plain()
    held.inner = [held]
    with pytest.raises(UnnameableConstant, match="holds itself"):
        freeze_value("self", held)


def test_a_changed_text_of_a_function_inside_functions_is_refused(somebody: Any) -> None:
    add = somebody.adder(1)
    add.__code__ = add.__code__.replace(
        co_consts=tuple(2 if c == 1 else c for c in add.__code__.co_consts), co_firstlineno=9
    )
    with pytest.raises(UnnameableConstant, match="its text is not the one in its module"):
        freeze_value("function", add)
