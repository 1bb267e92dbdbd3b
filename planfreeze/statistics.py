"""Statistics of a session: attempts to compile, programs and launches, as a value and as Prometheus text."""

from collections.abc import Mapping

from msgspec import Struct

from planfreeze.exposition import expose_counter, expose_gauge
from planfreeze.guard import expose_attempts

__all__ = ["Statistics"]


class Statistics(Struct, frozen=True, kw_only=True):
    """What a session has seen.

    Parameters
    ----------
    attempts : Mapping of str to int
        Attempts to compile since it froze, for every road there is.
    programs : int
        Programs that are loaded.
    program_launches : Mapping of str to int
        Launches per loaded program, by its name; zero for one that was never used. A launch that a CUDA graph
        captured counts once, its replays do not.
    plans : Mapping of str to str
        Root digest of every prepared plan, by its name.
    """

    attempts: Mapping[str, int]
    programs: int
    program_launches: Mapping[str, int]
    plans: Mapping[str, str]

    @property
    def launches(self) -> int:
        """Launches of all programs."""
        return sum(self.program_launches.values())

    def to_prometheus(self) -> str:
        """Return all of it in Prometheus' text format."""
        launches = [({"program": name}, count) for name, count in self.program_launches.items()]
        plans = [({"plan": name, "root": root}, 1) for name, root in self.plans.items()]
        return "".join(
            (
                expose_attempts(self.attempts),
                expose_gauge("planfreeze_programs", "Programs that are loaded.", [({}, self.programs)]),
                expose_counter("planfreeze_launches", "Launches of planned programs.", launches),
                expose_gauge("planfreeze_plan_info", "Frozen plans that are served.", plans),
            )
        )
