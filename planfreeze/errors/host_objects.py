"""Errors of host objects: the code that launches recorded CuTe DSL kernels."""

from planfreeze.errors.base import PlanfreezeError

__all__ = ["HostObjectUnusable", "InvalidHostObject"]


class InvalidHostObject(PlanfreezeError, ValueError):
    """Bytes are no host object planfreeze can read."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"not a readable host object: it {self.reason}. It is loaded as code into the process. "
            f"Run: planfreeze build"
        )


class HostObjectUnusable(PlanfreezeError):
    """A host object is whole and this process cannot run it."""

    exit_code = 6

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return (
            f"{self.program} cannot be run here: {self.reason}. A call would fail far from the cause. "
            f"Build the plan with the nvidia-cutlass-dsl that serves it: planfreeze build --plan RECORDING"
        )
