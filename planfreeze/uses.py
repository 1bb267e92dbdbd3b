"""Uses of frozen plans: what sessions launched, told also after they are closed."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from planfreeze.keepers import CountedSession

__all__ = ["Uses", "gather_uses"]


class Uses(Struct, frozen=True, kw_only=True):
    """Uses of frozen plans.

    Parameters
    ----------
    by_plan : mapping
        For the root digest of each plan, how often each of its programs was used, by name.
    hits : int
        Programs that sessions resolved and loaded.
    unfrozen : int
        Launches from sessions that were never frozen. They are no uses: nothing forbade a compile.
    """

    by_plan: Mapping[str, Mapping[str, int]]
    hits: int = 0
    unfrozen: int = 0


def gather_uses(sessions: Iterable[CountedSession], others: Iterable[Uses] = ()) -> Uses:
    """Add up what sessions launched, and the uses other processes told.

    Every way to use a planned program is counted here.
    """
    by_plan: dict[str, Counter[str]] = {}
    hits = unfrozen = 0
    for session in sessions:
        told = session.statistics()
        hits += told.programs
        if not session.has_frozen:
            unfrozen += sum(told.program_launches.values())
            continue
        for root in told.plans.values():
            by_plan.setdefault(root, Counter()).update(told.program_launches)
    for uses in others:
        hits += uses.hits
        unfrozen += uses.unfrozen
        for root, counts in uses.by_plan.items():
            by_plan.setdefault(root, Counter()).update(counts)
    return Uses(by_plan={root: dict(counts) for root, counts in by_plan.items()}, hits=hits, unfrozen=unfrozen)
