"""The device that Triton takes to be the current one while it compiles for a target: there is none to ask."""

from msgspec import Struct
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

__all__ = ["make_current"]


class TargetDriver(Struct, frozen=True):
    """What kernels that branch on their target ask; of a driver's other functions a compile needs none."""

    target: GPUTarget

    def get_current_target(self) -> GPUTarget:
        """Return the target."""
        return self.target


def make_current(target: GPUTarget) -> None:
    """Make a target the one that kernels see, whichever device or none this process has."""
    driver.set_active(TargetDriver(target))
