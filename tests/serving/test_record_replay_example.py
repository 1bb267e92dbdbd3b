"""The example's kernels, recorded, built and served on a device that is none."""

import shutil
import subprocess
import sys

EXAMPLE = "examples/record_replay"
SCRIPT = """
import os
import device
from device import Pointer, driver, report
from kernels import layer_norm_kernel, matmul_kernel, softmax_kernel

class Half(Pointer):
    dtype = "fp16"

if __name__ == "__main__":
    if os.environ.get("FORBID"):
        device.forbid_lowering()
    for columns, block in ((781, 1024), (4096, 4096)):
        softmax_kernel[(64,)](Pointer(), Pointer(), columns, columns, BLOCK=block)
        layer_norm_kernel[(64,)](Pointer(), Pointer(), Pointer(), Pointer(), columns, 1e-5, BLOCK=1024)
    for m, n, k in ((512, 512, 512), (384, 640, 200)):
        grid = lambda chosen: (m // chosen["ROWS"] * n // chosen["COLUMNS"],)
        matmul_kernel[grid](Half(), Half(), Half(), m, n, k, k, n, n)
    report()
"""


def test_the_kernels_are_recorded_and_served(served_everywhere, copy_of, pytestconfig):
    project = copy_of(served_everywhere)  # for its Python and device
    shutil.copy(pytestconfig.rootpath / EXAMPLE / "kernels.py", project.folder)
    (project.folder / "launch.py").write_text(SCRIPT)
    recorded = project.record("launch.py", name="kernels.json")
    kernels = [program["payload"]["kernel"] for program in recorded["programs"]]
    assert sorted(kernels) == sorted(f"kernels:{name}_kernel" for name in ("layer_norm", "matmul", "softmax") * 2)
    assert len(recorded["choices"]) == 2 and recorded["refused"] == []
    project.build(recording="kernels.json")
    assert "launched 6 benchmarked 0 started 0" in project.serve("launch.py", plan="kernels-sm_90a", FORBID="1")


def test_the_example_says_that_there_is_no_gpu(pytestconfig):
    command = [sys.executable, "run.py"]
    folder = pytestconfig.rootpath / EXAMPLE
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (6, "")
    assert "no CUDA device" in done.stderr
