"""A global that a kernel reads is changed while its programs are served: never the old value without a word."""

import pytest

SCRIPT = """
import os
import device, triton, triton.language as tl
from device import Pointer, report

FACTOR = tl.constexpr(2)

@triton.jit
def double(x):
    return x * FACTOR

@triton.jit
def scaled(x, n):
    tl.store(x + tl.arange(0, 32), double(n).to(tl.float32))

if __name__ == "__main__":
    if os.environ.get("FORBID"):
        device.forbid_lowering()
    if os.environ.get("CHANGE") == "before":
        FACTOR = tl.constexpr(3)
    scaled[(1,)](Pointer(), 16)
    if os.environ.get("CHANGE") == "between":
        FACTOR = tl.constexpr(3)
    scaled[(1,)](Pointer(), 16)
    report()
"""


@pytest.fixture
def changing(project):
    """A project with a kernel whose helper reads a global."""
    (project.folder / "changing.py").write_text(SCRIPT)
    project.record("changing.py")
    project.build()
    return project


def test_a_global_that_changes_is_a_miss_before_the_first_launch_and_an_error_between_two(changing):
    assert "launched 2" in changing.serve("changing.py", FORBID="1")
    before = changing.serve("changing.py", FORBID="1", CHANGE="before", status=1)
    assert "holds scaled otherwise; planned -> asked: the text of the kernel or of what it calls" in before
    between = changing.serve("changing.py", FORBID="1", CHANGE="between", status=1)
    assert "FACTOR has changed since we compiled this kernel, from constexpr[2] to constexpr[3]" in between
