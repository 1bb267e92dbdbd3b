"""Family ``csf_decode``: write the native planes of the experts that are present from a CSF batch.

The planes of other experts keep their bytes, which no kernel of the call reads.
"""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["CsfDecodePayload", "csf_decode"]

THREADS = 256
TASK_BYTES = 8192
"""Region of a native plane that a block decodes at a time."""
MAX_NATIVE_BYTES = 2**24
"""An exception has 24 bits for its native offset."""


class CsfDecodePayload(Payload):
    """Decoding of one projection. The number of exceptions is data, and no part of it.

    Parameters
    ----------
    rows, columns, group_rows : int
        Geometry of one expert's scales, as of ``ScaleGeometry``; fewer than 2^24 scales.

    Raises
    ------
    InvalidPayload
        The sizes cannot be tiled, or an expert has 2^24 scales or more.
    """

    family_name: ClassVar[str] = "csf_decode"
    rows: int
    columns: int
    group_rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            size = self.geometry.native_bytes(1)
        except errors.InvalidScales as error:
            raise errors.InvalidPayload(self.family_name, error.reason) from error
        if size >= MAX_NATIVE_BYTES:
            raise errors.InvalidPayload(
                self.family_name, f"{self.rows} rows of {self.columns} columns are {size} scales, not below 2^24"
            )

    @property
    def geometry(self) -> ScaleGeometry:
        """Geometry of one expert's scales."""
        return ScaleGeometry(rows=self.rows, columns=self.columns, group_rows=self.group_rows)

    @property
    def tasks(self) -> int:
        """Regions of one expert."""
        return -(-self.geometry.native_bytes(1) // TASK_BYTES)


@family(CsfDecodePayload, version=1)
def csf_decode(payload: CsfDecodePayload, target: Target) -> Definition:
    """Define the arguments, program source and grid; persistent blocks stride over the regions of all experts."""
    size, tasks = payload.geometry.native_bytes(1), payload.tasks

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["experts"] * tasks, resident_blocks), 1, 1)

    return Definition(
        arguments=(
            pointer("bases", "u8", lambda s: s["experts"] * payload.rows),
            pointer("selectors", "u8", lambda s: s["experts"] * size // 8),
            # How many there are says task_offsets, on the device.
            pointer("exceptions", "i32", lambda s: 0, alignment=4),
            pointer("task_offsets", "i64", lambda s: s["experts"] * (tasks + 1), alignment=8),
            pointer("presence", "u8", lambda s: s["experts"], alignment=1),
            pointer("native", "u8", lambda s: s["experts"] * size),
            scalar("experts"),
        ),
        source=CuteSource(
            kernel="planfreeze.kernels.scales.csf_decode_cute:CsfDecode",
            constants=(
                ("rows", payload.rows),
                ("columns", payload.columns),
                ("group_rows", payload.group_rows),
                ("task_bytes", TASK_BYTES),
            ),
            launch=LaunchInfo(block=(THREADS, 1, 1)),
        ),
        grid=grid,
    )
