"""What a pack holds: its header and index, read without believing a size before it is checked.

A pack is ``header, seal, index, signature, entries``. All numbers are little-endian and unsigned. The header counts
what follows; the seal is the sha256 of header, index and signature. The index lists references, plans, records and
blobs in ascending order of their names, each with its size; the entries follow in the same order without gaps.
"""

import hashlib
import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.layout import check_ref_name
from planfreeze.cache.signature import SIGNATURE_BYTES

__all__ = ["HEAD_BYTES", "PACK_FORMAT", "Head", "InvalidPack", "PackEntry", "PackIndex", "PackKind", "read_head"]

PackKind = Literal["plan", "record", "blob"]
PACK_FORMAT = 1

MAGIC = b"planfreeze pack\n"
HEADER = struct.Struct("<16sIIIIIII")
SEAL_BYTES = 32
HEAD_BYTES = HEADER.size + SEAL_BYTES
NAMED = struct.Struct("<32sQ")  # plans and blobs: digest, size
KEYED = struct.Struct("<32s32sQ")  # records: key, digest, size
DIGEST_BYTES = 32
# 16 MiB list about 150,000 programs; a larger index is refused before it is read.
MAX_INDEX_BYTES = 1 << 24
# No cubin is near that size; a file with holes can claim any.
MAX_ENTRY_BYTES = 1 << 30


class InvalidPack(Exception):
    """The bytes are no pack; the message says why."""


class PackEntry(Struct, frozen=True, kw_only=True):
    """One entry: its name (a digest, or the key of a record), the digest and size of its bytes, and where they are."""

    name: str
    digest: str
    size_bytes: int
    offset: int = 0


class Head(Struct, frozen=True, kw_only=True):
    """The header of a pack: how many references, plans, records and blobs follow, and its seal."""

    pack_format: int
    refs: int
    refs_bytes: int
    plans: int
    records: int
    blobs: int
    signature_bytes: int
    seal: bytes

    @property
    def index_bytes(self) -> int:
        """Size of the index that follows."""
        return self.refs_bytes + (self.plans + self.blobs) * NAMED.size + self.records * KEYED.size

    def pack(self) -> bytes:
        """Return the header's bytes, without the seal."""
        counts = (self.refs, self.refs_bytes, self.plans, self.records, self.blobs, self.signature_bytes)
        return HEADER.pack(MAGIC, self.pack_format, *counts)


def read_head(data: bytes, file_bytes: int) -> Head:
    """Read the header of a file of a size; what it declares fits the file.

    Raises
    ------
    InvalidPack
        It is no header, or declares more than the file holds or an index may have.
    """
    if len(data) != HEAD_BYTES or not data.startswith(MAGIC):
        raise InvalidPack(f"it starts with {data[: len(MAGIC)]!r}")
    _, pack_format, refs, refs_bytes, plans, records, blobs, signature_bytes = HEADER.unpack_from(data)
    head = Head(
        pack_format=pack_format,
        refs=refs,
        refs_bytes=refs_bytes,
        plans=plans,
        records=records,
        blobs=blobs,
        signature_bytes=signature_bytes,
        seal=data[HEADER.size :],
    )
    if pack_format > PACK_FORMAT:
        return head  # nothing but the format means the same in a later one
    if pack_format < PACK_FORMAT:
        raise InvalidPack(f"it declares format {pack_format}")
    if signature_bytes not in (0, SIGNATURE_BYTES):
        raise InvalidPack(f"it declares a signature of {signature_bytes} bytes")
    if head.index_bytes > MAX_INDEX_BYTES or HEAD_BYTES + head.index_bytes + signature_bytes > file_bytes:
        raise InvalidPack(f"it declares an index of {head.index_bytes} bytes in a file of {file_bytes}")
    return head


