"""Entries that sessions hold while builders repair, replace or remove them."""

import mmap
import pickle
import shutil
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import DamagedPrograms, MissingPrograms
from planfreeze.resolve import PlanReference, find_plan, resolve_plan

STORE = "deep/store"


@pytest.fixture
def store(shop, disk, place) -> Store:
    """A store with the whole plan."""
    with disk.Disk(root=place).mounted():
        shop.build_whole(place / STORE)
    return Store.open(place / STORE, writable=True)


def test_an_entry_in_use_is_neither_replaced_nor_changed_by_another_build(shop, store: Store) -> None:
    (blob, *_) = store.entries("blob")
    path = store.layout.entry("blob", blob.name)
    inode = path.stat().st_ino
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert store.put_blob(bytes(mapped)) == blob.name
        assert shop.build_whole(store.path) == []
        assert store.put_record(shop.keys[0], b"another result").outcome == "different"
        assert digest_of(bytes(mapped)) == blob.name
    assert path.stat().st_ino == inode
    assert shop.look(store.path) == "complete"


def test_what_was_resolved_needs_its_store_no_more(shop, store: Store) -> None:
    resolution = resolve_plan(find_plan(store, PlanReference.parse(shop.plan.name)), store)
    shutil.rmtree(store.path)
    for program in resolution.check():
        assert digest_of(program.cubin) == program.record.blob
        assert [digest_of(content) for _, content in program.companions] == list(
            dict(program.record.companions).values()
        )


def test_each_file_of_an_entry_that_is_gone_is_named(shop, store: Store) -> None:
    plan = find_plan(store, PlanReference.parse(shop.plan.name))
    for kind in ("record", "blob"):
        for entry in list(store.entries(kind)):
            path = store.layout.entry(kind, entry.name)
            path.rename(path.with_suffix(".away"))
            with pytest.raises(MissingPrograms, match="1 of 3 programs"):
                resolve_plan(plan, store).check()
            path.with_suffix(".away").rename(path)
    assert shop.look(store.path) == "complete"


def test_readers_of_a_damaged_entry_refuse_it_by_name_until_it_is_whole(shop, disk, place, store: Store) -> None:
    (blob, *_) = store.entries("blob")
    path = store.layout.entry("blob", blob.name)
    repair = disk.Disk(root=place)
    looks = []

    def look(operation) -> None:
        if repair.meet is look:
            repair.meet = lambda operation: None  # the readers' own operations are met by nobody
            before = files_of(store.path)
            for _ in range(2):
                try:
                    looks.append(shop.look(store.path))
                except (DamagedPrograms, MissingPrograms) as error:
                    looks.append(type(error).__name__)
            assert files_of(store.path) == before, "readers change nothing"
            repair.meet = look

    path.write_bytes(b"damaged")
    repair.meet = look
    with repair.mounted():
        assert shop.build(store.path).count("compiled") == 1
    assert looks[0] == "DamagedPrograms"
    assert looks[-1] == "complete"
    assert looks == sorted(looks, key=["DamagedPrograms", "MissingPrograms", "complete"].index), "never back again"


def files_of(path: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder with what a change would change."""
    found = ((item, item.lstat()) for item in path.rglob("*"))
    return {str(item): (info.st_ino, info.st_size, info.st_mtime_ns) for item, info in found}


def test_nothing_that_is_stored_is_a_pickle(store: Store) -> None:
    files = [path for path in store.path.rglob("*") if path.is_file()]
    assert len(files) > 12
    for path in files:
        with pytest.raises(Exception, match=r"."):
            pickle.loads(path.read_bytes())


def test_a_plan_over_entries_that_were_found_flushes_their_names_first(shop, disk, place, store: Store) -> None:
    (root,) = store.list_refs().values()
    store.layout.entry("plan", root).unlink()
    store.layout.entry("ref", shop.plan.name).unlink()
    again = disk.Disk(root=place)
    with again.mounted():
        assert shop.build(store.path).count("reused") == 3
    named = [operation for operation in again.operations if operation.call in ("link", "rename")]
    plan, ref = (again.operations.index(operation) for operation in named)
    flushed = {step.path for step in again.operations[:plan] if step.call == "fsync"}
    for kind in ("record", "blob"):
        for entry in store.entries(kind):
            folder = store.layout.entry(kind, entry.name).parent
            assert {str(above.relative_to(place)) for above in (folder, folder.parent, store.path)} <= flushed
    assert {STORE, f"{STORE}/plans"} <= {step.path for step in again.operations[plan:ref] if step.call == "fsync"}
