"""Blobs and plans: bytes stored under their own digest."""

from typing import Literal

from planfreeze import errors
from planfreeze.cache.digest import check_digest, digest_of
from planfreeze.cache.files import publish_once, read_file, reading
from planfreeze.cache.layout import Layout

__all__ = ["get_content", "put_content"]

ContentKind = Literal["blob", "plan"]


def put_content(layout: Layout, kind: ContentKind, data: bytes) -> str:
    """Store ``data`` under its digest, which is returned; a damaged entry in its place is quarantined.

    Raises
    ------
    StoreUnusable
        The store cannot be written.
    """
    digest = digest_of(data)
    publish_once(layout, layout.entry(kind, digest), data, lambda present: present == data)
    return digest


def get_content(layout: Layout, kind: ContentKind, digest: str) -> bytes:
    """Return the bytes with this digest; they are hashed again on every read.

    Raises
    ------
    MissingEntry
        Nothing is stored under the digest.
    DamagedEntry
        What is stored has another digest or is not a plain file.
    """
    path = layout.entry(kind, check_digest(digest))
    with reading(layout, path, f"{kind} {digest}"):
        data = read_file(path)
    if data is None:
        raise errors.MissingEntry(f"{kind} {digest}", str(layout.root))
    found = digest_of(data)
    if found != digest:
        raise errors.DamagedEntry(f"{kind} {digest}", str(path), f"{len(data)} bytes with digest {found}")
    return data
