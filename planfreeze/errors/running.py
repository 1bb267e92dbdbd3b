"""Errors of commands that run under the guard."""

from planfreeze.errors.base import PlanfreezeError

__all__ = ["CommandMissing", "CommandNotExecutable", "ReportUnwritable", "ServedLogFailed", "StartNotWatched"]


class CommandMissing(PlanfreezeError):
    """The command to run under the guard does not exist."""

    exit_code = 127

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is not found, so nothing was run. Give a path, or a program on PATH: planfreeze run -- CMD"


class CommandNotExecutable(PlanfreezeError):
    """The command to run under the guard is there and cannot be started."""

    exit_code = 126

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be started: {self.reason}. Nothing was run. A script needs permission to execute and "
            f"a first line that names its interpreter, or: planfreeze run -- python SCRIPT"
        )


class ReportUnwritable(PlanfreezeError):
    """The report of a run cannot be written."""

    exit_code = 6

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be written: {self.reason}. A run whose report is lost would have to be repeated. "
            f"Give another place: planfreeze run --report FILE -- CMD"
        )


class ServedLogFailed(PlanfreezeError):
    """That a program was served cannot be written to the log of the run."""

    exit_code = 6

    def __init__(self, path: str, program: str, reason: str) -> None:
        super().__init__(path, program, reason)
        self.path, self.program, self.reason = path, program, reason

    def __str__(self) -> str:
        return (
            f"{self.program} is served, and {self.path} does not take a line: {self.reason}. The run's report would "
            f"call it planned and not used. Make room there, or set PLANFREEZE_SERVE_LOG to a file that can be written"
        )


class StartNotWatched(PlanfreezeError):
    """A Python process starts without the guard that its environment asks for."""

    exit_code = 5

    def __init__(self, interpreter: str, log: str) -> None:
        super().__init__(interpreter, log)
        self.interpreter, self.log = interpreter, log

    def __str__(self) -> str:
        log = f"\n{self.log}" if self.log else ""
        python, _, options = self.interpreter.partition(" ")
        step = f"Leave out {options}" if set("IES") & set(options) else f"Run: {python} -m pip install planfreeze"
        return (
            f"{self.interpreter} starts without the guard, so a compile in it would go unseen. planfreeze has to be "
            f"importable there, and -I, -E and -S keep it out. {step}{log}"
        )
