"""Keepers: who wants to hear of every session of this process."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["CountedSession", "keep_sessions", "note_session"]


class SessionStatistics(Protocol):
    """What a session tells of itself."""

    @property
    def programs(self) -> int:
        """Programs that were loaded."""

    @property
    def program_launches(self) -> Mapping[str, int]:
        """Launches per program."""

    @property
    def plans(self) -> Mapping[str, str]:
        """Root digest of every plan, by its name."""


class CountedSession(Protocol):
    """A session, as its uses are gathered."""

    has_frozen: bool

    def statistics(self) -> SessionStatistics:
        """Return what it has seen, also when it is closed."""


# Each list gets every session that is made while it is here. A list keeps its sessions from being collected.
keepers: list[list[CountedSession]] = []


def keep_sessions() -> list[CountedSession]:
    """Return a list to which every session made from now on in this process is added."""
    made: list[CountedSession] = []
    keepers.append(made)
    return made


def note_session(made: CountedSession) -> None:
    """Tell the keepers of a new session."""
    for keeper in keepers:
        keeper.append(made)
