"""Stores, a pack and child processes for the tests of the cache."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.store import Store

from .packs import BODIES, INDEX, PLAN, RECORD, WHOLE

fork = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store opened by a builder."""
    return Store.open(tmp_path / "store", writable=True)


@pytest.fixture
def run_processes() -> Callable[[int, Callable[[int], object]], list[object]]:
    """Run a function in so many processes that start on a barrier; return results by process number."""

    def run(count: int, function: Callable[[int], object]) -> list[object]:
        barrier = fork.Barrier(count)
        answers = fork.SimpleQueue()

        def child(number: int) -> None:
            try:
                barrier.wait(60)
                answers.put((number, function(number)))
            except BaseException:  # noqa: BLE001  # the parent reports it
                answers.put((number, ChildFailed(traceback.format_exc())))

        processes = [fork.Process(target=child, args=(number,)) for number in range(count)]
        for process in processes:
            process.start()
        results = dict(answers.get() for _ in processes)
        for process in processes:
            process.join()
        for result in results.values():
            if isinstance(result, ChildFailed):
                pytest.fail(str(result))
        return [results[number] for number in range(count)]

    return run


class ChildFailed(Exception):
    """Traceback of a child, as text."""


def list_files(root: Path) -> set[str]:
    """Every file below a folder, relative to it."""
    return {str((Path(folder) / name).relative_to(root)) for folder, _, names in os.walk(root) for name in names}


@pytest.fixture
def files_of() -> Callable[[Path], set[str]]:
    return list_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a pack."""
    place = tmp_path / "a.pfz"
    assert write_pack(place, INDEX, (PLAN, RECORD, *BODIES)) == len(WHOLE)
    assert place.read_bytes() == WHOLE
    return place
