"""Launching: the driver's call of a program, and the parameters that it reads."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from planfreeze.family import Grid, LaunchInfo

__all__ = ["DriverLaunch", "ParameterLayout", "Parameters", "choose_launch"]

DriverLaunch: TypeAlias = Callable[[Grid, int, int], Any]
"""The driver's call with everything but the grid, the address of the parameters, and the stream filled in."""


class ParameterLayout:
    """How the words of a program's calls lie in memory: eight bytes each, and behind them where each argument is.

    Parameters
    ----------
    places : sequence of int
        The arguments' places in the order of the words.
    padding : int
        Parameters behind them that are zero.
    """

    def __init__(self, places: Sequence[int], padding: int) -> None:
        self.words_bytes = 8 * len(places)
        self.count = len(places) + padding
        words = sorted(range(len(places)), key=places.__getitem__)
        self.offsets = tuple(8 * word for word in (*words, *range(len(places), self.count)))
        # Kept here, since ctypes forgets the type of an array, and makes it again, when nobody holds it.
        self.memory = ctypes.c_uint64 * (2 * self.count)


class Parameters:
    """The parameters of a launch, as the driver reads them.

    Attributes
    ----------
    words : memoryview
        The words of the arguments, to be set as a whole; the driver copies them while it launches.
    address : int
        Where the addresses of the parameters are.
    """

    def __init__(self, layout: ParameterLayout) -> None:
        memory = layout.memory()
        first = ctypes.addressof(memory)
        memory[layout.count :] = [first + offset for offset in layout.offsets]
        self.words = memoryview(memory).cast("B")[: layout.words_bytes]
        self.address = first + 8 * layout.count


def choose_launch(driver: Any, function: Any, info: LaunchInfo, *, is_programmatic: bool) -> DriverLaunch:
    """Return the driver's call of a function."""
    if info.cluster == (1, 1, 1) and not info.is_cooperative and not is_programmatic:
        launch, (x, y, z), shared_bytes = driver.cuLaunchKernel, info.block, info.shared_bytes
        return lambda grid, address, stream: launch(
            function, grid[0], grid[1], grid[2], x, y, z, shared_bytes, stream, address, 0
        )
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
