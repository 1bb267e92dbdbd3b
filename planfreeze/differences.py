"""Differences between what is planned and what a run used."""

from msgspec import Struct

from planfreeze.choices import Choice
from planfreeze.explanations import describe_nearest
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.recordings import Recording
from planfreeze.resolve import planned_programs, program_name

__all__ = ["PlanDifference", "compare_plan"]


class PlanDifference(Struct, frozen=True, kw_only=True):
    """Programs and choices that only one side has, as people read them.

    Parameters
    ----------
    unused : tuple of str
        Planned, and not used by the run.
    unplanned : tuple of (str, str)
        Used, and not planned; with the nearest planned program of the same family.
    """

    unused: tuple[str, ...]
    unplanned: tuple[tuple[str, str], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the run used exactly what is planned."""
        return not self.unused and not self.unplanned


def compare_plan(plan: FrozenPlan, recording: Recording) -> PlanDifference:
    """Compare a frozen plan with what a run used.

    Raises
    ------
    UnknownFamily, InvalidPayload
        A family or payload of the plan is not known here.
    """
    planned = {program.payload.digest: program.payload for program in planned_programs(plan)}
    used = {program.payload.digest: program.payload for program in recording.programs}
    chosen, made = set(plan.choices), set(recording.choices)
    return PlanDifference(
        unused=(
            *(program_name(payload) for digest, payload in planned.items() if digest not in used),
            *(spell_choice(choice) for choice in plan.choices if choice not in made),
        ),
        unplanned=(
            *(
                (program_name(payload), describe_nearest(payload, list(planned.values()), plan.build_command))
                for digest, payload in used.items()
                if digest not in planned
            ),
            *((spell_choice(choice), "") for choice in recording.choices if choice not in chosen),
        ),
    )


def spell_choice(choice: Choice) -> str:
    """Return an autotuner's choice as people read it."""
    config = ", ".join(f"{name}={value}" for name, value in choice.config)
    return f"choice of {choice.kernel} for {choice.key}: {config}"
