"""Errors of the guard."""

from typing import Any

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "CompilationForbidden",
    "GuardAsleep",
    "GuardLogFailed",
    "UnknownMode",
    "UnknownRoad",
    "UnwatchableRoad",
]


# What helps on the roads of compilers whose programs a plan can hold, by what the attempt came to do; and on others.
PLANNED_ROADS = ("triton", "triton-autotune", "triton-build", "triton-load", "cute")
STEPS = {
    "compile": "planfreeze build, with a plan that holds this program; planfreeze record makes one of a run",
    "build": "the program once unguarded, so that Triton has the module in its cache",
    "benchmark": "the tuning before the guard is armed, or choose one configuration",
    "load": "the kernel once before the guard is armed, or plan it",
}
UNPLANNED_STEP = "this before a guard is armed; no plan holds what comes of it"


class CompilationForbidden(PlanfreezeError):
    """A compiler was reached while a guard forbids compiling; ``attempt`` says what it was asked for."""

    exit_code = 5

    def __init__(self, attempt: Any, explanation: str = "") -> None:
        super().__init__(attempt, explanation)
        self.attempt, self.explanation = attempt, explanation

    def __str__(self) -> str:
        advice = STEPS[self.attempt.action] if self.attempt.road in PLANNED_ROADS else UNPLANNED_STEP
        step = "" if "Run:" in self.explanation else f" Run: {advice}"
        explanation = f" {self.explanation}" if self.explanation else ""
        refusal = f"Nothing may be {self.attempt.participle} while a guard is armed."
        return f"{self.attempt}. {refusal}{explanation}{step}"


class UnwatchableRoad(PlanfreezeError):
    """A compiler is loaded whose entries are not the ones a guard knows, or what knows them cannot be loaded."""

    exit_code = 6

    def __init__(self, road: str, door: str, reason: str = "") -> None:
        super().__init__(road, door, reason)
        self.road, self.door, self.reason = road, door, reason

    def __str__(self) -> str:
        if self.reason:
            return (
                f"{self.road}: {self.door} cannot be loaded: {self.reason}. A guard that cannot see a compiler would "
                f"prove nothing. Free what is used up, or start the process again with planfreeze as it is installed"
            )
        return (
            f"{self.road}: {self.door} does not exist in the installed version. A guard that cannot see a compiler "
            f'would prove nothing. Run: pip install "planfreeze[build]" to get a supported version'
        )


class UnknownRoad(PlanfreezeError):
    """A road to a compiler is named that no guard watches."""

    exit_code = 2

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return (
            f"{self.name} is not a road a guard watches, so it can be neither proven nor allowed. "
            f"Use one of: {', '.join(self.known)}"
        )


class UnknownMode(PlanfreezeError):
    """A guard is asked for a mode it does not have."""

    exit_code = 2

    def __init__(self, mode: str, known: tuple[str, ...]) -> None:
        super().__init__(mode, known)
        self.mode, self.known = mode, known

    def __str__(self) -> str:
        return (
            f"{self.mode!r} is not a mode of a guard. A guard that guesses could let a compile pass. "
            f"Use one of: {', '.join(self.known)}"
        )


class GuardLogFailed(PlanfreezeError):
    """An attempt to compile cannot be written to the log of the run."""

    exit_code = 6

    def __init__(self, path: str, attempt: str, reason: str) -> None:
        super().__init__(path, attempt, reason)
        self.path, self.attempt, self.reason = path, attempt, reason

    def __str__(self) -> str:
        return (
            f"{self.attempt}, and {self.path} does not take a line: {self.reason}. A run that reads its log would "
            f"pass without this attempt. Set PLANFREEZE_GUARD_LOG to a file that can be written"
        )


class GuardAsleep(PlanfreezeError):
    """The guard did not stop a deliberate attempt to compile."""

    exit_code = 5

    def __init__(self, road: str, log: str) -> None:
        super().__init__(road, log)
        self.road, self.log = road, log

    def __str__(self) -> str:
        return (
            f"the guard did not stop a deliberate attempt to compile (road: {self.road}). A replay under it proves "
            f"nothing. Check that the compiler's version is supported: planfreeze --version\n{self.log}"
        )
