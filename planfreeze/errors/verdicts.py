"""Answers of commands that are no: what was asked for is not so."""

import shlex

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "BuildIncomplete",
    "PlanDiffers",
    "ProgramNotStored",
    "ProgramsDiffer",
    "ServingHindered",
    "StoreOverBudget",
]


class BuildIncomplete(PlanfreezeError):
    """Programs of a build did not compile, or take more of a GPU than their plan allows."""

    exit_code = 1

    def __init__(self, failed: int, exceeding: int, programs: int) -> None:
        super().__init__(failed, exceeding, programs)
        self.failed, self.exceeding, self.programs = failed, exceeding, programs

    def __str__(self) -> str:
        counts = {"did not compile": self.failed, "exceed a budget": self.exceeding}
        found = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        return (
            f"of {self.programs} programs {found}, each named above. A plan is frozen only when it is whole and keeps "
            f"its budgets. What did compile stays. Mend those kernels, and run the same command again"
        )


class PlanDiffers(PlanfreezeError):
    """A plan is not what a recorded run used."""

    exit_code = 1

    def __init__(self, plan: str, recording: str, unused: int, unplanned: int) -> None:
        super().__init__(plan, recording, unused, unplanned)
        self.plan, self.recording, self.unused, self.unplanned = plan, recording, unused, unplanned

    def __str__(self) -> str:
        return (
            f"{self.plan} and {self.recording} differ: {self.unused} programs planned and not used, {self.unplanned} "
            f"used and not planned. A frozen run stops at one that is not planned. To plan what the run used, "
            f"run: planfreeze build --plan {shlex.quote(self.recording)}"
        )


class ProgramNotStored(PlanfreezeError):
    """A payload that is explained has no program in the store, for none of the architectures."""

    exit_code = 3

    def __init__(self, family: str, archs: tuple[str, ...], store: str) -> None:
        super().__init__(family, archs, store)
        self.family, self.archs, self.store = family, archs, store

    def __str__(self) -> str:
        return (
            f"{self.store} has no such program of {self.family} for {', '.join(self.archs)}. A frozen session never "
            f"compiles one. Run what the explanation ends with, or see what is planned: planfreeze plan --model MODEL"
        )


class ProgramsDiffer(PlanfreezeError):
    """What is compared does not hold the same programs."""

    exit_code = 1

    def __init__(self, before: str, after: str, summary: str) -> None:
        super().__init__(before, after, summary)
        self.before, self.after, self.summary = before, after, summary

    def __str__(self) -> str:
        return (
            f"{self.before} and {self.after} differ: {self.summary}. A frozen plan serves only the programs it was "
            f"frozen with. To see one of them whole, run: planfreeze show KEY"
        )


class ServingHindered(PlanfreezeError):
    """Frozen serving would not work on this machine; 6 if it only lacks something, else 1."""

    def __init__(self, problems: int, exit_code: int) -> None:
        super().__init__(problems, exit_code)
        self.problems, self.exit_code = problems, exit_code

    def __str__(self) -> str:
        return (
            f"frozen serving does not work here, problems: {self.problems}. A session would meet each of them when it "
            f"freezes or launches. Do what is advised for them, and run again: planfreeze doctor"
        )


class StoreOverBudget(PlanfreezeError):
    """What a store has to keep is larger than its budget."""

    exit_code = 1

    def __init__(self, store: str, kept_bytes: int, max_bytes: int) -> None:
        super().__init__(store, kept_bytes, max_bytes)
        self.store, self.kept_bytes, self.max_bytes = store, kept_bytes, max_bytes

    def __str__(self) -> str:
        return (
            f"{self.store} keeps {self.kept_bytes} bytes, more than --max-bytes {self.max_bytes}. What named plans "
            f"and the last hour's entries need is never removed. See which plans could go: planfreeze ls"
        )
