"""A device that is none: Triton compiles for it and launches nothing."""

import sys

import triton
from triton.backends.compiler import GPUTarget

started = []
sys.addaudithook(lambda event, arguments: started.append(arguments[0]) if event == "subprocess.Popen" else None)


class Pointer:
    """A tensor's address."""

    dtype = "fp32"

    def __init__(self, address=4096):
        self.address = address

    def data_ptr(self):
        return self.address


class Utils:
    def load_binary(self, name, kernel, shared, device):
        assert kernel[:4] == b"\x7fELF"
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448}

    def unload_module(self, module):
        pass


class Driver:
    launched, benchmarked, utils = [], [], Utils()

    def launcher_cls(self, source, metadata):
        return lambda *arguments: self.launched.append(source.fn.__name__)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_benchmarker(self):
        def measure(call, quantiles):
            call()
            self.benchmarked.append(call)
            return [1.0 / len(self.benchmarked)] * 3  # the later, the faster

        return measure


driver = Driver()
triton.runtime.driver.set_active(driver)


def forbid_lowering():
    """Make the front end of the compiler end the process."""
    import triton.compiler.code_generator

    def ast_to_ttir(*arguments, **options):
        raise RuntimeError("lowered")

    triton.compiler.code_generator.ast_to_ttir = ast_to_ttir


def report():
    """Print what was done."""
    compilers = [name for name in started if "ptxas" in str(name) or "gcc" in str(name) or str(name) == "cc"]
    print("launched", len(driver.launched), "benchmarked", len(driver.benchmarked), "started", len(compilers))
