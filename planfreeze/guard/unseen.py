"""What no guard can see: roads to a compiler that Python code cannot stand in front of, and why."""

from dataclasses import dataclass

__all__ = ["UNSEEN", "Unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A way to compile that goes unnoticed.

    Parameters
    ----------
    name : str
        The way, as the table of ``docs/guard.md`` has it.
    reason : str
        Why a guard does not see it.
    """

    name: str
    reason: str


UNSEEN: tuple[Unseen, ...] = (
    Unseen(
        name="a command that clears its environment, such as env -i",
        reason="the guard reaches Python children through environment variables",
    ),
    Unseen(
        name="Python started with -I, -E or -S",
        reason="it reads neither PYTHONPATH nor the start-up hook",
    ),
    Unseen(
        name="a Triton backend's later stages, called by hand on IR made earlier",
        reason="the stages are functions a backend makes anew for every compile",
    ),
    Unseen(
        name="MLIR passes run through the private bindings in cutlass._mlir",
        reason="they are C++ and have no Python function in front of them",
    ),
    Unseen(
        name="a compile that runs when the guard is armed",
        reason="its entry was passed before",
    ),
)
