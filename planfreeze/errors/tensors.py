"""Errors of weights and scales."""

from planfreeze.errors.base import PlanfreezeError

__all__ = ["InvalidScales", "InvalidWeights", "ScalesDiffer", "UnsupportedGeometry"]


class UnsupportedGeometry(PlanfreezeError, ValueError):
    """Sizes of a layer that the MoE kernels do not tile."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.reason}. The kernels cover a layer in whole tiles and have no slower road for the rest. "
            f"Choose another tensor-parallel size: planfreeze plan --tp N"
        )


class InvalidWeights(PlanfreezeError, ValueError):
    """A weight or scale tensor does not have the shape or type its geometry asks for."""

    exit_code = 2

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(name, found, expected)
        self.name, self.found, self.expected = name, found, expected

    def __str__(self) -> str:
        return (
            f"{self.name} is {self.found}, not {self.expected}. Packed from it, the experts would hold wrong numbers. "
            f"Pass the tensor as documented: python -m pydoc planfreeze.kernels.moe.weights"
        )


class InvalidScales(PlanfreezeError, ValueError):
    """Scales, a native plane or inline storage do not have the form their geometry asks for."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.reason}. Read as scales of this geometry, the bytes would belong to other weights. "
            f"Pass them as documented: python -m pydoc planfreeze.kernels.scales"
        )


class ScalesDiffer(PlanfreezeError):
    """Inline storage does not decode to the native plane it was made from."""

    exit_code = 4

    def __init__(self, expert: int, offset: int, native: int, decoded: int) -> None:
        super().__init__(expert, offset, native, decoded)
        self.expert, self.offset, self.native, self.decoded = expert, offset, native, decoded

    def __str__(self) -> str:
        return (
            f"expert {self.expert}, native offset {self.offset}: the plane holds {self.native}, inline storage decodes "
            f"to {self.decoded}. A layer served from it would compute with wrong scales. "
            f"Encode the plane again: python -m pydoc planfreeze.kernels.scales.inline"
        )
