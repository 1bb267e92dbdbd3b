"""Errors of the store: entries, records, plans, trust."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "DamagedEntry",
    "DamagedPlan",
    "DamagedRecord",
    "DamagedStore",
    "HomeMissing",
    "InvalidEntryName",
    "KeyLocked",
    "MissingEntry",
    "OtherRecordFormat",
    "PlanTooNew",
    "StoreMissing",
    "StoreTooNew",
    "StoreUnusable",
    "UntrustedStore",
]


class InvalidEntryName(PlanfreezeError, ValueError):
    """A digest, key or reference name has the wrong form."""

    exit_code = 2

    def __init__(self, kind: str, name: str, expected: str) -> None:
        super().__init__(kind, name, expected)
        self.kind, self.name, self.expected = kind, name, expected

    def __str__(self) -> str:
        return (
            f"{self.name!r} is no {self.kind}: expected {self.expected}. Names become paths in the store, so "
            f"no other form is taken. A build prints the names it gives"
        )


class StoreMissing(PlanfreezeError):
    """There is no store at a path."""

    exit_code = 3

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return (
            f"there is no store at {self.store}. Reading never makes one. "
            f"Run: planfreeze build --model MODEL --tp N --store {self.store}"
        )


class HomeMissing(PlanfreezeError):
    """No store was named and the user has no home to keep one in."""

    exit_code = 6

    def __init__(self, uid: int) -> None:
        super().__init__(uid)
        self.uid = uid

    def __str__(self) -> str:
        return (
            f"user {self.uid} has no home directory. Without one there is no default place for a store. "
            f"Name one: planfreeze build --store DIR, or set PLANFREEZE_STORE"
        )


class StoreTooNew(PlanfreezeError):
    """A store was written by a later version of planfreeze."""

    exit_code = 4

    def __init__(self, store: str, found: str, readable: str) -> None:
        super().__init__(store, found, readable)
        self.store, self.found, self.readable = store, found, readable

    def __str__(self) -> str:
        return (
            f"{self.store} was written by a later planfreeze: it has format {self.found}, this version reads "
            f"{self.readable}. Its entries could be misread. Update planfreeze, or use another folder: "
            f"planfreeze build --store DIR"
        )


class DamagedStore(PlanfreezeError):
    """A folder is no store, or its format file is damaged."""

    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return (
            f"{self.store} cannot be used as a store: {self.reason}. What it holds could be anything. "
            f"Name another folder: planfreeze build --store DIR"
        )


class StoreUnusable(PlanfreezeError):
    """The machine does not let a store be read or written: permissions, space, a read-only file system."""

    exit_code = 6

    def __init__(self, store: str, reason: str, needed_bytes: int = 0) -> None:
        super().__init__(store, reason, needed_bytes)
        self.store, self.reason, self.needed_bytes = store, reason, needed_bytes

    def __str__(self) -> str:
        needed = f" ({self.needed_bytes} bytes needed)" if self.needed_bytes else ""
        return (
            f"store {self.store}: {self.reason}{needed}. What was published before is whole. Make room or "
            f"change the permissions and run again, or use another folder: planfreeze build --store DIR"
        )


class MissingEntry(PlanfreezeError, LookupError):
    """An entry is not in the store."""

    exit_code = 3

    def __init__(self, entry: str, store: str) -> None:
        super().__init__(entry, store)
        self.entry, self.store = entry, store

    def __str__(self) -> str:
        return (
            f"{self.entry} is not in {self.store}. It was never built there or was removed. "
            f"Run: planfreeze build --store {self.store}"
        )


class DamagedEntry(PlanfreezeError):
    """An entry of the store is not what was published."""

    exit_code = 4

    def __init__(self, entry: str, path: str, reason: str) -> None:
        super().__init__(entry, path, reason)
        self.entry, self.path, self.reason = entry, path, reason

    def __str__(self) -> str:
        return (
            f"{self.entry} at {self.path} is damaged: {self.reason}. Wrong bytes would run on the GPU. "
            f"Run: planfreeze build"
        )


class KeyLocked(PlanfreezeError):
    """Another builder holds a key for longer than the caller waits."""

    exit_code = 1

    def __init__(self, key: str, store: str, holder: str, waited_s: float) -> None:
        super().__init__(key, store, holder, waited_s)
        self.key, self.store, self.holder, self.waited_s = key, store, holder, waited_s

    def __str__(self) -> str:
        return (
            f"{self.holder} has held key {self.key} in {self.store} for {self.waited_s:.1f} s of waiting. "
            f"Compiling it here as well would do the work twice. Wait for that process or end it, then run: "
            f"planfreeze build --store {self.store}"
        )


class UntrustedStore(PlanfreezeError):
    """Others could have written to a store that no root digest proves."""

    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return (
            f"store {self.store} is not trusted: {self.reason}. Its programs run with this process's rights "
            f"and no root digest is pinned. Ask for the plan as NAME@sha256:ROOT, or add --trust-store"
        )


class DamagedRecord(PlanfreezeError):
    """Stored bytes are no record."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a stored record cannot be read: {self.reason}. Run: planfreeze build"


class OtherRecordFormat(DamagedRecord):
    """A record was written by an earlier or later planfreeze; that version reads it."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"it has format {found}, this planfreeze reads {known}")
        self.found, self.known = found, known


class DamagedPlan(PlanfreezeError):
    """Stored bytes are no frozen plan."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a frozen plan cannot be read: {self.reason}. Nothing of it is used. Run: planfreeze build"


class PlanTooNew(PlanfreezeError):
    """A frozen plan was written by a later planfreeze."""

    exit_code = 4

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)
        self.found, self.known = found, known

    def __str__(self) -> str:
        return (
            f"the frozen plan has format {self.found}, this planfreeze reads {self.known}. A later format may mean "
            f"something else by the same bytes. Run: pip install --upgrade planfreeze"
        )
