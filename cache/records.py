"""Records: what is known of a key, published once; notes: what is worth telling of a key, never needed.

A record's file starts with the sha256 of the rest, so that damage shows without a plan that names its digest.
"""

import hashlib
from typing import Literal

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.digest import digest_of
from planfreeze.cache.files import publish_once, read_file, reading
from planfreeze.cache.layout import Layout

__all__ = ["PutResult", "get_note", "get_record", "put_note", "put_record"]

SEAL_BYTES = 32  # one sha256


class PutResult(Struct, frozen=True, kw_only=True):
    """What became of a record that was put.

    Parameters
    ----------
    digest : str
        Digest of the record that is now stored under the key.
    offered : str
        Digest of the record that was put; another one than ``digest`` only when ``outcome`` is "different".
    outcome : "published", "equal" or "different"
        Stored now; the same record was there; another one was there and stays: the key's inputs do not
        determine its result, the build is not reproducible.
    """

    digest: str
    offered: str
    outcome: Literal["published", "equal", "different"]


def put_record(layout: Layout, key: str, record: bytes) -> PutResult:
    """Publish a record; a whole one that is there already is never changed, a damaged one is quarantined.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    offered = digest_of(record)
    present = publish_once(layout, layout.entry("record", key), seal(record), lambda sealed: unseal(sealed) is not None)
    if present is None:
        return PutResult(digest=offered, offered=offered, outcome="published")
    stored = digest_of(present[SEAL_BYTES:])
    return PutResult(digest=stored, offered=offered, outcome="equal" if stored == offered else "different")


def get_record(layout: Layout, key: str, expected_digest: str | None) -> bytes:
    """Return the record of a key, proven against its seal and against the expected digest, if given.

    Raises
    ------
    MissingEntry
        The key has no record.
    DamagedEntry
        The record does not match its seal or the expected digest, or is not a plain file.
    """
    path, name = layout.entry("record", key), f"record {key}"
    with reading(layout, path, name):
        sealed = read_file(path)
    if sealed is None:
        raise errors.MissingEntry(name, str(layout.root))
    record = unseal(sealed)
    if record is None:
        raise errors.DamagedEntry(name, str(path), f"{len(sealed)} bytes that do not match their seal")
    if expected_digest is not None and (found := digest_of(record)) != expected_digest:
        raise errors.DamagedEntry(name, str(path), f"its digest is {found}, not {expected_digest}")
    return record


def put_note(layout: Layout, key: str, note: bytes) -> None:
    """Keep a note of a key; the first one stays.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    publish_once(layout, layout.entry("note", key), note, lambda present: True)


def get_note(layout: Layout, key: str) -> bytes | None:
    """Return the note of a key as it was put, or None. Its bytes are not proven.

    Raises
    ------
    DamagedEntry
        It is not a plain file.
    """
    path = layout.entry("note", key)
    with reading(layout, path, f"note {key}"):
        return read_file(path)


def seal(record: bytes) -> bytes:
    """Put a record's sha256 in front of it."""
    return hashlib.sha256(record).digest() + record


def unseal(sealed: bytes) -> bytes | None:
    """Return the record, or None when it does not match its seal."""
    record = sealed[SEAL_BYTES:]
    return record if hashlib.sha256(record).digest() == sealed[:SEAL_BYTES] else None
