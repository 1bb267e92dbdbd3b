"""Errors of families that are declared by ranges, of the kernels they name, and of what those capture."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "AmbiguousEntryPoint",
    "BrokenEntryPoint",
    "ContradictoryMarking",
    "FamilyTooLarge",
    "InvalidDeclaration",
    "UnfreezableKernel",
    "UnkeyedCapture",
    "UnlistedFamily",
]


class InvalidDeclaration(PlanfreezeError):
    """A family is declared in a way that contradicts itself."""

    exit_code = 2

    def __init__(self, family: str, name: str, reason: str) -> None:
        super().__init__(family, name, reason)
        self.family, self.name, self.reason = family, name, reason

    def __str__(self) -> str:
        return (
            f"{self.family} declares {self.name}: {self.reason}. Its variants are listed from what is declared. "
            f"Correct the declaration of {self.name}"
        )


class FamilyTooLarge(PlanfreezeError):
    """A family has more variants than anyone would compile, or no bound at all."""

    exit_code = 2

    def __init__(self, family: str, argument: str, reason: str, advice: tuple[str, ...]) -> None:
        super().__init__(family, argument, reason, advice)
        self.family, self.argument, self.reason, self.advice = family, argument, reason, advice

    def __str__(self) -> str:
        advice = "; ".join(self.advice) or f"declare a smaller range or fewer values for {self.argument}"
        return (
            f"family {self.family} is not listed because of {self.argument}: {self.reason}. Every variant is compiled "
            f"ahead, so a family needs a bound. To shrink it: {advice}"
        )


class UnlistedFamily(PlanfreezeError):
    """A family cannot be planned by itself, as nothing says which payloads it is used with."""

    exit_code = 2

    def __init__(self, reference: str) -> None:
        super().__init__(reference)
        self.reference = reference

    def __str__(self) -> str:
        return (
            f"family {self.reference} does not say which payloads it is used with. A plan lists every program. "
            f"Plan it through a model (--model), or declare it by triton_family or cute_family"
        )


class ContradictoryMarking(PlanfreezeError):
    """A kernel and its family say different things of a parameter."""

    def __init__(self, kernel: str, parameter: str, declared: str, found: str) -> None:
        super().__init__(kernel, parameter, declared, found)
        self.kernel, self.parameter, self.declared, self.found = kernel, parameter, declared, found

    def __str__(self) -> str:
        return (
            f"{self.kernel}: parameter {self.parameter} is declared {self.declared} and the kernel has it "
            f"{self.found}. The variants that a launch picks would not be the ones that were planned. "
            f"Make the declaration of {self.parameter} and the kernel agree"
        )


class UnfreezableKernel(PlanfreezeError):
    """A kernel does something around its launch that a frozen program does not repeat."""

    def __init__(self, kernel: str, reason: str, remedy: str) -> None:
        super().__init__(kernel, reason, remedy)
        self.kernel, self.reason, self.remedy = kernel, reason, remedy

    def __str__(self) -> str:
        return f"{self.kernel}: {self.reason}. A frozen program is launched without it. {self.remedy}"


class UnkeyedCapture(PlanfreezeError):
    """A kernel uses something whose value its key does not hold."""

    def __init__(self, kernel: str, name: str, reason: str) -> None:
        super().__init__(kernel, name, reason)
        self.kernel, self.name, self.reason = kernel, name, reason

    def __str__(self) -> str:
        return (
            f"{self.kernel} uses {self.name}: {self.reason}. The program would depend on something that its key does "
            f"not hold, and be stale without anyone noticing. Make it a constant of the family, or assign it once, "
            f"at the top level of a module of the kernel's package, from literals and other such names"
        )


class BrokenEntryPoint(PlanfreezeError):
    """An installed entry point does not lead to what it promises."""

    exit_code = 3

    def __init__(self, group: str, name: str, value: str, reason: str) -> None:
        super().__init__(group, name, value, reason)
        self.group, self.name, self.value, self.reason = group, name, value, reason

    def __str__(self) -> str:
        return (
            f"entry point {self.name} of {self.group} = {self.value}: {self.reason}. It was asked for by name and "
            f"nothing takes its place. Repair or remove the package that declares it"
        )


class AmbiguousEntryPoint(PlanfreezeError):
    """Two installed packages declare one entry point."""

    exit_code = 2

    def __init__(self, group: str, name: str, values: tuple[str, ...]) -> None:
        super().__init__(group, name, values)
        self.group, self.name, self.values = group, name, values

    def __str__(self) -> str:
        return (
            f"{self.name} of {self.group} is declared as {' and as '.join(self.values)}. Which one is meant would "
            f"depend on the order of installation. Name it as module:attribute, or remove one package"
        )
