"""Collecting garbage: what no frozen plan needs leaves a store, within budgets of age and size."""

import time
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.pins import list_pins
from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import MOVED, Name, remove_entries, remove_old_files, restore_swept
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.holdings import Holding, find_holding, list_plans

__all__ = ["Census", "Collected", "collect", "take_census"]

DAY_S = 86400.0
# A size budget does not reach younger entries: a build publishes cubins and records long before their plan. Should
# a build last longer, it finds out when it names its plan, and builds what is gone again.
GRACE_S = 3600.0
SETTLE_ROUNDS = 8


class Census(Struct, frozen=True, kw_only=True):
    """All entries of a store with their sizes, and what its frozen plans need.

    Parameters
    ----------
    refs : dict of str to str
        Names of plans, with their root digests.
    holdings : dict of str to Holding
        By root digest, plans without a name included.
    sizes : dict of (str, str) to int
        Bytes by kind and name.
    """

    refs: dict[str, str]
    holdings: dict[str, Holding]
    sizes: dict[Name, int]

    @property
    def total_bytes(self) -> int:
        """Size of all entries."""
        return sum(self.sizes.values())

    @property
    def named(self) -> tuple[Holding, ...]:
        """What the plans need that have a name."""
        return tuple(self.holdings[root] for root in sorted(set(self.refs.values())))

    @property
    def needed(self) -> set[Name]:
        """All that a plan with a name needs."""
        return set().union(*(holding.needed for holding in self.named))

    def size_of(self, names: Iterable[Name]) -> int:
        """Return the size of those entries that are there."""
        return sum(self.sizes.get(name, 0) for name in names)

    @property
    def unreachable_bytes(self) -> int:
        """Size of all that no plan with a name needs."""
        return self.total_bytes - self.size_of(self.needed)


def take_census(store: ReadableStore) -> Census:
    """List a store and read its plans and their records.

    Raises
    ------
    MissingEntry
        A name leads to a plan that is not there.
    DamagedEntry, DamagedPlan, PlanTooNew, OtherRecordFormat
        A plan cannot be read, or a record is another version's: nobody here knows what it needs.
    """
    # References first: a plan that is named while the store is read is then among the plans, or the next look at
    # the references finds it.
    refs = store.list_refs()
    plans = list_plans(store)
    for root in refs.values():
        if root not in plans:
            raise errors.MissingEntry(f"plan {root}", str(store.path))
    holdings = {root: find_holding(plan, store, is_partial=True) for root, plan in plans.items()}
    sizes = {(kind, entry.name): entry.size_bytes for kind in MOVED for entry in store.entries(kind)}
    return Census(refs=refs, holdings=holdings, sizes=sizes)


class Collected(Struct, frozen=True, kw_only=True):
    """What a collection removed, or would have removed.

    Parameters
    ----------
    removed : tuple of (str, str)
        Kind and name of every entry.
    removed_bytes : int
        Their size, and that of files that were put aside in the quarantine as long ago, or a day.
    kept_bytes : int
        Size of the entries that stay.
    is_over_budget : bool
        What has to stay is larger than the size budget.
    """

    removed: tuple[Name, ...]
    removed_bytes: int
    kept_bytes: int
    is_over_budget: bool


def collect(
    store: Store,
    *,
    max_age_s: float | None = None,
    max_bytes: int | None = None,
    is_dry_run: bool = False,
    now_s: float | None = None,
) -> Collected:
    """Remove entries that no plan with a name needs.

    Parameters
    ----------
    store : Store
        Open for writing, but for a dry run.
    max_age_s : float, optional
        Entries and plans without a name go when they were published longer ago. None: a day, or with ``max_bytes``
        never on account of their age.
    max_bytes : int, optional
        They also go, the oldest first, until all entries fit; not those of the last hour.
    now_s : float, optional
        Seconds since the epoch; None: now.

    Raises
    ------
    MissingEntry, DamagedEntry, DamagedPlan, PlanTooNew, OtherRecordFormat
        As :func:`take_census`; nothing is removed.
    StoreUnusable
        The store cannot be written.

    Notes
    -----
    A plan with a name keeps all it needs, whatever the budgets say; a plan that is kept without one does, too. Safe
    beside builders, sessions and other collectors: a plan that has its name is whole at any moment, and a session that
    opens a plan without a name finds it whole, or refuses it as missing.
    """
    now_s = time.time() if now_s is None else now_s
    age_limit_s = max_age_s if max_age_s is not None else DAY_S if max_bytes is None else float("inf")
    census = take_census(store) if is_dry_run else settle(store)
    ages = find_ages(store, census, now_s)
    doomed = choose(census, ages, age_limit_s=age_limit_s, max_bytes=max_bytes)
    removed = doomed if is_dry_run else sweep(store, census, doomed)
    removed_bytes = census.size_of(removed)
    kept_bytes = census.total_bytes - removed_bytes
    before_s = now_s - max(age_limit_s, DAY_S)
    removed_bytes += remove_old_files(store.layout, store.layout.quarantine, before_s, is_dry_run=is_dry_run)
    return Collected(
        removed=tuple(removed),
        removed_bytes=removed_bytes,
        kept_bytes=kept_bytes,
        is_over_budget=max_bytes is not None and kept_bytes > max_bytes,
    )


