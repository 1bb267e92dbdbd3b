"""Errors of building: sources, compilers, compile processes, cubins."""

import signal

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "CompileFailed",
    "CompilerMissing",
    "DriverRefused",
    "InvalidCubin",
    "KnobChanged",
    "SourceChanged",
    "SourceUnreadable",
    "ToolchainUnreadable",
    "UnexpectedCubin",
    "UnparsableSource",
    "WorkerDied",
    "WrongArch",
]


class SourceUnreadable(PlanfreezeError):
    """A kernel module has no Python source text."""

    exit_code = 3

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module

    def __str__(self) -> str:
        return (
            f"module {self.module} has no Python source file here. A program's key covers the text of its kernel. "
            f"Install the package that holds it, with its sources"
        )


class SourceChanged(PlanfreezeError):
    """A kernel's text changed after it was keyed."""

    def __init__(self, module: str, path: str) -> None:
        super().__init__(module, path)
        self.module, self.path = module, path

    def __str__(self) -> str:
        return (
            f"module {self.module} ({self.path}) is no longer the text its programs were keyed by. A program must "
            f"never be kept under the key of another text. Run the build again: planfreeze build"
        )


class CompilerMissing(PlanfreezeError):
    """A program has to be compiled and its compiler is not installed."""

    exit_code = 6

    def __init__(self, dialect: str, distribution: str) -> None:
        super().__init__(dialect, distribution)
        self.dialect, self.distribution = dialect, distribution

    def __str__(self) -> str:
        return (
            f"{self.distribution} is not installed. Programs of the {self.dialect} dialect are compiled with it and "
            f"their keys hold its fingerprint. Run: pip install 'planfreeze[build]'"
        )


class CompileFailed(PlanfreezeError):
    """A compiler refused a program, or made something else than was planned."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program} did not compile: {self.reason}"


class KnobChanged(PlanfreezeError):
    """Something that a compiler is steered by was changed in a compile process."""

    def __init__(self, program: str, knob: str, value: str) -> None:
        super().__init__(program, knob, value)
        self.program, self.knob, self.value = program, knob, value

    def __str__(self) -> str:
        return (
            f"{self.program} was compiled while {self.knob} was {self.value}, set by a module that it imports or when "
            f"Python started. No key holds that, and whatever this process compiles next would change with it. "
            f"Leave {self.knob} alone when kernels are imported, declare what it does as a compile option, and run: "
            f"planfreeze build"
        )


class WorkerDied(PlanfreezeError):
    """A compile process ended in the middle of a program, or was ended because it took too long."""

    def __init__(self, program: str, status: int, log: str, timeout_s: float | None = None) -> None:
        super().__init__(program, status, log, timeout_s)
        self.program, self.status, self.log, self.timeout_s = program, status, log, timeout_s

    @property
    def is_worth_another_try(self) -> bool:
        """Whether a signal ended it that may have had to do with the moment, such as a lack of memory."""
        return self.status < 0 and self.timeout_s is None

    def __str__(self) -> str:
        cause = f"ended with {name_status(self.status)}"
        if self.timeout_s is not None:
            cause = f"was ended after {self.timeout_s:.0f} s"
        return (
            f"the compile process of {self.program} {cause}. Its program was not made; the others go on. "
            f"Run the build again with --jobs 1 if memory is short.{self.log}"
        )


def name_status(status: int) -> str:
    """Return how a process ended: its status, or number and name of the signal."""
    if status >= 0:
        return f"status {status}"
    names = {member.value: member.name for member in signal.Signals}
    return f"signal {-status}" + (f" ({names[-status]})" if -status in names else "")


class InvalidCubin(PlanfreezeError, ValueError):
    """Bytes are no cubin planfreeze can read."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"not a readable cubin: {self.reason}. A program is launched by what its cubin says of itself. "
            f"Run: planfreeze build"
        )


class UnexpectedCubin(PlanfreezeError):
    """A cubin is whole but not the program it stands for."""

    exit_code = 4

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program}: {self.reason}. Launching it would fail, or pass wrong values. Run: planfreeze build"


class WrongArch(PlanfreezeError):
    """A program was made for another architecture."""

    exit_code = 4

    def __init__(self, program: str, found: str, expected: str) -> None:
        super().__init__(program, found, expected)
        self.program, self.found, self.expected = program, found, expected

    def __str__(self) -> str:
        return (
            f"{self.program} is made for {self.found}, not for {self.expected}. The driver would refuse it at the "
            f"first launch. Build the plan again: it compiles the program for {self.expected} and puts this one aside"
        )


class DriverRefused(PlanfreezeError):
    """The driver cannot read a cubin: it is older than what made the cubin."""

    exit_code = 6

    def __init__(self, program: str, status: str, tools: str | None, supported: str) -> None:
        super().__init__(program, status, tools, supported)
        self.program, self.status, self.tools, self.supported = program, status, tools, supported

    def __str__(self) -> str:
        made_by = f"CUDA {self.tools}" if self.tools else "a CUDA that it does not name"
        return (
            f"the driver does not load {self.program}: {self.status}. Its cubin was made by tools of {made_by}, and "
            f"the driver here supports CUDA {self.supported}: it reads none of a later CUDA than it knows. Install a "
            f"newer driver, after which the same store serves, or build the plan with compilers of an older CUDA"
        )


class ToolchainUnreadable(PlanfreezeError):
    """The files of an installed compiler cannot be listed."""

    exit_code = 6

    def __init__(self, distribution: str, reason: str) -> None:
        super().__init__(distribution, reason)
        self.distribution, self.reason = distribution, reason

    def __str__(self) -> str:
        return (
            f"{self.distribution} is installed but {self.reason}. A key covers the content of the compiler, and a part "
            f"that cannot be hashed is never left out. Run: pip install --force-reinstall {self.distribution}"
        )


class UnparsableSource(PlanfreezeError):
    """The text of a kernel module is not Python that this interpreter reads."""

    exit_code = 3

    def __init__(self, module: str, path: str, reason: str) -> None:
        super().__init__(module, path, reason)
        self.module, self.path, self.reason = module, path, reason

    def __str__(self) -> str:
        return (
            f"module {self.module} ({self.path}) cannot be parsed: {self.reason}. Its imports belong to the key of "
            f"every program made from it. Correct it, or see: python -m py_compile {self.path}"
        )
