"""Errors of making the page of a report."""

from planfreeze.errors.base import PlanfreezeError

__all__ = ["PageUnwritable", "RecordedElsewhere"]


class RecordedElsewhere(PlanfreezeError):
    """A recording is of other architectures than the plans it is compared with."""

    exit_code = 2

    def __init__(self, recording: str, recorded: tuple[str, ...], planned: tuple[str, ...]) -> None:
        super().__init__(recording, recorded, planned)
        self.recording, self.recorded, self.planned = recording, recorded, planned

    def __str__(self) -> str:
        return (
            f"{self.recording} was recorded on {', '.join(self.recorded) or 'no device'}, and the plans are for "
            f"{', '.join(self.planned)}. What a run used on one architecture says nothing of another one. "
            f"Name a plan for the recorded one: planfreeze report --plan NAME --recording {self.recording}"
        )


class PageUnwritable(PlanfreezeError):
    """The page of a report cannot be written."""

    exit_code = 6

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be written: {self.reason}. There is no report without its page. "
            f"Name a file that can be written: planfreeze report -o FILE"
        )
