"""Family ``launch_sum``: a kernel that does next to nothing, with few or with many arguments."""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Definition, TritonSource, family, pointer, scalar
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.target import Target, target

__all__ = ["BLOCK", "SUM_SIZES", "LaunchSumPayload", "enumerate_programs", "launch_plan", "launch_sum"]

SUM_SIZES = (5, 19)
"""Numbers of arguments: as many as a small kernel has, and as the largest of a MoE layer."""
BLOCK = 128


class LaunchSumPayload(Payload):
    """A sum of tensors.

    Parameters
    ----------
    arguments : int
        Arguments of the kernel: all but two are tensors to add, then the result and their length.
    offset : int
        Added to every sum; makes programs that differ.

    Raises
    ------
    InvalidPayload
        There is no kernel with so many arguments.
    """

    family_name: ClassVar[str] = "launch_sum"
    arguments: int
    offset: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arguments not in SUM_SIZES:
            raise errors.InvalidPayload(self.family_name, f"arguments = {self.arguments} is none of {SUM_SIZES}")


@family(LaunchSumPayload, version=1)
def launch_sum(payload: LaunchSumPayload, target: Target) -> Definition:
    """Arguments ``source_0, ..., out, count``: f32, at most 128 elements."""
    names = (*(f"source_{i}" for i in range(payload.arguments - 2)), "out")
    return Definition(
        arguments=(*(pointer(name, "f32", lambda s: s["count"]) for name in names), scalar("count", maximum=BLOCK)),
        source=TritonSource(
            kernel=f"launch_bench.sums_triton:sum_{payload.arguments}",
            constants=(("offset", payload.offset), ("block", BLOCK)),
        ),
        grid=lambda scalars, resident_blocks: (1 if scalars["count"] else 0, 1, 1),
    )


def enumerate_programs(model: Model, *, tp: int, target: Target, options: PlanOptions) -> tuple[Payload, ...]:
    """List as many different programs as the model has experts."""
    return tuple(LaunchSumPayload(arguments=SUM_SIZES[0], offset=offset) for offset in range(model.experts))


def launch_plan(arch: str) -> Plan:
    """Return the plan of one program for each number of arguments."""
    payloads = tuple(LaunchSumPayload(arguments=arguments) for arguments in SUM_SIZES)
    return Plan(model="launches", tp=1, target=target(arch), payloads=payloads)
