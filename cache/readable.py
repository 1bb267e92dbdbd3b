"""What serving reads from: a store, or a pack. Both answer alike; neither is written."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from planfreeze import errors
from planfreeze.cache.layout import Kind
from planfreeze.cache.store import Entry, Store

__all__ = ["ReadableStore", "is_pack_name", "open_readable"]


class ReadableStore(Protocol):
    """The reading half of a store; see :class:`planfreeze.cache.store.Store` for what each method promises."""

    @property
    def path(self) -> Path:
        """The store or pack as it was named."""

    def check_trust(self) -> None:
        """Refuse what others can write to."""

    def get_ref(self, name: str) -> str | None:
        """Return the root digest a name points to, or None."""

    def list_refs(self) -> dict[str, str]:
        """Return all references, name to root digest."""

    def get_plan(self, root: str) -> bytes:
        """Return a frozen plan."""

    def get_record(self, key: str, expected_digest: str | None = None) -> bytes:
        """Return the record of a key."""

    def get_blob(self, digest: str) -> bytes:
        """Return a blob."""

    def has_entry(self, kind: Kind, name: str) -> bool:
        """Tell whether an entry is there."""

    def entries(self, kind: Kind) -> Iterator[Entry]:
        """Yield the entries of a kind."""


def open_readable(path: Path | str, *, is_trusted: bool = False, trusted_keys: Sequence[Path] = ()) -> ReadableStore:
    """Open a store for reading, or a pack when the path leads to a file.

    Raises
    ------
    StoreMissing, StoreTooNew, DamagedStore, StoreUnusable
        As :meth:`planfreeze.cache.store.Store.open`.
    PackMissing, DamagedPack, PackTooNew, UntrustedPack, UnreadableKey, ExtraMissing
        As :meth:`planfreeze.cache.pack.Pack.open`.
    """
    try:
        is_pack = Path(path).is_file() or (is_pack_name(path) and not Path(path).exists())
    except OSError as error:
        raise errors.StoreUnusable(str(path), f"it cannot be reached: {error.strerror}") from error
    if is_pack:
        from planfreeze.cache.pack import Pack

        return Pack.open(path, is_trusted=is_trusted, trusted_keys=trusted_keys)
    return Store.open(path, is_trusted=is_trusted)


def is_pack_name(path: Path | str) -> bool:
    """Tell whether a path has the suffix of packs: where nothing is there, a pack is missing, and no store."""
    return Path(path).suffix == ".pfz"
