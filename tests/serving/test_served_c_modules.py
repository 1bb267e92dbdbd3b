"""C modules of Triton's runtime: built where there is no driver, served where there is no compiler."""

import shutil
import subprocess

import pytest

# A driver library without a device behind it: it takes an ELF file for a module and counts launches.
DRIVER = """
#include <string.h>
typedef int R;
R cuInit(unsigned flags) { return 0; }
R cuDeviceGetCount(int *count) { *count = 1; return 0; }
R cuDeviceGet(int *device, int index) { *device = index; return 0; }
R cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 97 ? 232448 : 1024; return 0; }
R cuDriverGetVersion(int *version) { *version = 13000; return 0; }
R cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
R cuCtxSetCurrent(void *context) { return 0; }
R cuCtxGetDevice(int *device) { *device = 0; return 0; }
R cuCtxGetLimit(unsigned long *value, int limit) { *value = 1 << 20; return 0; }
R cuCtxSetLimit(int limit, unsigned long value) { return 0; }
R cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
R cuModuleLoadData(void **module, const void *image) {
  *module = (void *)2;
  return memcmp(image, "\\177ELF", 4) ? 200 : 0;
}
R cuModuleUnload(void *module) { return 0; }
R cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)3; return 0; }
R cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute ? 16 : 1024; return 0; }
R cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
R cuFuncSetCacheConfig(void *function, int config) { return 0; }
R cuGetErrorString(R error, const char **text) { *text = "error"; return 0; }
R cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer) {
  *(unsigned long long *)value = pointer;
  return 0;
}
R cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
static int launches;
R cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) { launches++; return 0; }
int count_launches(void) { return launches; }
"""

SCRIPT = """
import ctypes
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

started = []
sys.addaudithook(lambda event, arguments: started.append(arguments[0]) if event == "subprocess.Popen" else None)

class Driver:
    launcher_cls = CudaLauncher
    def __init__(self): self.utils = CudaUtils()
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

class Pointer:
    dtype = "fp32"
    def data_ptr(self): return 4096

@triton.jit
def fill(x, n, scale, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, offsets.to(tl.float32) * scale, mask=offsets < n)

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(y + offsets), mask=offsets < n)

if __name__ == "__main__":
    triton.runtime.driver.set_active(Driver())
    fill[(1,)](Pointer(), 37, 0.5, BLOCK=64)
    copy[(1,)](Pointer(), Pointer(), 37, BLOCK=64)
    compilers = [name for name in started if str(name).endswith(("cc", "clang", "ptxas", "ptxas-blackwell"))]
    print("launches", ctypes.CDLL("libcuda.so.1").count_launches(), "compilers", len(compilers))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The folder of the driver library."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the driver library with")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        folder / "libcuda.so.1",
        folder / "driver.c",
    ]
    subprocess.run(command, check=True)
    return str(folder)


def test_a_first_launch_needs_no_c_compiler(served_everywhere, copy_of, driver, tmp_path):
    project = copy_of(served_everywhere)
    (project.folder / "launch.py").write_text(SCRIPT)
    at_a_device = {"LD_LIBRARY_PATH": driver, "TRITON_LIBCUDA_PATH": driver}
    project.record("launch.py", name="launch.json", **at_a_device)
    project.build(recording="launch.json")
    # Neither PATH nor CC names a compiler, and Triton's own cache is empty.
    bare = {**at_a_device, "PATH": "/nonexistent", "CC": "/nonexistent/cc", "HOME": str(tmp_path)}
    assert "launches 2 compilers 0" in project.serve("launch.py", plan="launch-sm_90a", **bare)
    # Without a plan the same run does start one: what was just seen is not the machine's doing.
    environment = project.environment(**bare)
    unserved = subprocess.run(
        [project.python, "launch.py"], cwd=project.folder, env=environment, capture_output=True, text=True
    )
    assert "No such file or directory: '/nonexistent/cc'" in unserved.stderr


def test_a_build_without_a_c_compiler_says_what_will_need_one(built_project, copy_of):
    project = copy_of(built_project)
    command = [project.python, "-m", "planfreeze", "build", "--plan", "run.json", "--store", str(project.store)]
    done = subprocess.run(
        command, cwd=project.folder, env=project.environment(PATH="/nonexistent"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "cuda_utils was not built: there is no C compiler" in done.stderr
    # The compiler is part of the key: the programs that have their modules are still there.
    assert project.plan().root != built_project.plan().root
    assert {entry.blob for entry in project.plan().entries} == {entry.blob for entry in built_project.plan().entries}
