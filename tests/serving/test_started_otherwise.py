"""Kernels that are launched otherwise: in child processes, from packages and other folders, in Gluon."""

import pytest

from .conftest import ALL_LAUNCHED

CHILD = """
import multiprocessing, sys
import train
from device import driver

def work():
    import device
    device.forbid_lowering()
    train.main()
    print("child launched", len(driver.launched), flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else "METHOD").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_child_processes_are_served(built_project, copy_of, method):
    changed = copy_of(built_project)
    (changed.folder / "parent.py").write_text(CHILD.replace("METHOD", method))
    assert "child launched 9" in changed.serve("parent.py")


def test_child_processes_are_recorded_into_one_file(project):
    (project.folder / "parent.py").write_text(CHILD.replace("METHOD", "spawn").replace("device.forbid_lowering()", ""))
    spawned = project.record("parent.py")
    project.build()
    assert len(spawned["programs"]) == 4 and [p["launches"] for p in spawned["programs"]] == [1, 5, 1, 2]
    (project.folder / "parent.py").write_text(CHILD.replace("METHOD", "fork").replace("device.forbid_lowering()", ""))
    forked = project.record("parent.py")  # it ends without its exit functions: counts are one at least
    assert [p["payload"] for p in forked["programs"]] == [p["payload"] for p in spawned["programs"]]


IN_A_PACKAGE = """
import os
import device
import triton
import triton.language as tl
from device import Pointer, report
from . import other

@triton.jit
def fill(x, n):
    tl.store(x, other.plus(n))

if __name__ == "__main__":
    if os.environ.get("FORBID"):
        device.forbid_lowering()
    fill[(1,)](Pointer(), 5)
    report()
"""

GLUON = """
import os
import device
from device import Pointer, report
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def copy(x, y, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, BLOCK, layout=layout)
    gl.store(y + offsets, gl.load(x + offsets, mask=offsets < n), mask=offsets < n)

if __name__ == "__main__":
    if os.environ.get("FORBID"):
        device.forbid_lowering()
    copy[(1,)](Pointer(), Pointer(), 100, BLOCK=128)
    report()
"""


def test_a_module_run_by_its_name_and_a_script_of_another_folder_are_served(project):
    inner = project.folder / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    (inner / "program.py").write_text(IN_A_PACKAGE)
    (inner / "other.py").write_text("import triton\n\n@triton.jit\ndef plus(n):\n    return n + 1\n")
    recorded = project.record("-m outer.inner.program")
    assert recorded["programs"][0]["payload"]["kernel"] == "outer.inner.program:fill"
    assert recorded["source_roots"] == ["."]
    project.build()
    assert "launched 1 benchmarked 0" in project.serve("-m outer.inner.program", FORBID="1")
    (project.folder / "scripts").mkdir()
    for name in ("train.py", "scaling.py", "device.py"):
        (project.folder / name).rename(project.folder / "scripts" / name)
    assert project.record("scripts/train.py")["source_roots"] == ["scripts"]
    project.build()
    assert ALL_LAUNCHED in project.serve("scripts/train.py", FORBID="1")


def test_a_gluon_kernel_is_served(served_everywhere, copy_of):
    project = copy_of(served_everywhere)
    (project.folder / "layouts.py").write_text(GLUON)
    project.record("layouts.py", name="layouts.json")
    project.build(recording="layouts.json")
    assert "launched 1 benchmarked 0" in project.serve("layouts.py", plan="layouts-sm_90a", FORBID="1")
