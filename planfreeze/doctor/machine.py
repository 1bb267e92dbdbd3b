"""Machines: what is installed here, the NVIDIA driver and its devices, found without importing any of it."""

import ctypes
import platform
import shutil
from importlib import metadata
from pathlib import Path

from msgspec import Struct

__all__ = ["Gpu", "Machine", "find_machine"]

DISTRIBUTIONS = (
    "planfreeze",
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "cuda-core",
    "cuda-bindings",
)
# What compilers in Python packages call: a C compiler, NVIDIA's, and what drives them.
TOOLS = ("gcc", "clang", "nvcc", "ninja")
DRIVER_LIBRARY = "libcuda.so.1"
DRIVER_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class Gpu(Struct, frozen=True, kw_only=True):
    """A device the driver shows to this process."""

    name: str
    capability: tuple[int, int]


class Machine(Struct, frozen=True, kw_only=True):
    """What there is to serve with.

    Parameters
    ----------
    versions : tuple of (str, str or None)
        Python and distributions with their versions; None for one that is not installed.
    driver : str, optional
        Version of the NVIDIA driver.
    cuda : str, optional
        Version of CUDA that the driver supports; None without a driver that can be used.
    gpus : tuple of Gpu
        Devices in the driver's order.
    tools : tuple of (str, str or None)
        Programs that compilers call, with their paths.
    """

    versions: tuple[tuple[str, str | None], ...]
    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    tools: tuple[tuple[str, str | None], ...]

    def has(self, distribution: str) -> bool:
        """Tell whether a distribution is installed."""
        return dict(self.versions).get(distribution) is not None


def find_machine() -> Machine:
    """Look around; whatever is not there or does not answer is None."""
    cuda, gpus = ask_driver()
    return Machine(
        versions=(("python", platform.python_version()), *((name, find_version(name)) for name in DISTRIBUTIONS)),
        driver=read_driver_version(),
        cuda=cuda,
        gpus=gpus,
        tools=tuple((tool, shutil.which(tool)) for tool in TOOLS),
    )


def find_version(distribution: str) -> str | None:
    """Return an installed distribution's version; "unknown" when its metadata do not say."""
    try:
        return metadata.version(distribution) or "unknown"
    except metadata.PackageNotFoundError:
        return None
    except (KeyError, TypeError, ValueError):  # a broken installation: what Python makes of it differs by version
        return "unknown"


def read_driver_version() -> str | None:
    """Return the version of the kernel driver."""
    for path in DRIVER_VERSION_FILES:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        words = text.splitlines()[0].split() if text.strip() else []
        numbers = [word for word in words if word[:1].isdigit() and "." in word]
        if numbers:
            return numbers[0]
    return None


def ask_driver() -> tuple[str | None, tuple[Gpu, ...]]:
    """Return the driver's CUDA version and devices. Makes no context."""
    try:
        driver = ctypes.CDLL(DRIVER_LIBRARY)
        if driver.cuInit(0) != 0:
            return None, ()
        version = ask_number(driver.cuDriverGetVersion)
        count = ask_number(driver.cuDeviceGetCount)
        gpus = tuple(describe_gpu(driver, ordinal) for ordinal in range(count))
    except (OSError, AttributeError):  # no driver, or a library that only has its name
        return None, ()
    return f"{version // 1000}.{version % 1000 // 10}", gpus


def ask_number(function: "ctypes._NamedFuncPointer", *arguments: int) -> int:
    """Return what a driver call writes; 0 when it fails."""
    number = ctypes.c_int(0)
    function(ctypes.byref(number), *arguments)
    return number.value


def describe_gpu(driver: ctypes.CDLL, ordinal: int) -> Gpu:
    """Return a device's name and compute capability."""
    device = ask_number(driver.cuDeviceGet, ordinal)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    capability = (
        ask_number(driver.cuDeviceGetAttribute, MAJOR, device),
        ask_number(driver.cuDeviceGetAttribute, MINOR, device),
    )
    return Gpu(name=name.value.decode(errors="replace"), capability=capability)
