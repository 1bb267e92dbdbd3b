"""The watch: modules that came another way, half imported, or of an unknown version."""

import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planfreeze.errors import UnwatchableRoad
from planfreeze.guard.attempts import Attempt
from planfreeze.guard.roads import Door, LazyRoad, Road, watch_doors
from planfreeze.guard.watch import ROADS, Watch


class RefusedError(Exception):
    """What the listener of a test raises."""


class Refusing:
    """A listener that refuses."""

    mode = "raise"
    allowed: frozenset[str] = frozenset()

    def count(self, attempt: Attempt) -> None:
        pass

    def answer(self, attempt: Attempt) -> None:
        raise RefusedError(attempt)

    def renew_lock(self) -> None:
        pass


def describe(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    return Attempt(road="toy", kernel="k", signature="", location="toy.py:1")


DOOR = Door(module="toy_compiler", path="Compiler.lower", describe=describe)
ROAD = Road(
    name="toy",
    package="toy_compiler",
    modules=("toy_compiler",),
    install=watch_doors("toy", (DOOR,)),
    attempts=(),
)
COMPILER = "class Compiler:\n    def lower(self):\n        return 'lowered'\n"


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A watch over a small module, apart from the process's own."""
    made = Watch((ROAD,))
    yield made
    for guard in made.armed:
        made.release(guard)
    for name in [name for name in sys.modules if name.startswith("toy_")]:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module into a folder that is imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    return write_module


@pytest.mark.parametrize("lazy", ROADS, ids=lambda lazy: lazy.name)
def test_what_is_said_of_a_road_before_its_file_is_loaded_is_what_the_file_says(lazy: LazyRoad) -> None:
    road = lazy.load()
    assert (lazy.name, lazy.package, lazy.modules) == (road.name, road.package, road.modules)


def test_a_loaded_module_is_hooked_when_armed_and_free_when_released(watch: Watch, write) -> None:
    write("toy_compiler", COMPILER)
    compiler = importlib.import_module("toy_compiler").Compiler()
    guard = Refusing()
    watch.arm(guard)
    with pytest.raises(RefusedError):
        compiler.lower()
    watch.release(guard)
    assert compiler.lower() == "lowered"


def test_a_module_that_came_another_way_is_hooked_at_the_next_import(watch: Watch, write) -> None:
    write("toy_compiler", COMPILER)
    module = importlib.import_module("toy_compiler")
    del sys.modules["toy_compiler"]
    watch.arm(Refusing())
    sys.modules["toy_compiler"] = module
    write("toy_other", "")
    importlib.import_module("toy_other")
    with pytest.raises(RefusedError):
        module.Compiler().lower()


def test_arming_while_the_module_imports_itself_hooks_it_at_the_next_import(watch: Watch, write) -> None:
    write("toy_compiler", "import toy_freezer\n" + COMPILER)
    write("toy_freezer", "import sys\nsys.modules['toy_steps'].arm()\n")
    write("toy_other", "")
    steps = type(sys)("toy_steps")
    steps.arm = lambda: watch.arm(Refusing())  # type: ignore[attr-defined]
    sys.modules["toy_steps"] = steps
    module = importlib.import_module("toy_compiler")
    importlib.import_module("toy_other")
    with pytest.raises(RefusedError):
        module.Compiler().lower()


def test_arming_waits_for_the_module_another_thread_imports(watch: Watch, write) -> None:
    write("toy_compiler", "import toy_steps\ntoy_steps.started.set()\ntoy_steps.go_on.wait(30)\n" + COMPILER)
    steps = type(sys)("toy_steps")
    steps.started, steps.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    sys.modules["toy_steps"] = steps
    armed = threading.Event()
    importer = threading.Thread(target=importlib.import_module, args=("toy_compiler",))
    armer = threading.Thread(target=lambda: (watch.arm(Refusing()), armed.set()))
    importer.start()
    assert steps.started.wait(30)
    armer.start()
    assert not armed.wait(0.2), "armed although the compiler was half imported"
    steps.go_on.set()
    assert armed.wait(30)
    importer.join(30)
    with pytest.raises(RefusedError):
        sys.modules["toy_compiler"].Compiler().lower()


def test_a_late_import_of_an_unknown_version_fails(watch: Watch, write) -> None:
    write("toy_compiler", "class Compiler:\n    pass\n")
    watch.arm(Refusing())
    with pytest.raises(UnwatchableRoad, match=r"toy_compiler:Compiler\.lower does not exist"):
        importlib.import_module("toy_compiler")
    assert "toy_compiler" not in sys.modules


def test_an_unknown_version_leaves_no_hook_behind(watch: Watch, write) -> None:
    second = Door(module="toy_compiler", path="missing", describe=describe)
    road = Road(
        name="toy",
        package="toy_compiler",
        modules=("toy_compiler",),
        install=watch_doors("toy", (DOOR, second)),
        attempts=(),
    )
    write("toy_compiler", COMPILER)
    compiler = importlib.import_module("toy_compiler").Compiler()
    fresh = Watch((road,))
    with pytest.raises(UnwatchableRoad, match="toy_compiler:missing"):
        fresh.arm(Refusing())
    assert not fresh.armed and fresh.finder not in sys.meta_path
    assert compiler.lower() == "lowered"


def test_a_module_that_became_another_version_is_refused_until_its_hooks_fit(watch: Watch, write) -> None:
    write("toy_compiler", COMPILER)
    write("toy_other", "")
    module = importlib.import_module("toy_compiler")
    installed: list[str] = []
    plain = Road(
        name="plain",
        package="toy_compiler",
        modules=("toy_compiler",),
        install=lambda module, report: installed.append("on") or installed.pop,
        attempts=(),
    )
    watch.roads = (plain, ROAD)
    watch.arm(Refusing())
    write("toy_compiler", "del Compiler\n")
    with pytest.raises(UnwatchableRoad):
        importlib.reload(module)
    for _ in range(3):
        with pytest.raises(UnwatchableRoad):
            importlib.import_module("toy_other")
    assert installed == ["on"]
    module.Compiler = type("Compiler", (), {"lower": lambda self: "lowered"})  # type: ignore[attr-defined]
    importlib.import_module("toy_other")
    with pytest.raises(RefusedError):
        module.Compiler().lower()


class Unloadable(LazyRoad):
    """A road whose file is not there, or cannot be opened."""

    def __init__(self, error: Exception) -> None:
        super().__init__("toy", "toy_compiler", "toy_compiler")
        self.error = error

    @property
    def file(self) -> ModuleType:
        raise self.error


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named toy"), OSError(24, "Too many open files")])
def test_a_road_that_cannot_be_loaded_does_not_read_as_a_compiler_that_is_not_installed(
    watch: Watch, write, error: Exception
) -> None:
    write("toy_compiler", COMPILER)
    watch.roads = (Unloadable(error),)
    watch.arm(Refusing())
    for _ in range(2):
        with pytest.raises(
            UnwatchableRoad, match=r"^toy: planfreeze\.guard\.toy cannot be loaded: .*(named|open)"
        ) as caught:
            importlib.import_module("toy_compiler")
        assert "toy_compiler" not in sys.modules
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_arming_where_a_road_cannot_be_loaded_arms_nothing(watch: Watch, write) -> None:
    write("toy_compiler", COMPILER)
    module = importlib.import_module("toy_compiler")
    watch.roads = (Unloadable(OSError(24, "Too many open files")),)
    with pytest.raises(UnwatchableRoad):
        watch.arm(Refusing())
    assert not watch.armed
    assert watch.finder not in sys.meta_path
    assert module.Compiler().lower() == "lowered"


class Importing(LazyRoad):
    """A road whose file imports a module of its own, and says whether the watch's finder was there by then."""

    def __init__(self, watch: Watch, helper: str) -> None:
        super().__init__("toy", "toy_compiler", "toy_compiler", "toy_twin")
        self.watch, self.helper, self.was_watched = watch, helper, list[bool]()

    def load(self) -> Road:
        if self.helper not in sys.modules:
            self.was_watched.append(self.watch.finder in sys.meta_path)
            importlib.import_module(self.helper)
        return ROAD


@pytest.mark.parametrize("is_late", [False, True])
def test_the_road_to_what_is_there_is_loaded_before_and_others_once_while_nobody_looks_around(
    watch: Watch, write, is_late: bool
) -> None:
    write("toy_compiler", COMPILER)
    write("toy_twin", COMPILER)
    write("toy_helper", "")
    road = Importing(watch, "toy_helper")
    watch.roads, watch.names = (road,), frozenset(road.modules)
    watch.finder.names = watch.names
    if not is_late:
        importlib.import_module("toy_compiler")
    watch.arm(Refusing())
    # Not seen yet when the road is loaded: to look around then would load it again, without end.
    sys.modules["toy_twin"] = type(sys)("toy_twin")
    sys.modules["toy_twin"].Compiler = type("Compiler", (), {"lower": lambda self: None})  # type: ignore[attr-defined]
    with pytest.raises(RefusedError):
        importlib.import_module("toy_compiler").Compiler().lower()
    assert road.was_watched == [is_late]
