"""A pack: entries of a store in one file, read in place. It serves like a store that nobody can write."""

import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from planfreeze import errors
from planfreeze.cache.digest import check_digest, digest_of
from planfreeze.cache.layout import Kind, check_ref_name
from planfreeze.cache.pack_index import (
    HEAD_BYTES,
    PACK_FORMAT,
    InvalidPack,
    PackEntry,
    PackIndex,
    PackKind,
    read_head,
)
from planfreeze.cache.signature import check_signature, read_trusted_keys
from planfreeze.cache.store import Entry
from planfreeze.cache.trust import find_file_distrust

__all__ = ["Pack"]


class Pack:
    """An open pack.

    Parameters
    ----------
    path : Path
        The file as it was named.
    index : PackIndex
        What it holds.

    Notes
    -----
    Only the index is kept in memory. An entry is read where it lies and hashed on every read; nothing is unpacked
    and nothing written. The file stays open: what is renamed over its path later changes nothing here. Entries are
    read by position and not through a mapping, where a file that is cut off, or a disk or server that fails, would
    end the process by a signal; here either is an error.
    """

    def __init__(self, path: Path, handle: int, index: PackIndex, *, is_trusted: bool) -> None:
        self.path = path
        self.index = index
        self._handle = handle
        self._is_trusted = is_trusted
        self._refs = dict(index.refs)
        self._entries: dict[PackKind, dict[str, PackEntry]] = {
            "plan": {entry.name: entry for entry in index.plans},
            "record": {entry.name: entry for entry in index.records},
            "blob": {entry.name: entry for entry in index.blobs},
        }

    @classmethod
    def open(cls, path: Path | str, *, is_trusted: bool = False, trusted_keys: Sequence[Path] = ()) -> Self:
        """Open a pack and read its index.

        Parameters
        ----------
        is_trusted : bool
            The user vouches for the file by name: its owner is not asked for. Its signature is, all the same.
        trusted_keys : sequence of Path
            Files of public keys. With any, the pack has to be signed by one of them.

        Raises
        ------
        PackMissing, StoreUnusable
            There is no file, or it cannot be read.
        DamagedPack, PackTooNew
            It is no whole pack, or one of a later format.
        UntrustedPack
            There are trusted keys and none of them signed it.
        UnreadableKey, ExtraMissing
            The trusted keys cannot be read.
        """
        path = Path(path)
        keys = read_trusted_keys(trusted_keys)
        try:
            # O_NONBLOCK: a pipe in place of the pack must not hang the reader.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise errors.PackMissing(str(path)) from None
        except OSError as error:
            raise errors.StoreUnusable(str(path), f"the pack cannot be read: {error.strerror}") from error
        try:
            index = read_index(path, handle)
            reason = check_signature(index.signed, index.signature, keys) if keys else None
            if reason is not None:
                raise errors.UntrustedPack(str(path), reason)
            opened = cls(path, handle, index, is_trusted=is_trusted or bool(keys))
        except BaseException:
            os.close(handle)
            raise
        weakref.finalize(opened, os.close, handle)
        return opened

    def check_trust(self) -> None:
        """Refuse a pack others can write to; needed only when neither a root digest nor a signature proves it.

        Raises
        ------
        UntrustedStore
            The file or a folder or link on the way to it belongs to neither the user nor root, or can be written by
            its group or by others.
        """
        if self._is_trusted:
            return
        try:
            reason = find_file_distrust(self.path, self._handle)
        except OSError as error:
            reason = f"the way to it cannot be examined: {error}"
        if reason is not None:
            raise errors.UntrustedStore(str(self.path), reason)

    def get_plan(self, root: str) -> bytes:
        """Return a frozen plan.

        Raises
        ------
        MissingEntry, DamagedEntry, StoreUnusable
            It is not there; its bytes have another digest; the system refuses to read.
        """
        return self._read("plan", root)

    def get_record(self, key: str, expected_digest: str | None = None) -> bytes:
        """Return the record of a key, with the expected digest if one is given.

        Raises
        ------
        MissingEntry, DamagedEntry, StoreUnusable
            As :meth:`get_plan`.
        """
        record = self._read("record", key)
        if expected_digest is not None and (found := digest_of(record)) != expected_digest:
            raise errors.DamagedEntry(f"record {key}", str(self.path), f"its digest is {found}, not {expected_digest}")
        return record

    def get_blob(self, digest: str) -> bytes:
        """Return a blob.

        Raises
        ------
        MissingEntry, DamagedEntry, StoreUnusable
            As :meth:`get_plan`.
        """
        return self._read("blob", digest)

    def get_ref(self, name: str) -> str | None:
        """Return the root digest a name points to, or None.

        Raises
        ------
        InvalidEntryName
            The name cannot be one.
        """
        return self._refs.get(check_ref_name(name))

    def list_refs(self) -> dict[str, str]:
        """Return all references, name to root digest, sorted by name."""
        return dict(self._refs)

    def has_entry(self, kind: Kind, name: str) -> bool:
        """Tell whether an entry is listed; whether it is whole shows when it is read."""
        return name in (self._refs if kind == "ref" else self._listed(kind))

    def entries(self, kind: Kind) -> Iterator[Entry]:
        """Yield the entries of a kind; a pack holds no notes."""
        if kind == "ref":
            yield from (Entry(name=name, size_bytes=len(root)) for name, root in self.index.refs)
        else:
            yield from (Entry(name=found.name, size_bytes=found.size_bytes) for found in self._listed(kind).values())

    def _listed(self, kind: Kind) -> dict[str, PackEntry]:
        return self._entries[kind] if kind in ("plan", "record", "blob") else {}

    def _read(self, kind: PackKind, name: str) -> bytes:
        entry = self._entries[kind].get(check_digest(name))
        if entry is None:
            raise errors.MissingEntry(f"{kind} {name}", str(self.path))
        data = read_at(self.path, self._handle, entry.offset, entry.size_bytes)
        found = digest_of(data)
        if found != entry.digest:
            raise errors.DamagedEntry(f"{kind} {name}", str(self.path), f"{len(data)} bytes with digest {found}")
        return data


def read_index(path: Path, handle: int) -> PackIndex:
    """Read header, index and signature; every size is checked against the file before it is believed."""
    info = os.fstat(handle)
    if not stat.S_ISREG(info.st_mode):
        raise errors.DamagedPack(str(path), "it is not a plain file")
    try:
        head = read_head(read_at(path, handle, 0, HEAD_BYTES), info.st_size)
        if head.pack_format > PACK_FORMAT:
            raise errors.PackTooNew(str(path), head.pack_format, PACK_FORMAT)
        index = read_at(path, handle, HEAD_BYTES, head.index_bytes)
        signature = read_at(path, handle, HEAD_BYTES + head.index_bytes, head.signature_bytes)
        return PackIndex.decode(head, index, signature, info.st_size)
    except InvalidPack as error:
        raise errors.DamagedPack(str(path), str(error)) from error


def read_at(path: Path, handle: int, offset: int, size_bytes: int) -> bytes:
    """Read bytes at a place; fewer come when the file ends before."""
    chunks = []
    try:
        while size_bytes and (chunk := os.pread(handle, size_bytes, offset)):
            chunks.append(chunk)
            offset += len(chunk)
            size_bytes -= len(chunk)
    except OSError as error:
        raise errors.StoreUnusable(str(path), f"the pack cannot be read: {error.strerror}") from error
    return b"".join(chunks)
