"""Programs: cubins loaded on a device, launched by one driver call."""

import ctypes
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from planfreeze.binding import Signature
from planfreeze.device import Device
from planfreeze.errors import DriverRefused, InvalidArgument, LaunchFailed, SessionState, WrongDevice
from planfreeze.family import Grid
from planfreeze.inspection import find_tools
from planfreeze.resolve import ResolvedProgram

__all__ = ["Bound", "Program"]

# A launch takes microseconds, and longer where the device's queue is full.
LAUNCH_TIMEOUT_S = 5.0
# A thread without the device's context, or with another device's: the launch is repeated with ours pushed.
WRONG_CONTEXT_ERRORS = ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_CONTEXT_IS_DESTROYED")
# A driver that is older than the tools that made a cubin. It never falls back to PTX: there is none.
UNREADABLE_IMAGES = (
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
)


class Program:
    """A resolved program, loaded on a device.

    ``bind`` checks arguments once and gives something to launch many times; ``launch`` does both. ``launches``
    counts what the driver was given.

    Raises
    ------
    WrongDevice
        The device is not what the program was made for.
    DriverRefused
        The driver is older than what made the cubin.
    LaunchFailed
        The driver cannot load it for another reason, or no block of it fits an SM.
    """

    def __init__(self, resolved: ResolvedProgram, device: Device) -> None:
        self.name = resolved.name
        self.definition = resolved.planned.definition
        self.launch_info = resolved.record.launch
        self.device = device
        self.launches = 0
        # Launches that began and that ended. An addition is one step under the interpreter lock.
        self._entered = self._left = 0
        self._refusal = ""
        target = resolved.planned.target
        if device.capability != target.capability:
            raise WrongDevice(self.name, target.arch, device.name, device.capability)
        self._signature = Signature(self.name, self.definition.arguments, device)
        self._padding = [0] * (len(resolved.record.parameter_bytes) - len(self.definition.arguments))
        self._library, self._function = device.run_in_context(lambda: self._load(resolved))
        self.resident_blocks = device.sm_count * device.run_in_context(self._occupancy)
        if self.resident_blocks == 0:
            raise LaunchFailed(self.name, "not one block of it fits an SM")

    def _load(self, resolved: ResolvedProgram) -> tuple[Any, Any]:
        driver, check, info = self.device.driver, self.device.check, self.launch_info
        loaded = driver.cuLibraryLoadData(resolved.cubin, [], [], 0, [], [], 0)
        if loaded[0].name in UNREADABLE_IMAGES:
            version = check(self.name, driver.cuDriverGetVersion())
            supported = f"{version // 1000}.{version % 1000 // 10}"
            raise DriverRefused(self.name, loaded[0].name, find_tools(resolved.cubin), supported)
        library = check(self.name, loaded)
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

    def bind(
        self, *values: Any, grid: Sequence[int] | None = None, is_programmatic: bool = False, **named: Any
    ) -> "Bound":
        """Check the arguments and return them ready to launch.

        Parameters
        ----------
        *values, **named
            The family's arguments, in order or by name: torch tensors on the session's device, and numbers. The
            tensors are kept alive as long as what is returned.
        grid : sequence of int, optional
            One to three numbers of blocks in place of the family's rule.
        is_programmatic : bool
            Launch it as a programmatic dependent of the launch before it on the stream, which it may then overlap. Only
            for a kernel that waits for that launch (PTX ``griddepcontrol.wait``) before it touches what both touch; the
            kernels of the MoE layers do in the order of a layer. A program whose launch facts say so is always launched
            like that.

        Raises
        ------
        InvalidArgument
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's.
        """
        self.refuse_unloaded()
        words, scalars, kept = self._signature.check(values, named)
        if grid is None:
            blocks = self.definition.grid(scalars, self.resident_blocks)
            assert all(blocks) or not all(scalars.values()), f"{self.name} has an empty grid for {scalars}"
        else:
            blocks = check_grid(self.name, grid)
        return Bound(self, words + self._padding, blocks, kept, is_programmatic or self.launch_info.is_programmatic)

    def launch(self, *values: Any, stream: Any = None, **named: Any) -> None:
        """Check the arguments and launch; see :meth:`bind` and :meth:`Bound.launch`."""
        self.bind(*values, **named).launch(stream)

    def refuse_unloaded(self) -> None:
        """Raise SessionState when the session was closed, or this process is a fork of the one that loaded."""
        if self._refusal:
            raise SessionState(f"{self.name} cannot be launched: {self._refusal}", "planfreeze.session().freeze()")

    def unload(self, reason: str, *, is_forked: bool = False) -> None:
        """Release the program on its device; later binds and launches raise with ``reason``.

        A launch that another thread is in the middle of is waited for. One that takes more than five seconds, or that
        this call interrupts as a signal handler, keeps the program loaded until the process ends.

        Raises
        ------
        LaunchFailed
            The driver refuses; the program counts as unloaded all the same.
        """
        is_loaded, self._refusal = not self._refusal, reason
        if is_loaded and not is_forked and self._wait_for_launches():
            unload = self.device.driver.cuLibraryUnload
            self.device.run_in_context(lambda: self.device.check(self.name, unload(self._library)))

    def _wait_for_launches(self) -> bool:
        """Wait for launches of other threads that began before they were refused; tell whether all have ended.

        The driver crashes in a launch of what is unloaded meanwhile.
        """
        latest = time.monotonic() + LAUNCH_TIMEOUT_S
        while self._left != self._entered and time.monotonic() < latest:
            time.sleep(0)
        return self._left == self._entered


