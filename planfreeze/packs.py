"""Packs: frozen plans with all they need, written to one file and taken out of one again."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import PackEntry, PackIndex
from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.signature import PUBLIC_BYTES, key_name, sign
from planfreeze.cache.store import Store
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.holdings import Holding, find_holding, name_plan, pinned_plans, prove_plan, read_program

__all__ = ["Packed", "pack_plans", "unpack_plans"]


class Packed(Struct, frozen=True, kw_only=True):
    """A pack that was written.

    Parameters
    ----------
    programs : int
        How many records it holds.
    signer : str
        The public key that belongs to the signature; empty without one.
    """

    path: Path
    plans: tuple[FrozenPlan, ...]
    programs: int
    size_bytes: int
    signer: str


def pack_plans(plans: Sequence[FrozenPlan], store: ReadableStore, path: Path, *, key: Path | None = None) -> Packed:
    """Write frozen plans with every record and blob they need into one file.

    Parameters
    ----------
    plans : sequence of FrozenPlan
        At least one; of two with one name, the name leads to the first.
    key : Path, optional
        PEM file of the Ed25519 private key that signs the pack.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        Lists every program of a plan that is not there or not what was built; nothing is written.
    PackUnwritable
        The file cannot be written.
    UnreadableKey, ExtraMissing
        The key cannot be read.

    Notes
    -----
    Kernels need not be installed. The same plans, key and version give the same bytes, whatever store they come from.
    """
    for plan in plans:
        prove_plan(plan, store)
    holdings = [find_holding(plan, store) for plan in plans]
    index = make_index(holdings, store)
    if key is not None:
        index = replace(index, signature=sign(index.signed, key))
    size_bytes = write_pack(path, index, read_bodies(index, holdings, store))
    return Packed(
        path=path,
        plans=tuple(plans),
        programs=len(index.records),
        size_bytes=size_bytes,
        signer=key_name(index.signature[:PUBLIC_BYTES]),
    )


def make_index(holdings: Sequence[Holding], store: ReadableStore) -> PackIndex:
    """List what a pack of plans holds, each entry once and in ascending order."""
    refs: dict[str, str] = {}
    plans, records, blobs = {}, {}, {}
    for holding in holdings:
        refs.setdefault(holding.plan.name, holding.root)
        plans[holding.root] = pack_entry(holding.root, holding.plan.encode())
        for name, digest in holding.keys:
            records[name] = pack_entry(name, store.get_record(name, digest))
        for digest in holding.blobs:
            blobs[digest] = pack_entry(digest, store.get_blob(digest))
    return PackIndex(
        refs=tuple(sorted(refs.items())),
        plans=tuple(plans[name] for name in sorted(plans)),
        records=tuple(records[name] for name in sorted(records)),
        blobs=tuple(blobs[name] for name in sorted(blobs)),
    )


def pack_entry(name: str, data: bytes) -> PackEntry:
    return PackEntry(name=name, digest=digest_of(data), size_bytes=len(data))


def read_bodies(index: PackIndex, holdings: Sequence[Holding], store: ReadableStore) -> Iterator[bytes]:
    """Yield the entries' bytes in the order of the index; one at a time is in memory."""
    encoded = {holding.root: holding.plan.encode() for holding in holdings}
    for entry in index.plans:
        yield encoded[entry.name]
    for entry in index.records:
        yield store.get_record(entry.name, entry.digest)
    for entry in index.blobs:
        yield store.get_blob(entry.name)


def unpack_plans(plans: Sequence[FrozenPlan], pack: Pack, store: Store) -> None:
    """Publish plans of a pack in a store: blobs, records, then plans and their names.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        The pack lacks something of a plan; nothing of the plan is published.
    RecordsDiffer
        The store has other records of the same keys; no plan is published.
    StoreUnusable
        The store cannot be written.

    Notes
    -----
    Names in a pack are digests, keys and reference names; none is taken as a path. A name the store has already
    leads to the pack's plan afterwards, as after a build.
    """
    for plan in plans:
        prove_plan(plan, pack)
    with pinned_plans(plans, store):
        differing = {key for plan in plans for key in put_programs(plan, pack, store)}
        if differing:
            raise errors.RecordsDiffer(str(pack.path), str(store.path), tuple(sorted(differing)))
        for plan in plans:
            name_plan(plan, find_holding(plan, pack).blobs, store)


def put_programs(plan: FrozenPlan, pack: Pack, store: Store) -> Iterator[str]:
    """Publish the programs of a plan; yield the keys of which the store has other records."""
    for entry in plan.entries:
        record, blobs = read_program(entry, pack)
        for blob in blobs:
            store.put_blob(blob)
        if store.put_record(entry.key, record).outcome == "different":
            yield entry.key
