"""One process and one store: what is put comes back, and nothing else."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from planfreeze.cache.digest import check_digest, digest_of, is_digest
from planfreeze.cache.store import Entry, PutResult, Store
from planfreeze.errors import (
    DamagedStore,
    InvalidEntryName,
    MissingEntry,
    StoreMissing,
    StoreTooNew,
    StoreUnusable,
)

KEY = digest_of(b"key")
FilesOf = Callable[[Path], set[str]]


def test_digest_is_sha256_of_the_bytes() -> None:
    assert digest_of(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
def test_only_64_lower_hexadecimal_digits_are_a_digest(text: str) -> None:
    assert not is_digest(text)
    with pytest.raises(InvalidEntryName):
        check_digest(text)


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(3_000_000)], ids=["empty", "byte", "3 MB"])
def test_a_blob_comes_back_under_its_digest(store: Store, data: bytes) -> None:
    digest = store.put_blob(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert store.has_blob(digest)
    assert store.get_blob(digest) == data


def test_a_missing_blob_is_named(store: Store) -> None:
    with pytest.raises(MissingEntry, match=KEY) as caught:
        store.get_blob(KEY)
    assert caught.value.exit_code == 3
    assert not store.has_blob(KEY)


def test_a_record_is_published_once_and_never_changed(store: Store) -> None:
    first, second = digest_of(b"first"), digest_of(b"second")
    assert not store.has_record(KEY)
    assert store.put_record(KEY, b"first") == PutResult(digest=first, offered=first, outcome="published")
    assert store.put_record(KEY, b"first") == PutResult(digest=first, offered=first, outcome="equal")
    assert store.put_record(KEY, b"second") == PutResult(digest=first, offered=second, outcome="different")
    assert store.has_record(KEY)
    assert store.get_record(KEY) == b"first"
    assert store.get_record(KEY, first) == b"first"


def test_publishing_again_leaves_the_file_and_flushes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.put_blob(b"data")
    store.put_record(KEY, b"record")
    root = store.put_plan(b"plan")
    store.set_ref("name", root)
    before = {p: p.stat().st_ino for p in store.layout.root.rglob("*") if p.is_file()}

    def refuse(handle: int) -> None:
        raise AssertionError("flushed")

    monkeypatch.setattr(os, "fsync", refuse)
    assert store.put_blob(b"data") == digest
    store.put_record(KEY, b"record")
    store.put_plan(b"plan")
    store.set_ref("name", root)
    assert {p: p.stat().st_ino for p in store.layout.root.rglob("*") if p.is_file()} == before


def test_what_is_published_is_flushed_before_it_appears(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def watch_fsync(handle: int) -> None:
        steps.append("flush file" if stat.S_ISREG(os.fstat(handle).st_mode) else "flush folder")
        fsync(handle)

    def watch_link(source: Path, target: Path, **options: bool) -> None:
        steps.append("appear")
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "link", watch_link)
    store.put_blob(b"data")
    assert steps == ["flush file", "flush folder", "appear", "flush folder"]
    steps.clear()
    store.set_ref("name", store.put_plan(b"plan"))
    plan, reference = steps[:3], steps[3:]
    assert plan == ["flush file", "appear", "flush folder"]
    assert reference == ["flush folder", "flush folder", "flush file", "flush folder"], "plans and root, then the name"


def test_a_plan_comes_back_under_its_root(store: Store) -> None:
    root = store.put_plan(b"plan")
    assert root == digest_of(b"plan")
    assert store.get_plan(root) == b"plan"
    with pytest.raises(MissingEntry):
        store.get_plan(digest_of(b"other"))


def test_a_reference_is_the_only_thing_replaced(store: Store) -> None:
    first, second = store.put_plan(b"one"), store.put_plan(b"two")
    assert store.get_ref("ds41-tp4-sm_90a") is None
    store.set_ref("ds41-tp4-sm_90a", first)
    store.set_ref("a", second)
    store.set_ref("ds41-tp4-sm_90a", second)
    assert store.get_ref("ds41-tp4-sm_90a") == second
    assert list(store.list_refs().items()) == [("a", second), ("ds41-tp4-sm_90a", second)]


def test_a_reference_never_points_to_nothing(store: Store) -> None:
    with pytest.raises(MissingEntry):
        store.set_ref("name", digest_of(b"no plan"))
    assert store.list_refs() == {}


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a b", "é", "a\n", "a\0", "x" * 201])
def test_a_name_that_could_leave_the_store_is_refused(store: Store, name: str) -> None:
    root = store.put_plan(b"plan")
    for call in (lambda: store.set_ref(name, root), lambda: store.get_ref(name)):
        with pytest.raises(InvalidEntryName) as caught:
            call()
        assert caught.value.exit_code == 2


def test_keys_that_are_paths_are_refused(store: Store) -> None:
    bad = "../../" + "a" * 58
    for call in (store.has_record, store.get_record, store.get_blob, store.get_note, store.get_plan):
        with pytest.raises(InvalidEntryName):
            call(bad)


def test_a_note_is_kept_and_the_first_one_stays(store: Store) -> None:
    assert store.get_note(KEY) is None
    store.put_note(KEY, b"log")
    store.put_note(KEY, b"other log")
    assert store.get_note(KEY) == b"log"


def test_entries_are_listed_lazily_and_without_strangers(store: Store) -> None:
    sizes = {store.put_blob(bytes(n)): n for n in (1, 20, 300)}
    store.put_record(KEY, b"1234")
    store.set_ref("name", store.put_plan(b"plan"))
    (store.layout.root / "objects" / "00").mkdir(exist_ok=True)
    (store.layout.root / "objects" / "00" / "stray").write_bytes(b"")
    assert {entry.name: entry.size_bytes for entry in store.entries("blob")} == sizes
    (store.layout.root / "objects" / "00" / ("0" * 64)).symlink_to("/etc/passwd")
    assert {entry.name for entry in store.entries("blob")} == {*sizes, "0" * 64}, "reading it tells that it is damage"
    assert [entry.name for entry in store.entries("record")] == [KEY]
    assert list(store.entries("plan")) == [Entry(name=digest_of(b"plan"), size_bytes=4)]
    assert list(store.entries("ref")) == [Entry(name="name", size_bytes=65)]
    assert list(store.entries("note")) == []


def test_asking_for_keys_costs_one_stat_each(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        store.put_record(digest_of(b"foreign %d" % number), b"record")
    calls: list[str] = []
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: (calls.append("lstat"), lstat(path))[1])
    for scan in ("listdir", "scandir", "open"):
        monkeypatch.setattr(os, scan, lambda *a, **k: pytest.fail("more than a stat"))
    asked = [digest_of(b"foreign %d" % number) for number in range(290, 310)]
    assert [store.has_record(key) for key in asked] == [True] * 10 + [False] * 10
    assert len(calls) == len(asked)


def test_a_new_store_says_its_format_and_that_it_is_a_cache(store: Store) -> None:
    assert (store.layout.root / "format").read_bytes() == b"planfreeze store 1.0\n"
    tag = (store.layout.root / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


def test_reading_where_no_store_is_makes_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty", "absent/below"):
        with pytest.raises(StoreMissing) as caught:
            Store.open(tmp_path / name)
        assert caught.value.exit_code == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"planfreeze store 1.0\n", None),
        (b"planfreeze store 1.7\n", None),
        (b"planfreeze store 2.0\n", StoreTooNew),
        (b"planfreeze store 10.0\n", StoreTooNew),
        (b"planfreeze store 0.9\n", DamagedStore),
        (b"planfreeze store 1.0", DamagedStore),
        (b"planfreeze store\n", DamagedStore),
        (b"", DamagedStore),
        pytest.param(os.urandom(50), DamagedStore, id="noise"),
    ],
)
@pytest.mark.parametrize("is_builder", [False, True])
def test_the_format_decides_who_may_read(store: Store, text: bytes, error: type | None, is_builder: bool) -> None:
    (store.layout.root / "format").write_bytes(text)
    if error is None:
        Store.open(store.path, writable=is_builder)
        return
    with pytest.raises(error) as caught:
        Store.open(store.path, writable=is_builder)
    assert caught.value.exit_code == 4
    assert (store.layout.root / "format").read_bytes() == text


@pytest.mark.parametrize("is_builder", [False, True])
def test_a_store_without_its_format_file_and_a_strange_folder_are_refused(
    store: Store, tmp_path: Path, is_builder: bool
) -> None:
    store.put_blob(b"data")
    (store.layout.root / "format").unlink()
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    for path in (store.path, home, home / "letter.txt"):
        with pytest.raises(DamagedStore):
            Store.open(path, writable=is_builder)
    assert [path.name for path in home.iterdir()] == ["letter.txt"]


def test_a_builder_goes_on_where_another_was_killed_while_making_the_store(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "CACHEDIR.TAG").write_bytes(b"")
    Store.open(tmp_path, writable=True).put_blob(b"data")
    assert Store.open(tmp_path).get_blob(digest_of(b"data")) == b"data"


def test_a_store_opened_for_reading_refuses_to_write(store: Store) -> None:
    root = store.put_plan(b"plan")
    reader = Store.open(store.path)
    calls: list[Callable[[], object]] = [
        lambda: reader.put_blob(b"x"),
        lambda: reader.put_record(KEY, b"x"),
        lambda: reader.put_plan(b"x"),
        lambda: reader.put_note(KEY, b"x"),
        lambda: reader.set_ref("x", root),
        lambda: reader.quarantine("plan", root, "x"),
        lambda: reader.lock_key(KEY, 1.0),
    ]
    for call in calls:
        with pytest.raises(StoreUnusable, match="opened for reading"):
            call()


def test_a_link_turned_while_the_store_is_open_changes_nothing(store: Store, tmp_path: Path) -> None:
    digest = store.put_blob(b"data")
    link = tmp_path / "link"
    link.symlink_to(store.layout.root)
    opened = Store.open(link)
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere")
    assert opened.get_blob(digest) == b"data"


def test_a_moved_store_and_a_path_beyond_ascii_work(store: Store, tmp_path: Path) -> None:
    digest = store.put_blob(b"data")
    place = tmp_path / ("é 漢字 " + "x" * 200)
    store.layout.root.rename(place)
    assert Store.open(place).get_blob(digest) == b"data"


def test_quarantine_takes_an_entry_out_of_sight_and_keeps_it(store: Store) -> None:
    digest = store.put_blob(b"data")
    place = store.quarantine("blob", digest, "looked odd")
    assert place is not None
    assert place.read_bytes() == b"data"
    assert "looked odd" in place.with_name(f"{place.name}.reason").read_text()
    assert not store.has_blob(digest)
    assert store.quarantine("blob", digest, "again") is None
    assert store.put_blob(b"data") == digest
    assert store.get_blob(digest) == b"data"
