"""Families of recorded programs: what a run was seen to compile, as payloads. Their compilers' runtimes launch them."""

from planfreeze import errors
from planfreeze.family import Grid, Scalars

__all__ = ["no_grid"]


def no_grid(scalars: Scalars, resident_blocks: int) -> Grid:
    """Refuse to launch.

    Raises
    ------
    ServedElsewhere
        Always: the arguments of a recorded program are known to its compiler's runtime alone.
    """
    raise errors.ServedElsewhere
