"""Programs: cubins loaded on a device, bound to checked arguments, launched by one driver call."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from planfreeze.errors import (
    DeviceMissing,
    ExtraMissing,
    InvalidArgument,
    LaunchFailed,
    SessionState,
    WrongArch,
)
from planfreeze.family import Argument, Grid, Scalars
from planfreeze.resolve import ResolvedProgram
from planfreeze.target import ARCHS

__all__ = ["Bound", "Device", "Program", "current_arch"]

INTEGER_LIMITS = {"i32": 2**31, "i64": 2**63}
# A thread without the device's context, or with another device's: the launch is repeated with ours pushed.
WRONG_CONTEXT_ERRORS = (
    "CUDA_ERROR_INVALID_CONTEXT",
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
)


class Device:
    """A CUDA device and its primary context, through torch and the driver's Python bindings.

    Parameters
    ----------
    ordinal : int, optional
        torch's number of the device; None takes torch's current one.

    Raises
    ------
    ExtraMissing
        torch or cuda-core is not installed.
    DeviceMissing
        There is no such device.
    """

    def __init__(self, ordinal: int | None = None) -> None:
        try:
            import torch
        except ImportError as error:
            raise ExtraMissing("serve", "torch") from error
        try:
            from cuda.bindings import driver
            from cuda.core import Device as CudaDevice
        except ImportError as error:
            raise ExtraMissing("serve", "cuda-core") from error
        if not torch.cuda.is_available():
            raise DeviceMissing("torch sees none")
        self.ordinal: int = torch.cuda.current_device() if ordinal is None else ordinal
        if not 0 <= self.ordinal < torch.cuda.device_count():
            raise DeviceMissing(f"there is no cuda:{self.ordinal}; torch sees {torch.cuda.device_count()}")
        self.driver = driver
        self.torch = torch
        self.torch_device = torch.device("cuda", self.ordinal)
        torch.zeros(1, device=self.torch_device)  # the primary context now exists
        device = CudaDevice(self.ordinal)
        self.name: str = device.name
        self.capability: tuple[int, int] = tuple(device.compute_capability)
        self.sm_count: int = device.properties.multiprocessor_count
        self._primary = self.check("primary context", driver.cuDevicePrimaryCtxRetain(self.ordinal))
        self.dtypes: Mapping[str, Any] = {
            "u8": torch.uint8,
            "i16": torch.int16,
            "i32": torch.int32,
            "u32": torch.uint32,
            "i64": torch.int64,
            "bf16": torch.bfloat16,
            "f32": torch.float32,
        }
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
            raise LaunchFailed(what, status.name)
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


class Program:
    """A resolved program, loaded on a device.

    ``bind`` checks arguments once and gives something to launch many times; ``launch`` does both.

    Raises
    ------
    WrongArch
        The device is not what the program was made for.
    LaunchFailed
        The driver cannot load it.
    """

    def __init__(self, resolved: ResolvedProgram, device: Device) -> None:
        self.name = resolved.name
        self.definition = resolved.planned.definition
        self.launch_info = resolved.record.launch
        self.device = device
        self._refusal = ""
        target = resolved.planned.target
        if device.capability != target.capability:
            raise WrongArch(self.name, target.arch, f"{device.name} (compute capability {device.capability})")
        self._padding = len(resolved.record.parameter_bytes) - len(self.definition.arguments)
        self._library, self._function = device.run_in_context(lambda: self._load(resolved))
        self.resident_blocks = device.sm_count * device.run_in_context(self._occupancy)

    def _load(self, resolved: ResolvedProgram) -> tuple[Any, Any]:
        driver, check, info = self.device.driver, self.device.check, self.launch_info
        library = check(self.name, driver.cuLibraryLoadData(resolved.cubin, [], [], 0, [], [], 0))
        kernel = check(self.name, driver.cuLibraryGetKernel(library, resolved.record.symbol.encode()))
        function = check(self.name, driver.cuKernelGetFunction(kernel))
        attribute = driver.CUfunction_attribute
        shared = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(self.name, driver.cuFuncSetAttribute(function, shared, info.shared_bytes))
        if info.carveout_percent is not None:
            carveout = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            check(self.name, driver.cuFuncSetAttribute(function, carveout, info.carveout_percent))
        return library, function

    def _occupancy(self) -> int:
        threads = self.launch_info.block[0] * self.launch_info.block[1] * self.launch_info.block[2]
        blocks: int = self.device.check(
            self.name,
            self.device.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, threads, self.launch_info.shared_bytes
            ),
        )
        return blocks

    def bind(self, *values: Any, **named: Any) -> "Bound":
        """Check the arguments and return them ready to launch.

        Parameters
        ----------
        *values, **named
            The family's arguments, in order or by name: contiguous torch tensors on the session's device, and
            ints. The tensors are kept alive as long as what is returned.

        Raises
        ------
        InvalidArgument
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's.
        """
        self.refuse_unloaded()
        arguments = self.definition.arguments
        given = self._by_name(values, named)
        scalars = {a.name: self._check_scalar(a, given[a.name]) for a in arguments if not a.is_pointer}
        words = [self._check_tensor(a, given[a.name], scalars) if a.is_pointer else scalars[a.name] for a in arguments]
        kept = tuple(given[a.name] for a in arguments if a.is_pointer)
        return Bound(self, words + [0] * self._padding, self.definition.grid(scalars, self.resident_blocks), kept)

    def launch(self, *values: Any, stream: Any = None, **named: Any) -> None:
        """Check the arguments and launch; see :meth:`bind` and :meth:`Bound.launch`."""
        self.bind(*values, **named).launch(stream)

    def refuse_unloaded(self) -> None:
        """Raise SessionState when the session was closed, or this process is a fork of the one that loaded."""
        if self._refusal:
            raise SessionState(f"{self.name} cannot be launched: {self._refusal}", "planfreeze.session().freeze()")

    def unload(self, reason: str, *, is_forked: bool = False) -> None:
        """Release the program on its device; later binds and launches raise with ``reason``."""
        if not self._refusal and not is_forked:
            unload = self.device.driver.cuLibraryUnload
            self.device.run_in_context(lambda: self.device.check(self.name, unload(self._library)))
        self._refusal = reason

    def _by_name(self, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        names = [a.name for a in self.definition.arguments]
        if len(values) > len(names):
            raise self._refuse(f"number {len(names) + 1}", f"is one too many: it takes {', '.join(names)}")
        given = dict(zip(names, values, strict=False))
        for name, value in named.items():
            if name not in names:
                raise self._refuse(name, f"is unknown: it takes {', '.join(names)}")
            if name in given:
                raise self._refuse(name, "is given twice")
            given[name] = value
        for name in names:
            if name not in given:
                raise self._refuse(name, f"is missing: it takes {', '.join(names)}")
        return given

    def _refuse(self, argument: str, reason: str) -> InvalidArgument:
        return InvalidArgument(self.name, argument, reason)

    def _check_scalar(self, argument: Argument, value: Any) -> int:
        if type(value) is not int:
            raise self._refuse(argument.name, f"is a {type(value).__name__}, not an int")
        if value < 0:
            raise self._refuse(argument.name, f"= {value} is negative, and no count is")
        if value >= INTEGER_LIMITS[argument.dtype]:
            raise self._refuse(argument.name, f"= {value} does not fit {argument.dtype}")
        return value

    def _check_tensor(self, argument: Argument, value: Any, scalars: Scalars) -> int:
        device = self.device
        if not isinstance(value, device.torch.Tensor):
            raise self._refuse(argument.name, f"is a {type(value).__name__}, not a torch tensor")
        if value.dtype is not device.dtypes[argument.dtype]:
            raise self._refuse(argument.name, f"has dtype {value.dtype}, not {device.dtypes[argument.dtype]}")
        if value.device != device.torch_device:
            raise self._refuse(argument.name, f"is on {value.device}, the program on {device.torch_device}")
        if not value.is_contiguous():
            raise self._refuse(
                argument.name, f"is not contiguous: shape {tuple(value.shape)}, strides {value.stride()}"
            )
        address: int = value.data_ptr()
        if address % argument.alignment:
            raise self._refuse(argument.name, f"at {address:#x} is not aligned to {argument.alignment} bytes")
        assert argument.elements is not None
        needed = argument.elements(scalars)
        if value.numel() < needed:
            raise self._refuse(argument.name, f"has {value.numel()} elements, the kernel may touch {needed}")
        return address


class Bound:
    """A program with checked arguments. ``launch`` is one driver call: no check, no allocation, no file."""

    def __init__(self, program: Program, words: list[int], grid: Grid, kept: tuple[Any, ...]) -> None:
        self.program = program
        self.grid = grid
        self.kept = kept
        self._values = (ctypes.c_int64 * len(words))(*words)
        first = ctypes.addressof(self._values)
        self._parameters = (ctypes.c_void_p * len(words))(*(first + 8 * i for i in range(len(words))))
        self._address = ctypes.addressof(self._parameters)
        self._driver_launch = self._choose_launch()

    def launch(self, stream: Any = None) -> None:
        """Launch on ``stream``: torch's current one unless given.

        Raises
        ------
        SessionState
            The session was closed, or this process is a fork.
        LaunchFailed
            The driver refuses the launch.
        """
        program = self.program
        if program._refusal:
            program.refuse_unloaded()
        device = program.device
        handle = device._current_stream(device.ordinal) if stream is None else device.stream_handle(stream)
        (status,) = self._driver_launch(handle)
        if status.value:
            self._launch_in_context(status, handle)

    def _choose_launch(self) -> Callable[[int], Any]:
        """Return the driver call with everything but the stream filled in."""
        info, driver, function = self.program.launch_info, self.program.device.driver, self.program._function
        if 0 in self.grid:
            nothing = (driver.CUresult.CUDA_SUCCESS,)
            return lambda stream: nothing
        if info.cluster == (1, 1, 1) and not info.is_cooperative and not info.is_programmatic:
            launch, sizes, address = (
                driver.cuLaunchKernel,
                (*self.grid, *info.block, info.shared_bytes),
                self._address,
            )
            return lambda stream: launch(function, *sizes, stream, address, 0)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = info.block
        config.sharedMemBytes = info.shared_bytes
        config.attrs = self._launch_attributes()
        config.numAttrs = len(config.attrs)

        def launch_extended(stream: int) -> Any:
            config.hStream = driver.CUstream(stream)
            return driver.cuLaunchKernelEx(config, function, self._address, 0)

        return launch_extended

    def _launch_attributes(self) -> list[Any]:
        info, driver = self.program.launch_info, self.program.device.driver
        ids = driver.CUlaunchAttributeID
        attributes = []
        if info.cluster != (1, 1, 1):
            cluster = driver.CUlaunchAttribute()
            cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = info.cluster
            attributes.append(cluster)
        if info.is_cooperative:
            cooperative = driver.CUlaunchAttribute()
            cooperative.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            attributes.append(cooperative)
        if info.is_programmatic:
            programmatic = driver.CUlaunchAttribute()
            programmatic.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            programmatic.value.programmaticStreamSerializationAllowed = 1
            attributes.append(programmatic)
        return attributes

    def _launch_in_context(self, status: Any, handle: int) -> None:
        device, name = self.program.device, self.program.name
        if status.name not in WRONG_CONTEXT_ERRORS:
            raise LaunchFailed(name, status.name)
        device.run_in_context(lambda: device.check(name, self._driver_launch(handle)))


def current_arch() -> str | None:
    """Return the architecture of torch's current device if planfreeze compiles for it, else None."""
    try:
        device = Device()
    except (DeviceMissing, ExtraMissing):
        return None
    return next((arch for arch, known in ARCHS.items() if known.capability == device.capability), None)