class PackIndex(Struct, frozen=True, kw_only=True):
    """Everything a pack holds, in ascending order of names, and its signature, which may be empty."""

    refs: tuple[tuple[str, str], ...]
    plans: tuple[PackEntry, ...]
    records: tuple[PackEntry, ...]
    blobs: tuple[PackEntry, ...]
    signature: bytes = b""

    @property
    def head(self) -> Head:
        """The header that goes before, with its seal."""
        head = Head(
            pack_format=PACK_FORMAT,
            refs=len(self.refs),
            refs_bytes=sum(1 + len(name) + DIGEST_BYTES for name, _ in self.refs),
            plans=len(self.plans),
            records=len(self.records),
            blobs=len(self.blobs),
            signature_bytes=len(self.signature),
            seal=b"",
        )
        seal = hashlib.sha256(head.pack() + self.encode() + self.signature).digest()
        return replace(head, seal=seal)

    @property
    def signed(self) -> bytes:
        """What a signature signs: header and index of the signed pack, and so the digest of every byte."""
        counts = (len(self.refs), len(self.plans), len(self.records), len(self.blobs))
        return struct.pack("<IIIII", PACK_FORMAT, *counts) + self.encode()

    @property
    def body_bytes(self) -> int:
        """Size of all entries."""
        return sum(entry.size_bytes for entry in (*self.plans, *self.records, *self.blobs))

    @property
    def start(self) -> bytes:
        """All that goes before the entries."""
        head = self.head
        return head.pack() + head.seal + self.encode() + self.signature

    def encode(self) -> bytes:
        """Return the index's bytes."""
        refs = (bytes([len(name)]) + name.encode("ascii") + bytes.fromhex(root) for name, root in self.refs)
        named = (NAMED.pack(bytes.fromhex(entry.name), entry.size_bytes) for entry in (*self.plans, *self.blobs))
        keyed = (
            KEYED.pack(bytes.fromhex(entry.name), bytes.fromhex(entry.digest), entry.size_bytes)
            for entry in self.records
        )
        return b"".join((*refs, *named, *keyed))

    @classmethod
    def decode(cls, head: Head, data: bytes, signature: bytes, file_bytes: int) -> Self:
        """Read an index; its entries fill the file to its last byte.

        Raises
        ------
        InvalidPack
            It does not match the seal, is not in its one form, or its entries do not fill the file.
        """
        if hashlib.sha256(head.pack() + data + signature).digest() != head.seal:
            raise InvalidPack("header, index and signature do not match their seal")
        view = memoryview(data)
        refs = tuple(read_refs(view[: head.refs_bytes], head.refs))
        keyed_start = len(view) - head.records * KEYED.size
        named, keyed = view[head.refs_bytes : keyed_start], view[keyed_start:]
        all_named = [(name.hex(), name.hex(), size_bytes) for name, size_bytes in NAMED.iter_unpack(named)]
        records = [(key.hex(), digest.hex(), size_bytes) for key, digest, size_bytes in KEYED.iter_unpack(keyed)]
        offset = HEAD_BYTES + len(data) + len(signature)
        entries = []
        for listed in (all_named[: head.plans], records, all_named[head.plans :]):
            check_ascending([name for name, _, _ in listed])
            if any(size_bytes > MAX_ENTRY_BYTES for _, _, size_bytes in listed):
                raise InvalidPack(f"it lists an entry of more than {MAX_ENTRY_BYTES} bytes")
            entries.append(tuple(place_entries(listed, offset)))
            offset += sum(size_bytes for _, _, size_bytes in listed)
        if offset != file_bytes:
            raise InvalidPack(f"it declares {offset} bytes and has {file_bytes}")
        return cls(refs=refs, plans=entries[0], records=entries[1], blobs=entries[2], signature=signature)


def place_entries(listed: Iterable[tuple[str, str, int]], offset: int) -> Iterator[PackEntry]:
    """Lay entries one behind the other."""
    for name, digest, size_bytes in listed:
        yield PackEntry(name=name, digest=digest, size_bytes=size_bytes, offset=offset)
        offset += size_bytes


def read_refs(data: memoryview, count: int) -> Iterator[tuple[str, str]]:
    """Read references: length and text of a name, and a root digest."""
    names = []
    for _ in range(count):
        end = 1 + data[0] if data else 0
        if not end or len(data) < end + DIGEST_BYTES:
            raise InvalidPack("a reference is cut off")
        names.append(check_name(bytes(data[1:end])))
        yield names[-1], bytes(data[end : end + DIGEST_BYTES]).hex()
        data = data[end + DIGEST_BYTES :]
    if data:
        raise InvalidPack("bytes follow the references")
    check_ascending(names)


def check_name(name: bytes) -> str:
    """Return a reference's name; it is text that no path can hide in."""
    try:
        return check_ref_name(name.decode("ascii"))
    except (UnicodeDecodeError, errors.InvalidEntryName) as error:
        raise InvalidPack(f"{name!r} names no plan") from error


def check_ascending(names: list[str]) -> None:
    """Refuse names that are not in ascending order, or there twice."""
    if any(first >= second for first, second in itertools.pairwise(names)):
        raise InvalidPack("its index is not in order")
