"""Errors of what was asked for: payloads, architectures, families, settings, options."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "DecoratedPayload",
    "DuplicateFamily",
    "InvalidCapacity",
    "InvalidInlineLimit",
    "InvalidPayload",
    "InvalidPlanReference",
    "InvalidSetting",
    "OutputUnwritable",
    "SeveralArms",
    "UnavailableArm",
    "UnknownArch",
    "UnknownArm",
    "UnknownFamily",
    "UnknownIdType",
    "UnnameableConstant",
    "UnservedCapacity",
]


class InvalidPayload(PlanfreezeError):
    """A payload cannot name a program."""

    exit_code = 2

    def __init__(self, family: str, reason: str) -> None:
        super().__init__(family, reason)
        self.family, self.reason = family, reason

    def __str__(self) -> str:
        return (
            f"payload of {self.family}: {self.reason}. A payload names a program by geometry and flags alone. "
            f"Correct the payload, or see what is planned: planfreeze plan --family FAMILY, or --model MODEL"
        )


class DecoratedPayload(PlanfreezeError):
    """A class of payloads is decorated as a dataclass."""

    exit_code = 2

    def __init__(self, payload: str, name: str) -> None:
        super().__init__(payload, name)
        self.payload, self.name = payload, name

    def __str__(self) -> str:
        return (
            f"{self.payload} is decorated as a dataclass. Its base makes it frozen, with fields given by name, "
            f"and a dataclass would make them anew. Write it without the decorator: class {self.name}(Payload):"
        )


class InvalidSetting(PlanfreezeError):
    """An environment variable does not have its type."""

    exit_code = 2

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name, self.value, self.expected = name, value, expected

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} is not {self.expected}. Run: export {self.name}=... or unset {self.name}"


class UnknownArch(PlanfreezeError):
    """An architecture name is not one planfreeze compiles for."""

    exit_code = 2

    def __init__(self, arch: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(arch, known, near)
        self.arch, self.known, self.near = arch, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.arch} is not an architecture planfreeze compiles for.{hint} Programs are made for one exact "
            f"architecture, suffix included. Use one of: {', '.join(self.known)}"
        )


class UnknownFamily(PlanfreezeError):
    """A kernel family is named that no installed module registers."""

    exit_code = 3

    def __init__(self, reference: str, near: str | None = None, reason: str | None = None) -> None:
        super().__init__(reference, near, reason)
        self.reference, self.near, self.reason = reference, near, reason

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        reason = f": its module cannot be imported ({self.reason})" if self.reason else ""
        return (
            f"{self.reference} is not a kernel family here{reason}.{hint} Its arguments and launch rules come from the "
            f"module that defines it, and that has to be importable. Install its package, or put its folder on "
            f"PYTHONPATH; a family that no entry point offers is named as module:attribute"
        )


class DuplicateFamily(PlanfreezeError):
    """Two kernel families have one name."""

    exit_code = 2

    def __init__(self, name: str, known: str, reference: str) -> None:
        super().__init__(name, known, reference)
        self.name, self.known, self.reference = name, known, reference

    def __str__(self) -> str:
        return (
            f"{self.reference} and {self.known} are both families named {self.name}. A payload names its program by "
            f"the family's name, so one would be taken for the other. Change the family_name of one payload class"
        )


class InvalidCapacity(PlanfreezeError):
    """A capacity is not a number of tokens."""

    exit_code = 2

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not a capacity: a whole number of tokens from 1 to 2147483647. A plan "
            f"covers the calls of up to its largest capacity. Run: planfreeze plan --capacity 8,64,1536"
        )


class InvalidInlineLimit(PlanfreezeError):
    """The inline limit is not a number of tokens."""

    exit_code = 2

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not an inline limit: a whole number of tokens >= 0. It is the largest "
            f"capacity whose grouped kernels read compressed scales. Run: planfreeze plan --inline-limit "
            f"1536"
        )


class UnknownArm(PlanfreezeError):
    """An arm is named that does not exist."""

    exit_code = 2

    def __init__(self, arm: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(arm, known, near)
        self.arm, self.known, self.near = arm, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.arm!r} is not an arm.{hint} An arm is a way in which scales reach the kernels. Use "
            f"--arms with one or more of: {', '.join(self.known)}"
        )


class UnavailableArm(PlanfreezeError):
    """A model's weights or their geometry do not allow an arm."""

    exit_code = 2

    def __init__(self, model: str, tp: int, arm: str, reason: str, available: tuple[str, ...]) -> None:
        super().__init__(model, tp, arm, reason, available)
        self.model, self.tp, self.arm, self.reason, self.available = model, tp, arm, reason, available

    def __str__(self) -> str:
        return (
            f"{self.model} at tp {self.tp} has no arm {self.arm}: {self.reason}. Its programs would never "
            f"be used, and no other arm takes its place. Use --arms with: {', '.join(self.available)}"
        )


class UnknownIdType(PlanfreezeError):
    """A type of routing ids is named that does not exist."""

    exit_code = 2

    def __init__(self, id_type: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(id_type, known, near)
        self.id_type, self.known, self.near = id_type, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.id_type!r} is not a type of routing ids.{hint} Kernels are compiled per type. Use "
            f"--ids with one or more of: {', '.join(self.known)}"
        )


class InvalidPlanReference(PlanfreezeError):
    """A frozen plan is asked for by something that names none."""

    exit_code = 2

    def __init__(self, reference: str) -> None:
        super().__init__(reference)
        self.reference = reference

    def __str__(self) -> str:
        return (
            f"{self.reference!r} does not name a frozen plan. A pin that is no digest would prove nothing. Use NAME, "
            f"or NAME@sha256:ROOT with the 64 digits that the build printed"
        )


class OutputUnwritable(PlanfreezeError):
    """The result cannot be written to standard output."""

    exit_code = 6

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"standard output cannot be written: {self.reason}. What the command did is done, its result is not shown. "
            f"Run it again with somewhere to write to"
        )


class SeveralArms(PlanfreezeError):
    """A runtime plan is declared with more than one arm."""

    exit_code = 2

    def __init__(self, arms: tuple[str, ...]) -> None:
        super().__init__(arms)
        self.arms = arms

    def __str__(self) -> str:
        return (
            f"the arms {', '.join(self.arms)} are named. A layer is served from experts that were prepared in one way. "
            f"Declare one plan per arm, each with: PlanOptions(arms=({self.arms[0]!r},), ...)"
        )


class UnservedCapacity(PlanfreezeError):
    """A runtime plan is declared with a capacity of more rows or tasks than its kernels count."""

    exit_code = 2

    def __init__(self, model: str, tp: int, unserved: tuple[int, ...], served: tuple[int, ...]) -> None:
        super().__init__(model, tp, unserved, served)
        self.model, self.tp, self.unserved, self.served = model, tp, unserved, served

    def __str__(self) -> str:
        one_of = f"capacities={self.served}" if self.served else "a smaller capacity, such as 4096"
        return (
            f"{self.model} at tp {self.tp}: no kernels for the capacities {', '.join(map(str, self.unserved))}. "
            f"Kernels count rows and tasks in 32 bits, and calls of so many tokens can need more. "
            f"Declare the plan with: {one_of}"
        )


class UnnameableConstant(PlanfreezeError):
    """A constant of a kernel is something that no other process could find."""

    exit_code = 2

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name, self.value, self.reason = name, value, reason

    def __str__(self) -> str:
        return (
            f"constant {self.name} = {self.value}: {self.reason}. A program is compiled in another process, and "
            f"kept under a key of its constants. Give it a name in a module, or pass an int, bool, str, float or None"
        )
