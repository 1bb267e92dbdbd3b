"""Holdings: the entries that a frozen plan needs of a store, and naming a plan so that it has them all."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planfreeze.cache.layout import Kind
from planfreeze.cache.pins import pinned
from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.store import Store
from planfreeze.errors import DamagedEntry, DamagedRecord, MissingEntry, OtherRecordFormat
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.record import ProgramRecord

__all__ = ["Holding", "find_holding", "list_plans", "name_plan", "pinned_plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A frozen plan with the names of all entries it needs, each once, in planned order.

    Parameters
    ----------
    keys : tuple of (str, str)
        Key and record digest of every program.
    blobs : tuple of str
        Digests of cubins and of their companions.
    is_whole : bool
        Every record was read, so that all companions are known.
    """

    plan: FrozenPlan
    root: str
    keys: tuple[tuple[str, str], ...]
    blobs: tuple[str, ...]
    is_whole: bool

    @property
    def entries(self) -> tuple[tuple[Kind, str], ...]:
        """Kind and name of every entry, the plan itself included."""
        records: list[tuple[Kind, str]] = [("record", key) for key, _ in self.keys]
        blobs: list[tuple[Kind, str]] = [("blob", digest) for digest in self.blobs]
        return (("plan", self.root), *records, *blobs)

    @property
    def needed(self) -> frozenset[tuple[Kind, str]]:
        """All entries, and the notes of the programs, which nothing depends on."""
        notes: list[tuple[Kind, str]] = [("note", key) for key, _ in self.keys]
        return frozenset((*self.entries, *notes))


def find_holding(plan: FrozenPlan, store: ReadableStore, *, is_partial: bool = False) -> Holding:
    """Return the entries of a plan. Companions of a cubin are named by its record alone, so every record is read.

    Parameters
    ----------
    is_partial : bool
        Pass over records that are missing or damaged: whoever makes such a program again puts its companions again.

    Raises
    ------
    MissingEntry, DamagedEntry, DamagedRecord
        A record is not there, not the planned one, or no record.
    OtherRecordFormat
        A record is one of another version, which alone knows its companions.
    """
    blobs: dict[str, None] = {}
    is_whole = True
    for entry in plan.entries:
        blobs[entry.blob] = None
        try:
            record = ProgramRecord.decode(store.get_record(entry.key, entry.record))
        except OtherRecordFormat:
            raise
        except (MissingEntry, DamagedEntry, DamagedRecord):
            if not is_partial:
                raise
            is_whole = False
            continue
        blobs |= dict.fromkeys(digest for _, digest in record.companions)
    keys = tuple(dict.fromkeys((entry.key, entry.record) for entry in plan.entries))
    return Holding(plan=plan, root=plan.root, keys=keys, blobs=tuple(blobs), is_whole=is_whole)


def list_plans(store: ReadableStore) -> dict[str, FrozenPlan]:
    """Return all frozen plans, root digest to plan, whether a reference names them or not.

    Raises
    ------
    DamagedEntry, DamagedPlan, PlanTooNew
        One of them cannot be read, so that nobody knows what it needs.
    """
    roots = sorted(entry.name for entry in store.entries("plan"))
    return {root: FrozenPlan.decode(data) for root, data in read_plans(store, roots)}


def read_plans(store: ReadableStore, roots: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for root in roots:
        try:
            data = store.get_plan(root)
        except MissingEntry:
            continue  # collected since it was listed
        yield root, data


@contextlib.contextmanager
def pinned_plans(plans: Iterable[FrozenPlan], store: Store) -> Iterator[None]:
    """Keep collectors from what plans need while it is put and the plans are named; see :mod:`planfreeze.cache.pins`.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    with pinned(store.writable_layout(), [plan.root for plan in plans]):
        yield


def name_plan(plan: FrozenPlan, blobs: Iterable[str], store: Store) -> None:
    """Put a frozen plan and point its name to it. Put its records and ``blobs`` before, inside :func:`pinned_plans`.

    All that it needs is on disk by then, also what other builders put and may not have flushed yet.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    if not store.has_entry("plan", plan.root):
        store.flush("record", [entry.key for entry in plan.entries])
        store.flush("blob", blobs)
    store.set_ref(plan.name, store.put_plan(plan.encode()))
