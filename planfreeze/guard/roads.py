"""Roads: the ways to one compiler, each described in a file of its own."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from planfreeze import errors
from planfreeze.guard.attempts import Describe, Install, Release, Report
from planfreeze.guard.gates import install_gate

__all__ = ["Door", "LazyRoad", "Road", "watch_doors"]


class Door(NamedTuple):
    """A function that calls to the compiler pass through.

    Parameters
    ----------
    module : str
        Module that defines it.
    path : str
        Attribute, or class and attribute with a dot.
    describe : callable
        From the arguments of a call to an attempt; None if it goes on with one already reported, ``NO_ATTEMPT``
        if it is none.
    is_covering : bool
        Whether what an admitted call calls is part of its attempt.
    """

    module: str
    path: str
    describe: Describe
    is_covering: bool = True


class Road(NamedTuple):
    """One kind of compiling.

    Parameters
    ----------
    name : str
        Name in counts and messages.
    package : str
        What must be importable for the road to exist.
    modules : tuple of str
        Modules it waits for: ``install`` is called for each as soon as it has been executed, again if it is
        imported again.
    install : callable
        ``install(module, report)`` puts the hooks of that module in place and returns what takes them off.
        Hooks call ``report`` before any work; those others installed are kept and called.
    attempts : tuple of callables
        Deliberate attempts, one per door a user can reach; each imports what it needs.
    """

    name: str
    package: str
    modules: tuple[str, ...]
    install: Install
    attempts: tuple[Callable[[], object], ...]


class LazyRoad:
    """A road whose file is loaded when a module of it is there: a process meets few of the compilers there are.

    Parameters are those of :class:`Road`; the file, beside this one, has the road's name.
    """

    def __init__(self, name: str, package: str, *modules: str) -> None:
        self.name, self.package, self.modules = name, package, modules
        self.stem = name.replace("-", "_")

    @property
    def file(self) -> ModuleType:
        """The module that describes the road."""
        return import_module(f"planfreeze.guard.{self.stem}")

    def load(self) -> Road:
        """Return the road.

        Raises
        ------
        UnwatchableRoad
            Its file cannot be loaded. An ``ImportError`` would read as that the compiler is not installed.
        """
        try:
            road: Road = self.file.road
        except (ImportError, OSError) as error:
            raise errors.UnwatchableRoad(self.name, f"planfreeze.guard.{self.stem}", str(error)) from error
        return road

    @property
    def install(self) -> Install:
        """What the road installs."""
        return self.load().install

    @property
    def attempts(self) -> tuple[Callable[[], object], ...]:
        """Deliberate attempts."""
        return self.load().attempts


def watch_doors(name: str, doors: tuple[Door, ...]) -> Install:
    """Return the ``install`` of a road that consists of doors.

    Raises
    ------
    UnwatchableRoad
        (On install) the module does not have one of its doors: another version of the compiler.
    """

    def install(module: ModuleType, report: Report) -> Release:
        releases: list[Release] = []
        for door in doors:
            if door.module != module.__name__:
                continue
            owner, _, attribute = door.path.rpartition(".")
            try:
                place = getattr(module, owner) if owner else module
                releases.append(install_gate(place, attribute, door.describe, report, is_covering=door.is_covering))
            except AttributeError as error:
                release_all(releases)
                raise errors.UnwatchableRoad(name, f"{door.module}:{door.path}") from error
        return lambda: release_all(releases)

    return install


def release_all(releases: list[Release]) -> None:
    """Take hooks off, the last one first."""
    for release in reversed(releases):
        release()
