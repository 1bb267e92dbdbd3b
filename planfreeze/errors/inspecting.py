"""Errors of looking at programs: finding one, disassembling it, holding it against a budget."""

from planfreeze.errors.base import PlanfreezeError

__all__ = ["BudgetExceeded", "DisassemblerMissing", "DisassemblyFailed", "ProgramMissing", "UnknownBudgetFamily"]


class ProgramMissing(PlanfreezeError):
    """No program is what was asked for."""

    exit_code = 3

    def __init__(self, asked: str, store: str, total: int, near: tuple[str, ...]) -> None:
        super().__init__(asked, store, total, near)
        self.asked, self.store, self.total, self.near = asked, store, total, near

    def __str__(self) -> str:
        listed = "".join(f"\n  {program}" for program in self.near)
        nearest = f"\nThe nearest are:{listed}" if self.near else ""
        return (
            f"none of the {self.total} programs in {self.store} is {self.asked}. A program is named by its "
            f"key, by the digest of its payload or cubin (at least eight digits), or by its family and fields. See "
            f"what is there: planfreeze show --store {self.store}{nearest}"
        )


class DisassemblerMissing(PlanfreezeError):
    """There is no disassembler."""

    exit_code = 6

    def __str__(self) -> str:
        return (
            "there is no nvdisasm on PATH, in Triton's package or in an NVIDIA wheel. The machine code of a cubin is "
            "read by NVIDIA's disassembler alone. Run: pip install nvidia-cuda-nvdisasm"
        )


class DisassemblyFailed(PlanfreezeError):
    """No disassembler here reads a cubin."""

    exit_code = 6

    def __init__(self, program: str, answers: tuple[str, ...]) -> None:
        super().__init__(program, answers)
        self.program, self.answers = program, answers

    def __str__(self) -> str:
        listed = "".join(f"\n  {answer}" for answer in self.answers)
        return (
            f"{self.program} cannot be disassembled here. A disassembler reads no cubin of a later CUDA than it "
            f"knows, and no host code. Run: pip install --upgrade nvidia-cuda-nvdisasm{listed}"
        )


class BudgetExceeded(PlanfreezeError):
    """A program takes more than its plan allows."""

    exit_code = 1

    def __init__(self, program: str, arch: str, budget: str, value: str, limit: str) -> None:
        super().__init__(program, arch, budget, value, limit)
        self.program, self.arch, self.budget, self.value, self.limit = program, arch, budget, value, limit

    def __str__(self) -> str:
        return (
            f"{self.program} ({self.arch}) exceeds its budget {self.budget}: it has {self.value}, and {self.limit} is "
            f"declared. No plan is frozen by a build that finds such a program. Change the kernel or the budget"
        )


class UnknownBudgetFamily(PlanfreezeError):
    """A budget is declared for a family that is not known."""

    exit_code = 2

    def __init__(self, family: str, plan: str, planned: tuple[str, ...], near: str | None) -> None:
        super().__init__(family, plan, planned, near)
        self.family, self.plan, self.planned, self.near = family, plan, planned, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"a budget of {self.plan} is for {self.family}, which is no family here. It would limit nothing.{hint} "
            f"Correct the name; the plan has programs of: {', '.join(self.planned)}"
        )
