"""Imports: a watched module is seen at every import, before the importing statement returns."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from planfreeze.guard.imports import ImportWatcher, is_importing, wait_for_imports

NAMES = frozenset({"watched_package.part", "watched_package.slow", "watched_broken"})
FILES = {
    "watched_package/__init__.py": "from watched_package.part import value\nseen_first = value.seen\n",
    "watched_package/part.py": "class value:\n    seen = False\n",
    "watched_package/slow.py": (
        "import sys\nsteps = sys.modules['watched_steps']\nsteps.started.set()\nsteps.go_on.wait(30)\ndone = True\n"
    ),
    "watched_broken.py": "raise ValueError('broken')\n",
}


@pytest.fixture
def arrivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """Modules that arrived at a watcher of a package in a temporary folder."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    arrived: list[ModuleType] = []

    def note(module: ModuleType) -> None:
        arrived.append(module)
        if hasattr(module, "value"):
            module.value.seen = True

    watcher = ImportWatcher(NAMES, note, lambda: None)
    sys.meta_path.insert(0, watcher)
    yield arrived
    sys.meta_path.remove(watcher)
    for name in [name for name in sys.modules if name.startswith("watched_")]:
        del sys.modules[name]


def test_a_module_is_seen_before_its_import_returns(arrivals: list[ModuleType]) -> None:
    package = importlib.import_module("watched_package")
    assert [module.__name__ for module in arrivals] == ["watched_package.part"]
    assert package.seen_first is True


def test_a_module_is_seen_again_when_reloaded_or_imported_again(arrivals: list[ModuleType]) -> None:
    first = importlib.import_module("watched_package.part")
    assert importlib.reload(first) is first
    del sys.modules["watched_package.part"]
    second = importlib.import_module("watched_package.part")
    assert arrivals == [first, first, second] and second is not first


def test_a_module_keeps_its_own_loader(arrivals: list[ModuleType]) -> None:
    module = importlib.import_module("watched_package.part")
    assert module.__spec__ is not None and module.__loader__ is module.__spec__.loader
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_a_module_loaded_by_hand_is_seen(arrivals: list[ModuleType]) -> None:
    importlib.import_module("watched_package")
    spec = importlib.util.find_spec("watched_package.slow")
    assert spec is not None and spec.loader is not None
    assert "done = True" in spec.loader.get_source("watched_package.slow")  # type: ignore[attr-defined]


def test_a_module_that_fails_is_not_seen(arrivals: list[ModuleType]) -> None:
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("watched_broken")
    assert not arrivals and "watched_broken" not in sys.modules


def test_another_finder_of_the_kind_does_not_loop(arrivals: list[ModuleType]) -> None:
    seen: list[ModuleType] = []
    second = ImportWatcher(NAMES, seen.append, lambda: None)
    sys.meta_path.insert(0, second)
    try:
        module = importlib.import_module("watched_package.part")
    finally:
        sys.meta_path.remove(second)
    assert seen == [module] and arrivals == [module]


def test_imports_of_other_threads_are_waited_for(arrivals: list[ModuleType]) -> None:
    steps = ModuleType("watched_steps")
    steps.started, steps.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    sys.modules["watched_steps"] = steps
    importer = threading.Thread(target=importlib.import_module, args=("watched_package.slow",))
    importer.start()
    assert steps.started.wait(30)
    assert is_importing(sys.modules["watched_package.slow"])
    waiter = threading.Thread(target=wait_for_imports, args=(NAMES,))
    waiter.start()
    steps.go_on.set()
    waiter.join(30)
    assert not waiter.is_alive()
    assert sys.modules["watched_package.slow"].done and not is_importing(sys.modules["watched_package.slow"])
    importer.join(30)
