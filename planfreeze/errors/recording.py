"""Errors of recording what a run uses, and of serving it again."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "IncompleteRecording",
    "InvalidRecording",
    "NothingRecorded",
    "RecordedOtherwise",
    "RecordingUnwritable",
    "ServedElsewhere",
    "Unrecordable",
    "UnservablePlan",
]


class InvalidRecording(PlanfreezeError):
    """A file is no recording that planfreeze can read."""

    exit_code = 2

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is no usable recording: {self.reason}. A plan of it would be a guess. "
            f"Run: planfreeze record -o {self.path} -- COMMAND"
        )


class NothingRecorded(PlanfreezeError):
    """A run launched no program."""

    exit_code = 3

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"the run launched no Triton or CuTe program, and {self.path} holds none. A plan of nothing would prove "
            f"nothing. Check that the command launches kernels in Python processes with planfreeze installed, and "
            f"run it again: planfreeze record"
        )


class RecordingUnwritable(PlanfreezeError):
    """A recording cannot be written."""

    exit_code = 6

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be written: {self.reason}. What the run used would be lost. "
            f"Name a file that can be written: planfreeze record -o FILE -- COMMAND"
        )


class IncompleteRecording(PlanfreezeError):
    """A run used programs that a recording cannot name."""

    def __init__(self, path: str, refused: tuple[str, ...]) -> None:
        super().__init__(path, refused)
        self.path, self.refused = path, refused

    def __str__(self) -> str:
        listed = "".join(f"\n  {line}" for line in self.refused)
        return (
            f"{self.path} leaves out {len(self.refused)} things that the run used:{listed}\nServed from a plan of it, "
            f"the same run would compile them. Give each kernel a name in a module, or accept the rest: "
            f"planfreeze record --partial"
        )


class Unrecordable(PlanfreezeError):
    """A program that a run used cannot be named, so that no other process could compile it."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(kernel, reason)
        self.kernel, self.reason = kernel, reason

    def __str__(self) -> str:
        return (
            f"{self.kernel} cannot be recorded: {self.reason}. A recorded program is compiled in another process, "
            f"from its name and plain values. Define the kernel under its own name in a module"
        )


class RecordedOtherwise(PlanfreezeError):
    """A run was recorded under settings of code generation that a build does not use."""

    exit_code = 2

    def __init__(self, name: str, recorded: str, pinned: str) -> None:
        super().__init__(name, recorded, pinned)
        self.name, self.recorded, self.pinned = name, recorded, pinned

    def __str__(self) -> str:
        return (
            f"the run was recorded with {self.name}={self.recorded}, and programs are built with "
            f"{self.pinned or 'none'}. They would compute something else than the run did. "
            f"Record it again without {self.name}, and state what it stands for in the kernels' options"
        )


class ServedElsewhere(PlanfreezeError):
    """A recorded program is to be launched by planfreeze."""

    exit_code = 2

    def __str__(self) -> str:
        return (
            "a recorded program is launched by the runtime of its compiler, which alone knows its arguments. "
            "planfreeze would pass wrong ones. Run: planfreeze run --plan PLAN -- COMMAND"
        )


class UnservablePlan(PlanfreezeError):
    """A frozen plan cannot be served to a compiler's own runtime."""

    exit_code = 4

    def __init__(self, plan: str, reason: str) -> None:
        super().__init__(plan, reason)
        self.plan, self.reason = plan, reason

    def __str__(self) -> str:
        return (
            f"{self.plan} cannot be served here: {self.reason}. The process would compile instead. "
            f"Build it with what is installed here: planfreeze build --plan RECORDING"
        )
