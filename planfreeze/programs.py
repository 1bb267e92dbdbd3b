"""Programs: cubins loaded on a device, launched by one driver call."""

import time
from collections.abc import Sequence
from typing import Any

from planfreeze import errors
from planfreeze.binding import Layout, Signature
from planfreeze.device import Device
from planfreeze.family import Grid
from planfreeze.inspection import find_tools
from planfreeze.launching import DriverLaunch, ParameterLayout, Parameters, choose_launch
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
            raise errors.WrongDevice(self.name, target.arch, device.name, device.capability)
        arguments = self.definition.arguments
        self._signature = Signature(self.name, arguments, device)
        padding = len(resolved.record.parameter_bytes) - len(arguments)
        self._parameters = ParameterLayout(self._signature.places, padding)
        self._library, self._function = device.run_in_context(lambda: self._load(resolved))
        self.resident_blocks = device.sm_count * device.run_in_context(self._occupancy)
        if self.resident_blocks == 0:
            raise errors.LaunchFailed(self.name, "not one block of it fits an SM")
        self._launches: dict[bool, DriverLaunch] = {}
        # What launches of checked calls used, ready to be used again; each list by whether it is programmatic.
        self._idle: dict[bool, list[Bound]] = {False: [], True: []}

    def _load(self, resolved: ResolvedProgram) -> tuple[Any, Any]:
        driver, check, info = self.device.driver, self.device.check, self.launch_info
        loaded = driver.cuLibraryLoadData(resolved.cubin, [], [], 0, [], [], 0)
        if loaded[0].name in UNREADABLE_IMAGES:
            version = check(self.name, driver.cuDriverGetVersion())
            supported = f"{version // 1000}.{version % 1000 // 10}"
            raise errors.DriverRefused(self.name, loaded[0].name, find_tools(resolved.cubin), supported)
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
            Names the argument whose count, type, device, alignment, contiguity or size is not the kernel's, or that has
            no memory.
        """
        self.refuse_unloaded()
        bound = Bound(self, is_programmatic=is_programmatic or self.launch_info.is_programmatic)
        layout = self._signature.check(values, named, bound.words)
        bound.grid = layout.grid or self._choose_grid(layout) if grid is None else check_grid(self.name, grid)
        bound.kept = values + tuple(named.values())
        return bound

    def launch(
        self,
        *values: Any,
        stream: Any = None,
        grid: Sequence[int] | None = None,
        is_programmatic: bool = False,
        **named: Any,
    ) -> None:
        """Check the arguments and launch; see :meth:`bind` and :meth:`Bound.launch`."""
        idle = self._idle[is_programmatic]
        try:
            bound = idle.pop()
        except IndexError:  # the first one, or other threads are launching with all there are
            bound = Bound(self, is_programmatic=is_programmatic or self.launch_info.is_programmatic)
        # A call that is refused takes it along: what it wrote is of no use.
        layout = self._signature.check(values, named, bound.words)
        bound.grid = layout.grid or self._choose_grid(layout) if grid is None else check_grid(self.name, grid)
        bound.launch(stream)
        idle.append(bound)

    def _choose_grid(self, layout: Layout) -> Grid:
        """Return the blocks that the family's rule gives, kept with what decides them."""
        blocks = self.definition.grid(layout.scalars, self.resident_blocks)
        assert all(blocks) or not all(layout.scalars.values()), f"{self.name}: empty grid for {layout.scalars}"
        layout.grid = blocks
        return blocks

    def driver_launch(self, *, is_programmatic: bool) -> DriverLaunch:
        """Return the driver's call of the program, made once."""
        known = self._launches.get(is_programmatic)
        if known is None:
            made = choose_launch(self.device.driver, self._function, self.launch_info, is_programmatic=is_programmatic)
            known = self._launches.setdefault(is_programmatic, made)
        return known

    def refuse_unloaded(self) -> None:
        """Raise SessionState when the session was closed, or this process is a fork of the one that loaded."""
        if self._refusal:
            raise errors.SessionState(
                f"{self.name} cannot be launched: {self._refusal}", "planfreeze.session().freeze()"
            )

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
        raise errors.InvalidArgument(name, "grid", f"= {blocks} is not one to three numbers of blocks")
    x, y, z = (*blocks, 1, 1)[:3]
    return x, y, z


class Bound:
    """A program with checked arguments. ``launch`` is one driver call: no check, no file, no allocation on a device.

    Attributes
    ----------
    words : memoryview
        The arguments as the driver reads them.
    grid : (int, int, int)
        The blocks; without any, nothing is launched.
    kept : tuple
        What it was bound to: tensors have to stay alive.
    """

    grid: Grid
    kept: tuple[Any, ...] = ()

    def __init__(self, program: Program, *, is_programmatic: bool) -> None:
        self.program = program
        self.is_programmatic = is_programmatic
        parameters = Parameters(program._parameters)
        self.words, self._address = parameters.words, parameters.address
        self._driver_launch = program.driver_launch(is_programmatic=is_programmatic)

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
            device, launch = program.device, self._driver_launch
            current_stream = device._current_stream
            handle = current_stream(device.ordinal) if stream is None else device.stream_handle(stream)
            grid = self.grid
            if 0 not in grid:
                (status,) = launch(grid, self._address, handle)
                if status and status.value:  # a number, whose truth costs less than its value
                    self._launch_in_context(status, handle)
                program.launches += 1
        finally:
            program._left += 1

    def _launch_in_context(self, status: Any, handle: int) -> None:
        device, name = self.program.device, self.program.name
        if status.name not in WRONG_CONTEXT_ERRORS:
            raise errors.LaunchFailed(name, status.name)
        device.run_in_context(lambda: device.check(name, self._driver_launch(self.grid, self._address, handle)))
