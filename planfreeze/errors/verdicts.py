"""Answers of commands that are no: what was asked for is not so."""

import shlex

from planfreeze.errors.base import PlanfreezeError

__all__ = ["BuildIncomplete", "PlanDiffers", "ProgramNotStored", "ServingHindered", "StoreOverBudget"]


class BuildIncomplete(PlanfreezeError):
    """Programs of a build did not compile."""

    exit_code = 1

    def __init__(self, failed: int, programs: int) -> None:
        super().__init__(failed, programs)
        self.failed, self.programs = failed, programs

    def __str__(self) -> str:
        return (
            f"{self.failed} of {self.programs} programs did not compile, each named above. A plan is frozen only "
            f"when it is whole. What did compile stays. Mend those kernels, and run the same command again"
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
