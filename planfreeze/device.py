"""Devices: a CUDA device as torch and the driver see it."""

from collections.abc import Callable, Mapping
from typing import Any

from planfreeze import errors
from planfreeze.target import ARCHS
from planfreeze.tensor_checks import prepare_checks

__all__ = ["Device", "current_arch"]


class Device:
    """A CUDA device and its primary context, through torch and the driver's Python bindings.

    Parameters
    ----------
    ordinal : int, optional
        torch's number of the device; None takes torch's current one.

    Raises
    ------
    ExtraMissing
        torch, cuda-bindings or cuda-core is not installed.
    DeviceMissing
        There is no such device.
    RuntimeError
        torch makes no tensor on the device: the error is torch's own.
    """

    def __init__(self, ordinal: int | None = None) -> None:
        try:
            import torch
        except ImportError as error:
            raise errors.ExtraMissing("serve", "torch") from error
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise errors.ExtraMissing("serve", "cuda-bindings") from error
        try:
            from cuda.core import Device as CudaDevice
        except ImportError as error:
            raise errors.ExtraMissing("serve", "cuda-core") from error
        if not torch.cuda.is_available():
            raise errors.DeviceMissing("torch sees none")
        self.ordinal: int = torch.cuda.current_device() if ordinal is None else ordinal
        if not 0 <= self.ordinal < torch.cuda.device_count():
            raise errors.DeviceMissing(f"there is no cuda:{self.ordinal}; torch sees {torch.cuda.device_count()}")
        self.driver = driver
        self.torch = torch
        self.torch_device = torch.device("cuda", self.ordinal)
        torch.zeros(1, device=self.torch_device)  # the primary context now exists
        device = CudaDevice(self.ordinal)
        self.name: str = device.name
        self.capability: tuple[int, int] = tuple(device.compute_capability)
        self.sm_count: int = device.properties.multiprocessor_count
        self.dtypes: Mapping[str, Any] = {
            "bool": torch.bool,
            "i8": torch.int8,
            "u8": torch.uint8,
            "i16": torch.int16,
            "u16": torch.uint16,
            "i32": torch.int32,
            "u32": torch.uint32,
            "i64": torch.int64,
            "u64": torch.uint64,
            "f8e4m3": torch.float8_e4m3fn,
            "f8e5m2": torch.float8_e5m2,
            "f16": torch.float16,
            "bf16": torch.bfloat16,
            "f32": torch.float32,
            "f64": torch.float64,
        }
        prepare_checks(torch, self.torch_device, self.dtypes.values())
        self._primary = self.check("primary context", driver.cuDevicePrimaryCtxRetain(self.ordinal))
        self._current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def check(self, what: str, outcome: tuple[Any, ...]) -> Any:
        """Return the value of a driver call.

        Raises
        ------
        LaunchFailed
            The driver refused it.
        """
        status, *values = outcome
        if status.value != 0:
            raise errors.LaunchFailed(what, status.name)
        return values[0] if values else None

    def run_in_context(self, call: Callable[[], Any]) -> Any:
        """Run a driver call with this device's primary context current."""
        self.check("context", self.driver.cuCtxPushCurrent(self._primary))
        try:
            return call()
        finally:
            self.check("context", self.driver.cuCtxPopCurrent())

    def stream_handle(self, stream: Any) -> int:
        """Return a stream's handle: torch's current one for None, else a torch or cuda.core stream, or an int."""
        if stream is None:
            return self._current_stream(self.ordinal)
        if isinstance(stream, int):
            return stream
        return int(stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.handle)


def current_arch() -> str | None:
    """Return the architecture of the first device, or None without one. Makes no context.

    Raises
    ------
    UnsupportedDevice
        planfreeze does not compile for it.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    attribute = driver.CUdevice_attribute
    calls: tuple[Callable[[], Any], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
        lambda: driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
    )
    found = []
    for call in calls:
        try:
            status, *values = call()
        except RuntimeError:  # the driver's library is not installed
            return None
        if status.value != 0:
            return None
        found += values
    capability = (found[0], found[1])
    for arch, known in ARCHS.items():
        if known.capability == capability:
            return arch
    raise errors.UnsupportedDevice(capability, tuple(ARCHS))
