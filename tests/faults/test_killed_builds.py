"""Real builds that are killed: what they leave is whole, and the next build removes the rest and finishes."""

import os
import random
import shutil
import subprocess
import time

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.resolve import resolve_plan

BUILD = """
import sys
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload
payloads = (*(AddPayload(block=32 << n) for n in range(4)), CopyPayload())
plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=payloads)
build_plans([plan], Store.open(sys.argv[1], writable=True), jobs=2, toolchains=Path(sys.argv[2]))
"""


def test_killed_builds_of_real_kernels_lose_nothing_and_leave_nothing(toys, interpreter, toolchains, tmp_path):
    chance, path = random.Random(11), tmp_path / "store"
    add = toys.families.AddPayload
    plan = toys.plan(*(add(block=32 << number) for number in range(4)), toys.families.CopyPayload())
    started = time.monotonic()
    interpreter.start("-c", BUILD, str(tmp_path / "rehearsal"), str(toolchains)).communicate(timeout=300)
    whole_s = time.monotonic() - started
    stored: set[str] = set()
    for _ in range(4):
        builder = interpreter.start("-c", BUILD, str(path), str(toolchains))
        try:
            builder.wait(chance.uniform(0.3, 1.0) * whole_s)
        except subprocess.TimeoutExpired:
            builder.kill()
        builder.communicate()
        if not (path / "format").exists():
            continue
        store = Store.open(path)
        for entry in store.entries("blob"):
            store.get_blob(entry.name)
        found = {entry.name for entry in store.entries("record")}
        for key in found:
            store.get_record(key)
        assert stored <= found, "what was published stays"
        stored = found
        if len(stored) == 5:
            shutil.rmtree(path)
            stored = set()
    store = Store.open(path, writable=True)
    report = build_plans([plan], store, jobs=2, toolchains=toolchains)
    assert report.count("failed") == 0
    assert report.count("reused") == len(stored)
    resolve_plan(report.plans[0], store).check()
    assert list(store.layout.temporaries.iterdir()) == []
    # The compile processes of killed builds end by themselves; the build after that removes their folders. There are
    # eight at most, and one may end just after a build has looked.
    for number in range(9):
        finish = interpreter.start("-c", BUILD, str(tmp_path / f"last{number}"), str(toolchains))
        assert finish.wait(300) == 0
        left = [path for path in interpreter.home.iterdir() if path.name.startswith("planfreeze-worker-")]
        if all(is_in_use(folder) for folder in left):
            break
    assert all(is_in_use(folder) for folder in left)


def is_in_use(folder) -> bool:
    """Tell whether a process works there: a compile that was going on when its builder was killed."""
    for link in (f"/proc/{process}/cwd" for process in os.listdir("/proc") if process.isdigit()):  # noqa: PTH208
        try:
            if os.readlink(link) == str(folder):  # noqa: PTH115
                return True
        except OSError:
            continue
    return False