def check_grid(name: str, grid: Sequence[int]) -> Grid:
    """Return a grid that a caller gave, with all three numbers."""
    blocks = tuple(grid)
    if not 1 <= len(blocks) <= 3 or any(type(count) is not int or not 0 <= count < 2**31 for count in blocks):
        raise InvalidArgument(name, "grid", f"= {blocks} is not one to three numbers of blocks")
    x, y, z = (*blocks, 1, 1)[:3]
    return x, y, z


class Bound:
    """A program with checked arguments. ``launch`` is one driver call: no check, no file, no allocation on a device.

    Where the launch has attributes, a thread's first one also makes what the driver reads of them.
    """

    def __init__(
        self, program: Program, words: list[int], grid: Grid, kept: tuple[Any, ...], is_programmatic: bool
    ) -> None:
        self.program = program
        self.is_programmatic = is_programmatic
        self.grid = grid
        self.kept = kept
        self._counted = int(0 not in grid)
        # The values, and behind them the address of each: what the driver reads at every launch.
        count = len(words)
        self._parameters = (ctypes.c_int64 * (2 * count))(*words)
        first = ctypes.addressof(self._parameters)
        self._address = first + 8 * count
        self._parameters[count:] = list(range(first, self._address, 8))
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
        program._entered += 1
        try:
            if program._refusal:
                program.refuse_unloaded()
            device = program.device
            handle = device._current_stream(device.ordinal) if stream is None else device.stream_handle(stream)
            (status,) = self._driver_launch(handle)
            if status.value:
                self._launch_in_context(status, handle)
            program.launches += self._counted
        finally:
            program._left += 1

    def _choose_launch(self) -> Callable[[int], Any]:
        """Return the driver call with everything but the stream filled in."""
        info, driver, function = self.program.launch_info, self.program.device.driver, self.program._function
        if 0 in self.grid:
            nothing = (driver.CUresult.CUDA_SUCCESS,)
            return lambda stream: nothing
        if info.cluster == (1, 1, 1) and not info.is_cooperative and not self.is_programmatic:
            launch, sizes, address = (
                driver.cuLaunchKernel,
                (*self.grid, *info.block, info.shared_bytes),
                self._address,
            )
            return lambda stream: launch(function, *sizes, stream, address, 0)
        # The stream is part of what the driver reads, so every thread has its own.
        configs: dict[int, Any] = {}

        def launch_extended(stream: int) -> Any:
            thread = get_ident()
            config = configs.get(thread)
            if config is None:
                config = configs[thread] = self._make_config()
            config.hStream = driver.CUstream(stream)
            return driver.cuLaunchKernelEx(config, function, self._address, 0)

        return launch_extended

    def _make_config(self) -> Any:
        """Return what the driver is told of an extended launch, but for the stream."""
        info, config = self.program.launch_info, self.program.device.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = info.block
        config.sharedMemBytes = info.shared_bytes
        config.attrs = self._launch_attributes()
        config.numAttrs = len(config.attrs)
        return config

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
        if self.is_programmatic:
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
