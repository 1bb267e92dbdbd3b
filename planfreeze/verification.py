"""Verifying a store or pack: every entry hashed again, every link followed, damage put aside, plans made whole."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.layout import Kind
from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.store import Store
from planfreeze.cache.sweeping import Name
from planfreeze.elf import read_cubin
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.holdings import find_holding
from planfreeze.record import ProgramRecord

__all__ = ["Problem", "Verification", "quarantine", "verify"]

KINDS: tuple[Kind, ...] = ("blob", "record", "plan", "ref")
# Reading waits for the disk and hashing lets other threads run; more threads than this gain nothing.
MAX_THREADS = 16
GONE = "it is not there"


class Problem(Struct, frozen=True, kw_only=True):
    """An entry that is not what it should be.

    Parameters
    ----------
    state : "damaged" or "incomplete"
        Its own bytes are wrong, or it is whole and lacks something it names.
    quarantined : Path, optional
        Where it was put aside.
    """

    kind: Kind
    name: str
    state: Literal["damaged", "incomplete"]
    reason: str
    quarantined: Path | None = None


class Verification(Struct, frozen=True, kw_only=True):
    """What verifying found.

    Parameters
    ----------
    checked : dict of str to int
        Entries by kind.
    others : tuple of (str, str)
        Whole entries of another version's format, whose links nobody here can follow.
    """

    checked: dict[Kind, int]
    size_bytes: int
    problems: tuple[Problem, ...]
    others: tuple[Name, ...]


class Incomplete(Exception):
    """An entry is whole and something it names is not there."""


def verify(
    store: ReadableStore,
    plan: FrozenPlan | None = None,
    *,
    on_entry: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Check every entry of a store, or all that one plan needs.

    Parameters
    ----------
    plan : FrozenPlan, optional
        Check this plan's entries alone.
    on_entry : callable
        Called with the number of entries that are done and of all, from several threads, one at a time.

    Raises
    ------
    StoreUnusable
        The system refuses to read.

    Notes
    -----
    Nothing is changed. What builders and collectors do meanwhile is not taken for damage: an entry that seems wrong
    is looked at twice, and one that is gone by then was none.
    """
    listed = [(kind, e.name, e.size_bytes) for kind in KINDS for e in store.entries(kind)]
    if plan is not None:
        wanted = planned_entries(plan, store)
        listed = [(kind, name, size_bytes) for kind, name, size_bytes in listed if (kind, name) in wanted]
        listed += [(*entry, 0) for entry in sorted(wanted - {(kind, name) for kind, name, _ in listed})]
    problems: list[Problem] = []
    others: list[Name] = []
    done = 0
    lock = threading.Lock()

    waiting = iter(listed)

    def check_waiting() -> None:
        nonlocal done
        for kind, name, _ in waiting:
            found = check_twice(kind, name, store, is_required=plan is not None)
            with lock:
                done += 1
                if isinstance(found, Problem):
                    problems.append(found)
                elif found:
                    others.append((kind, name))
                on_entry(done, len(listed))

    count = min(MAX_THREADS, 2 * len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(count) as threads:
        for running in [threads.submit(check_waiting) for _ in range(count)]:
            running.result()
    return Verification(
        checked={kind: sum(entry[0] == kind for entry in listed) for kind in KINDS},
        size_bytes=sum(size_bytes for _, _, size_bytes in listed),
        problems=tuple(sorted(problems, key=lambda problem: (KINDS.index(problem.kind), problem.name))),
        others=tuple(sorted(others)),
    )


def planned_entries(plan: FrozenPlan, store: ReadableStore) -> set[Name]:
    """Return the entries that a plan needs, as far as its records can be read."""
    return set(find_holding(plan, store, is_partial=True).entries)


def check_twice(kind: Kind, name: str, store: ReadableStore, *, is_required: bool) -> Problem | bool:
    """Check an entry, and once more if it seems wrong; tell of a problem, or whether it is another version's."""
    found = check_entry(kind, name, store)
    if isinstance(found, Problem):
        found = check_entry(kind, name, store)
    if isinstance(found, Problem) and found.reason == GONE and not is_required:
        return False  # removed since it was listed
    return found


def check_entry(kind: Kind, name: str, store: ReadableStore) -> Problem | bool:
    """Check one entry; True for one of another version's format."""
    try:
        CHECKS[kind](name, store)
    except (errors.OtherRecordFormat, errors.PlanTooNew):
        return True
    except (errors.DamagedEntry, errors.DamagedPlan, errors.DamagedRecord, errors.InvalidCubin) as error:
        return Problem(kind=kind, name=name, state="damaged", reason=str(getattr(error, "reason", error)))
    except Incomplete as error:
        return Problem(kind=kind, name=name, state="incomplete", reason=str(error))
    except errors.MissingEntry:
        return Problem(kind=kind, name=name, state="incomplete", reason=GONE)
    return False


def check_blob(name: str, store: ReadableStore) -> None:
    """Hash a blob again; what it is a record says."""
    store.get_blob(name)


def check_record(name: str, store: ReadableStore) -> None:
    """Check a record's seal and form, that its blobs are there, and that it describes its cubin."""
    record = ProgramRecord.decode(store.get_record(name))
    for digest in (record.blob, *(digest for _, digest in record.companions)):
        if not store.has_entry("blob", digest):
            raise Incomplete(f"blob {digest} is not there")
    try:
        cubin = read_cubin(store.get_blob(record.blob))
    except errors.DamagedEntry:
        return  # the blob's own check tells
    kernels = [kernel for kernel in cubin.kernels if kernel.symbol == record.symbol]
    stated = (record.arch, record.parameter_bytes, record.registers, record.stack_bytes)
    if stated not in [(cubin.arch, k.parameter_sizes, k.registers, k.stack_bytes) for k in kernels]:
        raise errors.DamagedRecord(f"it describes another kernel than {record.symbol} in blob {record.blob}")


def check_plan(name: str, store: ReadableStore) -> None:
    """Check a plan's root digest and form, and that every record is there and the planned one."""
    for entry in FrozenPlan.decode(store.get_plan(name)).entries:
        try:
            record = ProgramRecord.decode(store.get_record(entry.key, entry.record))
        except errors.MissingEntry:
            raise Incomplete(f"record {entry.key} is not there") from None
        except errors.OtherRecordFormat:
            continue
        except (errors.DamagedEntry, errors.DamagedRecord) as error:
            raise Incomplete(f"record {entry.key}: {error.reason}") from None
        if record.blob != entry.blob:
            raise errors.DamagedPlan(f"the record of key {entry.key} names another blob")
        for digest in (entry.blob, *(digest for _, digest in record.companions)):
            if not store.has_entry("blob", digest):
                raise Incomplete(f"blob {digest} is not there")


def check_ref(name: str, store: ReadableStore) -> None:
    """Check that a name leads to a plan of that name."""
    root = store.get_ref(name)
    if root is None:
        raise errors.MissingEntry(f"reference {name}", str(store.path))
    if not store.has_entry("plan", root):
        raise Incomplete(f"plan {root} is not there")
    try:
        plan = FrozenPlan.decode(store.get_plan(root))
    except (errors.DamagedEntry, errors.DamagedPlan):
        return  # the plan's own check tells
    if plan.name != name:
        raise errors.DamagedEntry(f"reference {name}", str(store.path), f"it leads to a plan of the name {plan.name}")


CHECKS: dict[Kind, Callable[[str, ReadableStore], None]] = {
    "blob": check_blob,
    "record": check_record,
    "plan": check_plan,
    "ref": check_ref,
}


def quarantine(problems: Iterable[Problem], store: Store) -> tuple[Problem, ...]:
    """Put damaged entries aside, each with its reason; what is only incomplete stays in its place.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    return tuple(
        replace(problem, quarantined=store.quarantine(problem.kind, problem.name, problem.reason))
        if problem.state == "damaged"
        else problem
        for problem in problems
    )
