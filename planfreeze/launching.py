"""Launching: the driver's call of a program, and the parameters that it reads."""

import ctypes
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeAlias

from planfreeze.family import Argument, Grid, LaunchInfo

__all__ = ["DriverLaunch", "ParameterLayout", "Parameters", "choose_launch", "launch_nothing"]

DriverLaunch: TypeAlias = Callable[[Grid, int, int], Any]
"""The driver's call with everything but the grid, the address of the parameters, and the stream filled in."""


class ParameterLayout:
    """How the words of a program's calls lie in memory: eight bytes each, and behind them the address of each.

    Parameters
    ----------
    arguments : tuple of Argument
        The kernel's parameters in order.
    padding : int
        Parameters behind them that are zero.
    """

    def __init__(self, arguments: tuple[Argument, ...], padding: int) -> None:
        codes = "".join("Q" if a.is_pointer or a.dtype.startswith("u") else "q" for a in arguments)
        self.words = Struct(f"={codes}")
        self.count = len(arguments) + padding
        self.addresses = Struct(f"={self.count}Q")
        # Kept here, since ctypes forgets the type of an array, and makes it again, when nobody holds it.
        self.memory = ctypes.c_int64 * (2 * self.count)


class Parameters:
    """The parameters of a launch, as the driver reads them."""

    def __init__(self, layout: ParameterLayout) -> None:
        self._memory = layout.memory()
        first = ctypes.addressof(self._memory)
        self.address = first + layout.addresses.size
        layout.addresses.pack_into(self._memory, layout.addresses.size, *range(first, self.address, 8))
        self._fill = layout.words.pack_into

    def fill(self, words: Sequence[int]) -> None:
        """Set the words of the arguments; the driver copies them while it launches."""
        self._fill(self._memory, 0, *words)


def launch_nothing(driver: Any) -> DriverLaunch:
    """Return what stands for the driver's call where there are no blocks to launch."""
    nothing = (driver.CUresult.CUDA_SUCCESS,)
    return lambda grid, address, stream: nothing


def choose_launch(driver: Any, function: Any, info: LaunchInfo, *, is_programmatic: bool) -> DriverLaunch:
    """Return the driver's call of a function."""
    if info.cluster == (1, 1, 1) and not info.is_cooperative and not is_programmatic:
        launch, block, shared_bytes = driver.cuLaunchKernel, info.block, info.shared_bytes
        return lambda grid, address, stream: launch(function, *grid, *block, shared_bytes, stream, address, 0)
    attributes = launch_attributes(driver, info, is_programmatic=is_programmatic)
    launch, make_stream = driver.cuLaunchKernelEx, driver.CUstream
    # Grid and stream are part of what the driver reads, so that a launch has a configuration to itself.
    idle: list[Any] = []

    def launch_extended(grid: Grid, address: int, stream: int) -> Any:
        try:
            config = idle.pop()
        except IndexError:  # other threads are launching with all there are
            config = make_config(driver, info, attributes)
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.hStream = make_stream(stream)
        launched = launch(config, function, address, 0)
        idle.append(config)
        return launched

    return launch_extended


def make_config(driver: Any, info: LaunchInfo, attributes: list[Any]) -> Any:
    """Return what the driver is told of an extended launch, but for grid and stream."""
    config = driver.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = info.block
    config.sharedMemBytes = info.shared_bytes
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def launch_attributes(driver: Any, info: LaunchInfo, *, is_programmatic: bool) -> list[Any]:
    """Return the driver's attributes of a launch."""
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
    if is_programmatic:
        programmatic = driver.CUlaunchAttribute()
        programmatic.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        programmatic.value.programmaticStreamSerializationAllowed = 1
        attributes.append(programmatic)
    return attributes
