"""Errors of weights and scales."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "InvalidExperts",
    "InvalidScales",
    "InvalidWeights",
    "ScalesDiffer",
    "UndecodedScales",
    "UnsupportedGeometry",
]


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
    """Compressed scales, inline storage or a CSF batch, do not decode to the native plane they were made from."""

    exit_code = 4

    def __init__(self, expert: int, offset: int, native: int, decoded: int, form: str = "inline storage") -> None:
        super().__init__(expert, offset, native, decoded, form)
        self.expert, self.offset, self.native, self.decoded, self.form = expert, offset, native, decoded, form

    def __str__(self) -> str:
        return (
            f"expert {self.expert}, native offset {self.offset}: the plane holds {self.native}, {self.form} decodes "
            f"to {self.decoded}. A layer served from it would compute with wrong scales. "
            f"Encode the plane again: python -m pydoc planfreeze.kernels.scales"
        )


class InvalidExperts(PlanfreezeError, ValueError):
    """What experts are to be prepared from does not fit together."""

    exit_code = 2

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(name, found, expected)
        self.name, self.found, self.expected = name, found, expected

    def __str__(self) -> str:
        return (
            f"{self.name} is {self.found}, not {self.expected}. Experts prepared from it would compute with wrong "
            f"numbers. Pass it as documented: python -m pydoc planfreeze.kernels.moe.experts"
        )


class UndecodedScales(PlanfreezeError, ValueError):
    """Scales are asked for as operands of a kernel, and no kernel reads their form."""

    exit_code = 2

    def __init__(self, projection: str) -> None:
        super().__init__(projection)
        self.projection = projection

    def __str__(self) -> str:
        return (
            f"the scales of {self.projection} are a CSF batch, which no product kernel reads: they are decoded to a "
            f"native plane before every call. Decode them: python -m pydoc planfreeze.kernels.scales.csf_batch"
        )
