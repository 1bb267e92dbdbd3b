"""Errors of planfreeze: one class per cause; the message says what happened, why it matters, what to do next."""

class PlanfreezeError(Exception):
    """Base of every error planfreeze raises on purpose; ``exit_code`` is the command line's status."""

    exit_code = 1


class InvalidPayload(PlanfreezeError):
    """A payload cannot name a program."""

    exit_code = 2

    def __init__(self, family: str, reason: str) -> None:
        super().__init__(family, reason)
        self.family, self.reason = family, reason

    def __str__(self) -> str:
        return (
            f"payload of {self.family}: {self.reason}. A payload names a program by geometry and flags alone. "
            f"Correct the payload, or see: planfreeze plan --json"
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

    def __init__(self, reference: str) -> None:
        super().__init__(reference)
        self.reference = reference

    def __str__(self) -> str:
        return (
            f"{self.reference} is not a kernel family here. Its arguments and launch rules come from the installed "
            f"package. Install the package that defines it, or build the plan again: planfreeze build"
        )
