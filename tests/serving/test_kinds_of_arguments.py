"""Whatever Triton specialises a kernel on comes back from the recording as the key that Triton computes."""

SCRIPT = """
import os
from typing import NamedTuple
import device
import triton
import triton.language as tl
from device import Pointer, driver, report

class Half(Pointer):
    dtype = "fp16"

class Pair(NamedTuple):
    first: int
    second: int

@triton.jit
def store(x, value):
    tl.store(x, value)

@triton.jit
def store_first(x, pair):
    tl.store(x, pair[0])

@triton.jit
def store_nested(x, pair):
    tl.store(x, pair[1][0])

@triton.jit
def convert(x, KIND: tl.constexpr, MODE: tl.constexpr, OTHER: tl.constexpr):
    tl.store(x, tl.full((), 1, KIND).to(x.dtype.element_ty))

@triton.jit(do_not_specialize=["value"])
def store_any(x, value):
    tl.store(x, value)

@triton.jit(do_not_specialize_on_alignment=["x"])
def store_unaligned(x, value):
    tl.store(x, value)

@triton.jit
def store_annotated(x, value: tl.int64):
    tl.store(x, value)

@triton.jit
def maybe(x, y):
    if y is not None:
        tl.store(x, tl.load(y))

@triton.jit(noinline=True)
def apart(x):
    return x + 1

@triton.jit
def call(x, value):
    tl.store(x, apart(value))

@triton.jit(repr=lambda specialization: "renamed", debug=True)
def renamed(x, value):
    tl.device_assert(value > 0)
    tl.store(x, value)

launches = [
    *(lambda value=value: store[(1,)](Pointer(), value) for value in
      (0, 1, 2, 16, -16, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1, True, False,
       0.0, 1.0, 1.5, float("inf"))),
    lambda: store[(1,)](Pointer(4097), 2),
    lambda: store[(1,)](Half(), 2),
    lambda: store_first[(1,)](Pointer(), (7, 16)),
    lambda: store_first[(1,)](Pointer(), (1, 1.5)),
    lambda: store_first[(1,)](Pointer(), (7, None)),
    lambda: store_nested[(1,)](Pointer(), (7, (16, True))),
    *(lambda kind=kind, other=other: convert[(1,)](Pointer(), KIND=kind, MODE="rtne", OTHER=other) for kind, other in
      ((tl.float32, None), (tl.int8, 0.1), (tl.bfloat16, (1, (2.5, None))), (tl.float16, apart))),
    lambda: store_any[(1,)](Pointer(), 1),
    lambda: store_any[(1,)](Pointer(), 16),
    lambda: store_unaligned[(1,)](Pointer(), 3),
    lambda: store_annotated[(1,)](Pointer(), 3),
    lambda: maybe[(1,)](Pointer(), None),
    lambda: maybe[(1,)](Pointer(), Pointer()),
    lambda: call[(1,)](Pointer(), 3),
    lambda: renamed[(1,)](Pointer(), 3),
    lambda: store[(1,)](Pointer(), 5, num_warps=2, num_stages=5, num_ctas=1, maxnreg=64, enable_fp_fusion=False),
    lambda: store[(1,)](Pointer(), 5, num_ctas=2),
]

if __name__ == "__main__":
    if os.environ.get("FORBID"):
        device.forbid_lowering()
    for launch in launches:
        launch()
    if os.environ.get("NAMED"):
        store_first[(1,)](Pointer(), Pair(7, 1.5))
    report()
"""


def test_every_kind_of_argument_and_option_is_recorded_and_served(served_everywhere, copy_of):
    project = copy_of(served_everywhere)
    (project.folder / "kinds.py").write_text(SCRIPT)
    recorded = project.record("kinds.py", name="kinds.json")
    assert recorded["refused"] == []
    assert sum(program["launches"] for program in recorded["programs"]) == 40
    project.build(recording="kinds.json")
    assert "launched 40 benchmarked 0 started 0" in project.serve("kinds.py", plan="kinds-sm_90a", FORBID="1")


def test_a_named_tuple_is_refused_by_name(built_project, copy_of):
    project = copy_of(built_project)
    (project.folder / "kinds.py").write_text(SCRIPT)
    (refused,) = project.record("kinds.py", name="kinds.json", status=1, NAMED="1")["refused"]
    assert refused["kernel"] == "kinds:store_first" and "Pair" in refused["reason"]
