"""Builds that are started from a process with CUDA, threads and held locks, and from its children of every kind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Torch and the driver were asked, threads hold locks and never let go, others are always at work: the locks they have
# in the instant of a fork stay taken in the child.
SCRIPT = """
import ctypes, json, logging, multiprocessing, os, sys, threading, tempfile
from pathlib import Path

def build(method, folder, toolchains):
    from planfreeze.builds import build_plans
    from planfreeze.cache.store import Store
    from planfreeze.plans import Plan
    from planfreeze.target import target
    from toys.families import AddPayload, CopyPayload
    plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
    store = Store.open(Path(folder, method), writable=True)
    report = build_plans([plan], store, jobs=2, toolchains=Path(toolchains))
    told = [outcome.status for outcome in report.outcomes], [plan.root for plan in report.plans]
    Path(folder, method + ".json").write_text(json.dumps(told))

def hold(lock, ready):
    with lock:
        ready.release()
        threading.Event().wait()

def work(place):
    from planfreeze.cache.store import Store
    while True:
        logging.getLogger("busy").debug("at work")
        with tempfile.TemporaryFile():
            Store.open(place, writable=True).put_blob(os.urandom(64))

if __name__ == "__main__":
    folder, toolchains = sys.argv[1:]
    import torch
    torch.zeros(8).sum()
    torch.cuda.is_available()
    try:
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        pass
    import planfreeze.builds, planfreeze.cache.store
    ready = threading.Semaphore(0)
    for lock in [threading.RLock() for _ in range(30)]:
        threading.Thread(target=hold, args=(lock, ready), daemon=True).start()
        ready.acquire()
    for number in range(2):
        threading.Thread(target=work, args=(Path(folder, f"busy{number}"),), daemon=True).start()
    assert threading.active_count() > 30
    build("itself", folder, toolchains)
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        child = context.Process(target=build, args=(method, folder, toolchains))
        child.start()
        child.join(60)
        if child.is_alive():
            child.kill()
            sys.exit(f"the child by {method} hangs")
        assert child.exitcode == 0, method
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="module")
def built_by(toys, built, toolchains, tmp_path_factory) -> Path:
    """A folder with what the build of each process said."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("processes")
    (folder / "script.py").write_text(SCRIPT)
    search = os.pathsep.join((str(toys.folder), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "script.py", str(folder), str(toolchains)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("method", ["itself", "fork", "spawn", "forkserver"])
def test_a_process_with_cuda_threads_and_held_locks_builds_in_itself_and_in_its_children(built, built_by, method):
    statuses, roots = json.loads((built_by / f"{method}.json").read_text())
    assert statuses == ["compiled", "compiled"]
    assert roots == [plan.root for plan in built.report.plans]
