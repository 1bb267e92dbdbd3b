"""The content-addressed store: bytes, digests and paths."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache import blobs, records, refs
from planfreeze.cache.digest import is_digest
from planfreeze.cache.files import flush_entries, is_plain_file, quarantine_file, reading, remove_abandoned
from planfreeze.cache.layout import REF_PATTERN, Kind, Layout
from planfreeze.cache.opening import create, has_format
from planfreeze.cache.records import PutResult
from planfreeze.cache.trust import find_distrust

__all__ = ["Entry", "PutResult", "Store"]


class Entry(Struct, frozen=True, kw_only=True):
    """An entry found by listing: its digest, key or reference name, and the size of its file."""

    name: str
    size_bytes: int


class Store(Struct, frozen=True, kw_only=True):
    """A content-addressed store on disk.

    Parameters
    ----------
    path : Path
        The store as it was named.
    layout : Layout
        Paths below the folder it led to when it was opened; a link turned later changes nothing.
    is_writable : bool
        Opened by a builder. A reader creates, locks, touches and deletes nothing.
    is_trusted : bool
        The user vouches for the store by name: :meth:`check_trust` asks nothing.

    Notes
    -----
    An entry appears in one step, whole and flushed to disk, or not at all, also when the writer is killed or
    the disk is full. A published entry is never changed; only references are replaced. What is read is hashed
    again: ``get_*`` returns the bytes that were put or raises. Any number of processes, hosts and threads may
    use a store at once. Limits: a network file system may show an entry to another host some seconds later;
    on file systems without hard links, of two different records published for one key at the same instant
    the later one stays. Every method may raise StoreUnusable when the system refuses to read.
    """

    path: Path
    layout: Layout
    is_writable: bool = False
    is_trusted: bool = False

    @classmethod
    def open(cls, path: Path | str, *, writable: bool = False, is_trusted: bool = False) -> Self:
        """Open a store; a builder (``writable``) makes it when there is none and tidies up after killed ones.

        Raises
        ------
        StoreMissing
            A reader finds nothing, or an empty folder.
        StoreTooNew
            The store's format is newer than this version reads.
        DamagedStore
            Something is there that is no store, or its format file is damaged.
        StoreUnusable
            It cannot be made, entered or written.
        """
        path = Path(path)
        try:
            layout = Layout(path.resolve())
        except (OSError, RuntimeError) as error:
            raise errors.StoreUnusable(str(path), f"the path cannot be followed: {error}") from error
        if not has_format(layout):
            if not writable:
                raise errors.StoreMissing(str(path))
            create(layout)
            has_format(layout)
        if writable and not os.access(layout.root, os.W_OK | os.X_OK, effective_ids=True):
            info = layout.root.stat()
            owner = f"owner {info.st_uid}, mode {stat.S_IMODE(info.st_mode):o}"
            raise errors.StoreUnusable(str(path), f"user {os.geteuid()} cannot write to it ({owner})")
        if writable:
            remove_abandoned(layout)
        return cls(path=path, layout=layout, is_writable=writable, is_trusted=is_trusted)

    def check_trust(self) -> None:
        """Refuse a store others can write to; needed only when no root digest proves what is read.

        Raises
        ------
        UntrustedStore
            The store or a folder or link on the way to it belongs to neither the user nor root, or can be
            written by its group or by others.
        """
        if self.is_trusted:
            return
        try:
            reason = find_distrust(self.path, self.layout)
        except OSError as error:
            reason = f"the way to it cannot be examined: {error}"
        if reason is not None:
            raise errors.UntrustedStore(str(self.path), reason)

    def has_record(self, key: str) -> bool:
        """Tell with one stat whether a key has a record; whether it is whole shows when it is read."""
        return self.has_entry("record", key)

    def has_blob(self, digest: str) -> bool:
        """Tell with one stat whether a blob is there; whether it is whole shows when it is read."""
        return self.has_entry("blob", digest)

    def put_blob(self, data: bytes) -> str:
        """Store bytes and return their digest; a whole blob that is there is left alone, without a flush.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        return blobs.put_content(self.writable_layout(), "blob", data)

    def get_blob(self, digest: str) -> bytes:
        """Return a blob.

        Raises
        ------
        MissingEntry, DamagedEntry
            It is not there; it does not have its digest or is not a plain file.
        """
        return blobs.get_content(self.layout, "blob", digest)

    def put_record(self, key: str, record: bytes) -> PutResult:
        """Publish the record of a key. Put the blobs it names before.

        Returns
        -------
        PutResult
            Whether it was published, equals the one that is there, or differs from it and was dropped.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        return records.put_record(self.writable_layout(), key, record)

    def get_record(self, key: str, expected_digest: str | None = None) -> bytes:
        """Return the record of a key, whole, and with the expected digest if one is given.

        Raises
        ------
        MissingEntry, DamagedEntry
            It is not there; it is damaged or has another digest.
        """
        return records.get_record(self.layout, key, expected_digest)

    def put_plan(self, data: bytes) -> str:
        """Store a frozen plan and return its root digest. Put its records before.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        return blobs.put_content(self.writable_layout(), "plan", data)

    def get_plan(self, root: str) -> bytes:
        """Return a frozen plan.

        Raises
        ------
        MissingEntry, DamagedEntry
            It is not there; it does not have its digest or is not a plain file.
        """
        return blobs.get_content(self.layout, "plan", root)

    def flush(self, kind: Kind, names: Iterable[str]) -> None:
        """Flush the names of entries that were found, before something that relies on them is published.

        Their builders may have been about to do so: after a loss of power the entries would be gone.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        layout = self.writable_layout()
        flush_entries(layout, [layout.entry(kind, name) for name in names])

    def set_ref(self, name: str, root: str) -> None:
        """Point a name to a plan of this store, in one step.

        Raises
        ------
        InvalidEntryName, MissingEntry, StoreUnusable
            The name cannot be one; the plan is not here; the store cannot be written.
        """
        refs.set_ref(self.writable_layout(), name, root)

    def get_ref(self, name: str) -> str | None:
        """Return the root digest a name points to, or None.

        Raises
        ------
        InvalidEntryName, DamagedEntry
            The name cannot be one; the reference holds no digest.
        """
        return refs.get_ref(self.layout, name)

    def list_refs(self) -> dict[str, str]:
        """Return all references, name to root digest, sorted by name.

        Raises
        ------
        DamagedEntry
            One of them holds no digest.
        """
        return refs.list_refs(self.layout)

    def put_note(self, key: str, note: bytes) -> None:
        """Keep a note of a key (provenance, compiler log); the first one stays.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        records.put_note(self.writable_layout(), key, note)

    def get_note(self, key: str) -> bytes | None:
        """Return the note of a key or None; nothing proves its bytes and nothing may depend on them."""
        return records.get_note(self.layout, key)

    def lock_key(self, key: str, timeout_s: float) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of one key while it is compiled; see :func:`planfreeze.cache.lock.lock_key`.

        Raises
        ------
        KeyLocked
            Another builder held it for all of ``timeout_s``.
        """
        from planfreeze.cache.lock import lock_key  # not needed to read

        return lock_key(self.writable_layout(), key, timeout_s)

    def quarantine(self, kind: Kind, name: str, reason: str) -> Path | None:
        """Move a damaged entry out of the readers' sight; return where to, or None when nothing was there.

        For builders: a session refuses damage and repairs nothing. An entry another builder publishes at the
        same moment may go with it, which costs building it again.

        Raises
        ------
        StoreUnusable
            The store cannot be written, or was opened for reading.
        """
        layout = self.writable_layout()
        return quarantine_file(layout, layout.entry(kind, name), reason)

    def entries(self, kind: Kind) -> Iterator[Entry]:
        """Yield the entries of a kind, folder by folder, in no order; they may be gone when they are read.

        What has an entry's name and is no plain file is listed as well: reading it says so.
        """
        for folder in self.layout.entry_folders(kind):
            # A folder that is not there holds no entries.
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
                for item in found:
                    is_name = REF_PATTERN.fullmatch(item.name) if kind == "ref" else is_digest(item.name)
                    with contextlib.suppress(FileNotFoundError):
                        if is_name:
                            yield Entry(name=item.name, size_bytes=item.stat(follow_symlinks=False).st_size)

    def has_entry(self, kind: Kind, name: str) -> bool:
        """Tell with one stat whether an entry of any kind is there."""
        path = self.layout.entry(kind, name)
        with reading(self.layout, path, f"{kind} {name}"):
            return is_plain_file(path)

    def writable_layout(self) -> Layout:
        """Return the layout for a change of the store.

        Raises
        ------
        StoreUnusable
            The store was opened for reading.
        """
        if not self.is_writable:
            raise errors.StoreUnusable(str(self.path), "it was opened for reading")
        return self.layout
