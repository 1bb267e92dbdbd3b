"""A pack of five entries, byte by byte, and what is read of it."""

from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import PackEntry, PackIndex

PLAN, RECORD, BLOBS = b"plan" * 20, b"record" * 20, (b"first cubin" * 9, b"", b"third cubin" * 30)
KEY, ROOT = digest_of(b"key"), digest_of(PLAN)


def entry(data: bytes, name: str | None = None) -> PackEntry:
    return PackEntry(name=name or digest_of(data), digest=digest_of(data), size_bytes=len(data))


BODIES = tuple(sorted(BLOBS, key=digest_of))
INDEX = PackIndex(
    refs=(("name", ROOT),), plans=(entry(PLAN),), records=(entry(RECORD, KEY),), blobs=tuple(map(entry, BODIES))
)
WHOLE = INDEX.start + PLAN + RECORD + b"".join(BODIES)


def read_all(pack: Pack) -> list[bytes]:
    return [pack.get_plan(ROOT), pack.get_record(KEY), *(pack.get_blob(digest_of(blob)) for blob in BLOBS)]


EVERYTHING = [PLAN, RECORD, *BLOBS]
