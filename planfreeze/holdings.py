"""Holdings: the entries that a frozen plan needs of a store, proof that they are there, and naming a plan with them."""

import contextlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.layout import Kind
from planfreeze.cache.pins import pinned
from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.store import Store
from planfreeze.frozen_plans import FrozenPlan, PlanEntry
from planfreeze.record import ProgramRecord

__all__ = ["Holding", "find_holding", "list_plans", "name_plan", "pinned_plans", "prove_plan", "read_program"]


class Holding(Struct, frozen=True, kw_only=True):
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
        except errors.OtherRecordFormat:
            raise
        except (errors.MissingEntry, errors.DamagedEntry, errors.DamagedRecord):
            if not is_partial:
                raise
            is_whole = False
            continue
        blobs |= dict.fromkeys(digest for _, digest in record.companions)
    keys = tuple(dict.fromkeys((entry.key, entry.record) for entry in plan.entries))
    return Holding(plan=plan, root=plan.root, keys=keys, blobs=tuple(blobs), is_whole=is_whole)


def prove_plan(plan: FrozenPlan, store: ReadableStore) -> None:
    """Read all that a plan needs.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        Lists every program that is not there or not what was built.
    """
    missing, damaged = [], []
    for entry in plan.entries:
        try:
            read_program(entry, store)
        except errors.MissingEntry:
            missing.append(entry_name(entry))
        except (errors.DamagedEntry, errors.DamagedRecord, errors.UnexpectedCubin) as error:
            damaged.append(f"{entry_name(entry)}: {error}")
    command = f"{plan.build_command} --store {store.path}"
    if damaged:
        raise errors.DamagedPrograms(plan.name, len(plan.entries), tuple(damaged), str(store.path), command)
    if missing:
        raise errors.MissingPrograms(plan.name, len(plan.entries), tuple(missing), str(store.path), command)


def read_program(entry: PlanEntry, store: ReadableStore) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the record of a planned program and its blobs, the cubin first.

    Raises
    ------
    MissingEntry, DamagedEntry, DamagedRecord, UnexpectedCubin
        Something is not there, or not what the plan says.
    """
    encoded = store.get_record(entry.key, entry.record)
    record = ProgramRecord.decode(encoded)
    if record.blob != entry.blob:
        raise errors.UnexpectedCubin(entry_name(entry), "its record is another program's")
    return encoded, tuple(store.get_blob(digest) for digest in (record.blob, *(d for _, d in record.companions)))


def entry_name(entry: PlanEntry) -> str:
    """Return a planned program as people read it, without its family being installed."""
    fields = ", ".join(f"{name}={value}" for name, value in entry.fields)
    return f"{entry.family.rpartition(':')[2]}({fields})"


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
        except errors.MissingEntry:
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
