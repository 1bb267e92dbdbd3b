"""Times of files and the time of day: neither makes a miss."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from planfreeze.cache.store import Store
from planfreeze.resolve import PlanReference, check_kernels, find_plan, resolve_plan

DAY_S = 86400
DECADE_S = 3653 * DAY_S

# A clock that is off by what CLOCK_OFF_S says, for every time of day that a process asks for.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*ask)(clockid_t, struct timespec *);
    if (!ask) ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = ask(clock, now);
    const char *off = getenv("CLOCK_OFF_S");
    if (clock == CLOCK_REALTIME && off) now->tv_sec += atol(off);
    return status;
}
"""
BUILD = """
import sys, time
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload
plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
store = Store.open(Path(sys.argv[1]), writable=True)
report = build_plans([plan], store, jobs=1, toolchains=Path(sys.argv[2]))
print(report.count("compiled"), report.count("reused"), report.plans[0].root, time.time())
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes a process's clock be off."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a clock that is off is built with a C compiler")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c"), "-ldl"]
    subprocess.run(command, check=True)
    return folder / "clock.so"


@pytest.fixture
def build(interpreter: Any, toolchains: Path) -> Any:
    """Build the plan of the package in a fresh process: how many were compiled, how many found, and its root."""

    def run(store: Path, *, sources: Path | None = None, **variables: str) -> tuple[int, int, str, float]:
        folders = interpreter.folders if sources is None else (sources, *interpreter.folders)
        said = replace(interpreter, folders=folders).run(BUILD, str(store), str(toolchains), **variables)
        compiled, reused, root, now = said.split()
        return int(compiled), int(reused), root, float(now)

    return run


def set_times(folder: Path, seconds: float) -> None:
    """Give every file and folder a time so many seconds from now."""
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() + seconds,) * 2, follow_symlinks=False)


def serve(store: Path) -> None:
    """Resolve the plan as a session does."""
    opened = Store.open(store)
    found = find_plan(opened, PlanReference.parse("toys-tp1-sm_90a"))
    check_kernels(found)
    assert len(resolve_plan(found, opened).check()) == 2


@pytest.mark.parametrize("seconds", [-DECADE_S, DECADE_S])
def test_times_of_sources_and_store_do_not_matter(
    built: Any, build: Any, toys: Any, tmp_path: Path, seconds: float
) -> None:
    store = built.copy(tmp_path / "store")
    shutil.copytree(toys.folder, tmp_path / "sources", copy_function=shutil.copyfile)
    for folder in (store.path, tmp_path / "sources"):
        set_times(folder, seconds)
    compiled, reused, root, _ = build(store.path, sources=tmp_path / "sources")
    assert (compiled, reused) == (0, 2)
    assert root == built.report.plans[0].root
    serve(store.path)


def test_a_store_that_is_copied_without_times_is_whole(built: Any, build: Any, tmp_path: Path) -> None:
    shutil.copytree(built.store.path, tmp_path / "store", copy_function=shutil.copyfile)
    serve(tmp_path / "store")
    assert build(tmp_path / "store")[:2] == (0, 2)


@pytest.mark.parametrize("seconds", [-DAY_S, DAY_S])
def test_a_builder_whose_clock_is_a_day_off_builds_what_others_find(
    built: Any, build: Any, clock: Path, tmp_path: Path, seconds: int
) -> None:
    variables = {"LD_PRELOAD": str(clock), "CLOCK_OFF_S": str(seconds)}
    before = time.time()
    compiled, reused, root, now = build(tmp_path / "store", **variables)
    assert abs(now - before - seconds) < DAY_S / 2, "the clock was right"
    assert (compiled, reused) == (2, 0)
    assert root == built.report.plans[0].root
    serve(tmp_path / "store")
    assert build(tmp_path / "store")[:2] == (0, 2)
    assert build(built.copy(tmp_path / "other").path, **variables)[:2] == (0, 2)
