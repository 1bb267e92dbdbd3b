"""What the workers of a run have in common: folders, fingerprints of compilers, a store of whole models."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.store import Store


@pytest.fixture(scope="session")
def toolchains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fingerprints of the compilers are remembered in this run, by all its workers."""
    folder = shared_folder(tmp_path_factory) / "toolchains"
    folder.mkdir(exist_ok=True)
    return folder


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Make a folder unless it is there: the first worker of a run makes it, under another name, and the others wait."""
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            part = place.with_suffix(".part")
            make(part)
            part.rename(place)
    return place


@pytest.fixture(scope="session")
def link_toolchains(toolchains: Path) -> Callable[[Path], None]:
    """Let a user's cache directory remember the fingerprints of this run: to read every file takes a second."""

    def link(cache: Path) -> None:
        (cache / "planfreeze").mkdir(parents=True, exist_ok=True)
        (cache / "planfreeze" / "toolchains").symlink_to(toolchains)

    return link


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that all workers of a run build whole models into: what one has built, the others find."""
    return Store.open(shared_folder(tmp_path_factory) / "models", writable=True)