def settle(store: Store) -> Census:
    """Put back what other collectors have moved aside and take the census.

    A plan may lose its name and be collected while the census is taken: then it is taken again.
    """
    for _ in range(SETTLE_ROUNDS):
        restore_swept(store.writable_layout())
        try:
            return take_census(store)
        except errors.MissingEntry:
            continue
    restore_swept(store.writable_layout())
    return take_census(store)


def find_ages(store: Store, census: Census, now_s: float) -> dict[Name, float]:
    """Return how long ago what no named plan needs was published, in seconds; what is gone by now is left out."""
    ages = {}
    for kind, name in census.sizes.keys() - census.needed:
        try:
            ages[kind, name] = now_s - store.layout.entry(kind, name).lstat().st_mtime
        except FileNotFoundError:
            continue
    return ages


def choose(census: Census, ages: dict[Name, float], *, age_limit_s: float, max_bytes: int | None) -> list[Name]:
    """Choose what goes: by age, then the oldest until the rest fits; what a kept plan needs stays.

    No blob goes while a named plan lacks a record: that record alone could say which companions it needs.
    """
    if not all(holding.is_whole for holding in census.named):
        ages = {(kind, name): age for (kind, name), age in ages.items() if kind != "blob"}
    named = set(census.refs.values())
    unnamed = sorted(
        (root for root in census.holdings if root not in named), key=lambda root: ages.get(("plan", root), 0)
    )
    is_old = {name: age > age_limit_s for name, age in ages.items()}
    kept = [root for root in unnamed if not is_old.get(("plan", root))]
    uses = Counter(name for root in (*named, *kept) for name in census.holdings[root].needed)
    doomed = {name for name in ages if not uses[name] and is_old[name]}
    if max_bytes is not None:
        excess = census.total_bytes - census.size_of(doomed) - max_bytes
        doomed |= choose_oldest(census, ages, uses, kept, excess)
    return sorted(doomed, key=lambda name: (MOVED.index(name[0]), name[1]))


def choose_oldest(
    census: Census, ages: dict[Name, float], uses: Counter[Name], plans: list[str], excess: int
) -> set[Name]:
    """Choose the oldest unneeded entries until ``excess`` bytes go, then the oldest plans with all only they need."""
    chosen: set[Name] = set()
    chosen_bytes = 0
    unneeded = [name for name, age in ages.items() if not uses[name] and age > GRACE_S]
    for name in sorted(unneeded, key=lambda name: -ages[name]):
        if chosen_bytes >= excess:
            return chosen
        chosen.add(name)
        chosen_bytes += census.sizes[name]
    for root in reversed(plans):
        if chosen_bytes >= excess or ages["plan", root] <= GRACE_S:
            break
        needed = census.holdings[root].needed
        uses.subtract(needed)
        freed = {name for name in needed & ages.keys() if not uses[name] and ages[name] > GRACE_S}
        chosen |= freed
        chosen_bytes += census.size_of(freed)
    return chosen


def sweep(store: Store, census: Census, doomed: list[Name]) -> list[Name]:
    """Remove what was chosen, unless a reference or a pin needs it by now."""
    layout = store.writable_layout()
    needed, known_roots = census.needed, set(census.refs.values())

    def find_kept() -> set[Name]:
        nonlocal needed, known_roots
        # Pins first: a builder sets its reference before it takes its pin away, so one of the two is seen.
        pins = list_pins(layout)
        roots = pins.union(store.list_refs().values())
        if roots <= known_roots:
            return needed
        found = [find_named(root, store, census) for root in roots - known_roots]
        if not all(holding is not None and holding.is_whole for holding in found):
            return set(doomed)  # nobody knows yet what a plan needs that is being built: all of it stays
        needed, known_roots = needed.union(*(holding.needed for holding in found if holding)), roots | known_roots
        return needed

    return list(remove_entries(layout, doomed, find_kept))


def find_named(root: str, store: Store, census: Census) -> Holding | None:
    """Return what a plan needs that got its name or pin since the census; None when it cannot be read now."""
    known = census.holdings.get(root)
    if known is not None and known.is_whole:
        return known
    try:
        return find_holding(FrozenPlan.decode(store.get_plan(root)), store, is_partial=True)
    except errors.MissingEntry:
        return None
