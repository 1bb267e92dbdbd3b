"""Family ``csf_presence``: which experts the routes of a call go to, a byte for every expert."""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["CsfPresencePayload", "csf_presence"]

THREADS = 1024
EXPERTS_PER_BLOCK = 128
"""Every block reads all ids; a share this small keeps its flags apart in the banks of shared memory."""


class CsfPresencePayload(Payload):
    """One variant of ``csf_presence``.

    Parameters
    ----------
    experts : int
        Number of experts, 1 to 65536.
    id_bits : int
        Width of the routing ids, 32 or 64.

    Raises
    ------
    InvalidPayload
        A field is outside these limits.
    """

    family_name: ClassVar[str] = "csf_presence"
    experts: int
    id_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.experts <= 65536:
            raise errors.InvalidPayload(self.family_name, f"experts = {self.experts} is not in 1..65536")
        if self.id_bits not in (32, 64):
            raise errors.InvalidPayload(self.family_name, f"id_bits = {self.id_bits} is neither 32 nor 64")


@family(CsfPresencePayload, version=1)
def csf_presence(payload: CsfPresencePayload, target: Target) -> Definition:
    """Arguments ``topk_ids, presence, pairs``; a block has 128 experts and reads all ids."""
    blocks = -(-payload.experts // EXPERTS_PER_BLOCK)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (blocks, 1, 1)

    return Definition(
        arguments=(
            pointer(
                "topk_ids",
                "i32" if payload.id_bits == 32 else "i64",
                lambda scalars: scalars["pairs"],
                alignment=payload.id_bits // 8,
            ),
            pointer("presence", "u8", lambda scalars: payload.experts, alignment=1),
            scalar("pairs"),
        ),
        source=CuteSource(
            kernel="planfreeze.kernels.scales.csf_presence_cute:CsfPresence",
            constants=(("experts", payload.experts), ("id_bits", payload.id_bits)),
            launch=LaunchInfo(block=(THREADS, 1, 1), shared_bytes=4 * EXPERTS_PER_BLOCK),
        ),
        grid=grid,
    )
