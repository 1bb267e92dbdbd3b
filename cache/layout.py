"""Where everything lies in a store, and the file that says which format it has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.digest import check_digest

__all__ = ["FORMAT", "KINDS", "Kind", "Layout", "check_format", "check_ref_name"]

Kind = Literal["blob", "record", "plan", "ref", "note"]

# Major: older readers must refuse. Minor: something was added that they may ignore.
FORMAT = (1, 0)
FORMAT_TEXT = b"planfreeze store %d.%d\n" % FORMAT
FORMAT_PATTERN = re.compile(rb"planfreeze store (\d{1,9})\.(\d{1,9})\n")

# https://bford.info/cachedir: backup tools leave a folder with this file out.
CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Compiled GPU programs; they can be built again: planfreeze build\n"
)

KINDS: dict[Kind, str] = {
    "blob": "objects",
    "record": "records",
    "plan": "plans",
    "ref": "refs",
    "note": "notes",
}
FANNED_OUT: frozenset[Kind] = frozenset({"blob", "record", "note"})

REF_PATTERN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
MAX_REF_BYTES = 200  # a file name holds 255 bytes; the quarantine adds a suffix


class Layout(Struct, frozen=True):
    """Paths below the root of one store.

    Blobs, records and notes are spread over 256 folders by the first two digits of their name.
    """

    root: Path

    @property
    def format(self) -> Path:
        """The format version file; a folder without it is no store."""
        return self.root / "format"

    @property
    def tag(self) -> Path:
        """The mark that tells backup tools to leave the store out."""
        return self.root / "CACHEDIR.TAG"

    @property
    def temporaries(self) -> Path:
        """Folder of files being written, in the store's own file system."""
        return self.root / "tmp"

    @property
    def locks(self) -> Path:
        """Folder of lock files, one for each stripe."""
        return self.root / "locks"

    @property
    def quarantine(self) -> Path:
        """Folder of damaged entries, out of every reader's sight."""
        return self.root / "quarantine"

    @property
    def swept(self) -> Path:
        """Folder of entries that a collector is about to remove, one folder for each of its batches."""
        return self.root / "swept"

    @property
    def pins(self) -> Path:
        """Folder of pins: empty files named after plans that are about to get their name."""
        return self.root / "pins"

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders directly below the root."""
        others = (self.temporaries, self.locks, self.quarantine, self.swept, self.pins)
        return (*(self.root / name for name in KINDS.values()), *others)

    def entry(self, kind: Kind, name: str) -> Path:
        """Return the path of an entry.

        Raises
        ------
        InvalidEntryName
            The name is no digest, key or reference name: it could point outside the store.
        """
        if kind == "ref":
            return self.root.joinpath(KINDS[kind], check_ref_name(name))
        check_digest(name)
        return self.root.joinpath(KINDS[kind], *((name[:2],) if kind in FANNED_OUT else ()), name)

    def entry_folders(self, kind: Kind) -> Iterator[Path]:
        """Yield the folders in which entries of a kind can lie, whether they exist or not."""
        folder = self.root / KINDS[kind]
        if kind in FANNED_OUT:
            yield from (folder / f"{prefix:02x}" for prefix in range(256))
        else:
            yield folder


def check_ref_name(name: str) -> str:
    """Return ``name`` when it can name a reference.

    Raises
    ------
    InvalidEntryName
        It has other characters, a leading dot, or more than 200 bytes.
    """
    if not REF_PATTERN.fullmatch(name) or len(name) > MAX_REF_BYTES:
        raise errors.InvalidEntryName(
            "reference name", name, f"1 to {MAX_REF_BYTES} of A-Z a-z 0-9 . _ - without a leading dot"
        )
    return name


def check_format(root: Path, text: bytes) -> None:
    """Refuse a store this version cannot read; a higher minor version reads.

    Raises
    ------
    StoreTooNew
        The major version is higher.
    DamagedStore
        The text is no format version, or one that never existed.
    """
    match = FORMAT_PATTERN.fullmatch(text)
    if match is None:
        raise errors.DamagedStore(str(root), f"its format file says {text[:64]!r}")
    major, minor = int(match[1]), int(match[2])
    if major > FORMAT[0]:
        raise errors.StoreTooNew(str(root), f"{major}.{minor}", f"{FORMAT[0]}.x")
    if major < 1:
        raise errors.DamagedStore(str(root), f"its format file says version {major}.{minor}")
