"""Targets: the exact architectures programs are compiled for, with the facts kernels and launchers need."""

from msgspec import Struct

from planfreeze import errors

__all__ = ["ARCHS", "Target", "target"]


class Target(Struct, frozen=True, kw_only=True):
    """One architecture.

    Parameters
    ----------
    arch : str
        Exact name with its suffix, such as ``sm_90a``.
    capability : (int, int)
        Compute capability a device must report.
    max_shared_bytes : int
        Largest dynamic shared memory of one block (CUDA Programming Guide, technical specifications table).
    sm_shared_bytes : int
        Shared memory of one SM.
    max_warps, max_blocks : int
        Warps and blocks that one SM keeps resident at most (the same table).
    max_registers : int
        32-bit registers of one SM.
    """

    arch: str
    capability: tuple[int, int]
    max_shared_bytes: int
    sm_shared_bytes: int
    max_warps: int
    max_blocks: int
    max_registers: int = 65536

    @property
    def sm(self) -> int:
        """The number in the arch's name: 90 for ``sm_90a``."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def reserved_shared_bytes(self) -> int:
        """Shared memory of every block that the system keeps for itself."""
        return self.sm_shared_bytes - self.max_shared_bytes


ARCHS = {
    "sm_90a": Target(
        arch="sm_90a",
        capability=(9, 0),
        max_shared_bytes=227 * 1024,
        sm_shared_bytes=228 * 1024,
        max_warps=64,
        max_blocks=32,
    ),
    "sm_120a": Target(
        arch="sm_120a",
        capability=(12, 0),
        max_shared_bytes=99 * 1024,
        sm_shared_bytes=100 * 1024,
        max_warps=48,
        max_blocks=24,
    ),
}


def target(arch: str) -> Target:
    """Return the target of an exact architecture name.

    Raises
    ------
    UnknownArch
        The name lacks its suffix or is not supported.
    """
    try:
        return ARCHS[arch]
    except KeyError:
        from planfreeze.spellings import nearest_spelling  # for the message alone

        near = f"{arch}a" if f"{arch}a" in ARCHS else nearest_spelling(arch, ARCHS)
        raise errors.UnknownArch(arch, tuple(ARCHS), near) from None
