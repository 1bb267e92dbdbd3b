"""The inherited guard: what a process arms at its start because its parent's guard asked for it."""

from planfreeze.guard.attempts import Attempt
from planfreeze.guard.guards import LOADS, Guard
from planfreeze.guard.watch import road_names
from planfreeze.settings import read_guard_settings

__all__ = ["arm_inherited"]


def arm_inherited() -> Guard | None:
    """Arm the guard that the environment asks for, and return it; None when it asks for none.

    Loads are allowed: whatever a child launches, it has to load first.

    Raises
    ------
    InvalidSetting
        The variables do not say what to do.
    """
    settings = read_guard_settings()
    if settings.mode in (None, "off"):
        return None
    # The parent may be of a version that knows other roads.
    known = frozenset(road_names())
    guard = Guard(mode=settings.mode, explain=explain, allowed=settings.allowed & known | LOADS & known)
    guard.arm()
    return guard


def explain(attempt: Attempt) -> str:
    return "This process is guarded because the one that started it was (PLANFREEZE_GUARD)."
