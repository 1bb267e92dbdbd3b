"""Family ``shared_probe``: a block that passes values through the end of its dynamic shared memory, of any size."""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import CuteSource, Definition, LaunchInfo, family, pointer
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["ITEMS", "SharedProbePayload", "shared_probe"]

THREADS = 32
ITEMS = 4 * THREADS
"""Values of a call: four per thread."""


class SharedProbePayload(Payload):
    """The probe with an amount of shared memory.

    Parameters
    ----------
    shared_bytes : int
        Dynamic shared memory, a multiple of 16, at least 512.

    Raises
    ------
    InvalidPayload
        It is not.
    """

    family_name: ClassVar[str] = "shared_probe"
    shared_bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_bytes < 4 * ITEMS or self.shared_bytes % 16:
            raise errors.InvalidPayload(
                self.family_name, f"shared_bytes = {self.shared_bytes} is not a multiple of 16 >= 512"
            )


@family(SharedProbePayload, version=1)
def shared_probe(payload: SharedProbePayload, target: Target) -> Definition:
    """Arguments ``source, out``, 128 f32 each; ``out`` gets the groups of four in reverse order."""
    return Definition(
        arguments=(pointer("source", "f32", lambda s: ITEMS), pointer("out", "f32", lambda s: ITEMS)),
        source=CuteSource(
            kernel="probes.shared_probe_cute:SharedProbe",
            constants=(),
            launch=LaunchInfo(block=(THREADS, 1, 1), shared_bytes=payload.shared_bytes),
        ),
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
