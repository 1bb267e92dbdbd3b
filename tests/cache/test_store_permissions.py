"""Other users, read-only trees and whom a store may belong to."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.errors import StoreUnusable, UntrustedStore

KEY = digest_of(b"key")
STRANGER = 54321  # a user id without a name
RunProcesses = Callable[[int, Callable[[int], object]], list[object]]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder every user can reach (pytest's own is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def run_as(run_processes: RunProcesses) -> Callable[[int, int, Callable[[], object]], object]:
    """Run a function in a process of another user and group."""

    def run(uid: int, gid: int, function: Callable[[], object]) -> object:
        def child(number: int) -> object:
            os.environ.pop("HOME", None)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            return function()

        return run_processes(1, child)[0]

    return run


RunAs = Callable[[int, int, Callable[[], object]], object]


def fill(path: Path) -> str:
    store = Store.open(path, writable=True)
    root = store.put_plan(b"plan")
    store.put_record(KEY, b"record")
    store.put_note(KEY, b"note")
    store.set_ref("name", root)
    return store.put_blob(b"data")


def read_all(path: Path, digest: str) -> bool:
    store = Store.open(path)
    root = store.list_refs()["name"]
    return (
        store.get_blob(digest) == b"data"
        and store.get_record(KEY) == b"record"
        and store.get_note(KEY) == b"note"
        and store.get_plan(root) == b"plan"
        and store.has_record(KEY)
        and len(list(store.entries("blob"))) == 1
    )


def facts_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Everything a writer would change, of everything below a folder."""
    facts = {}
    for item in (path, *path.rglob("*")):
        info = item.lstat()
        facts[str(item)] = (info.st_mode, info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
    return facts


@as_root
def test_a_nameless_user_reads_a_read_only_tree_and_changes_nothing(open_path: Path, run_as: RunAs) -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(STRANGER)
    digest = fill(open_path / "store")
    subprocess.run(["chmod", "-R", "a-w", str(open_path / "store")], check=True)
    before = facts_of(open_path)
    assert run_as(STRANGER, STRANGER, lambda: read_all(open_path / "store", digest)) is True
    assert facts_of(open_path) == before


@as_root
def test_a_read_only_mount_is_read_and_refused_to_a_builder(open_path: Path) -> None:
    digest = fill(open_path / "store")
    mount = open_path / "mount"
    mount.mkdir()
    bound = subprocess.run(["mount", "--bind", str(open_path / "store"), str(mount)], capture_output=True, check=False)
    if bound.returncode != 0:
        pytest.skip("mounting takes more than this root may do")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(mount)], check=True)
        assert read_all(mount, digest)
        with pytest.raises(StoreUnusable) as caught:
            Store.open(mount, writable=True)
        assert caught.value.exit_code == 6
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@as_root
def test_a_builder_is_told_who_owns_what_it_cannot_write(open_path: Path, run_as: RunAs) -> None:
    fill(open_path / "store")
    (open_path / "private").mkdir(mode=0o700)

    def build(path: Path) -> str:
        try:
            Store.open(path, writable=True)
        except StoreUnusable as error:
            return str(error)
        return "opened"

    refusal = run_as(STRANGER, STRANGER, lambda: build(open_path / "store"))
    assert "owner 0, mode 755" in str(refusal)
    assert "Permission denied" in str(run_as(STRANGER, STRANGER, lambda: build(open_path / "new")))
    assert "Permission denied" in str(run_as(STRANGER, STRANGER, lambda: build(open_path / "private" / "store")))
    assert not (open_path / "new").exists()


@as_root
def test_an_unreadable_entry_is_a_matter_of_permissions_not_damage(open_path: Path, run_as: RunAs) -> None:
    digest = fill(open_path / "store")
    Store.open(open_path / "store").layout.entry("blob", digest).chmod(0o600)
    (open_path / "store" / "records" / KEY[:2]).chmod(0o700)

    def read(call: Callable[[Store], object]) -> str:
        try:
            call(Store.open(open_path / "store"))
        except StoreUnusable as error:
            return str(error)
        return "read"

    for call in (lambda store: store.get_blob(digest), lambda store: store.has_record(KEY)):
        assert "Permission denied" in str(run_as(STRANGER, STRANGER, lambda call=call: read(call)))


@as_root
def test_a_group_shares_a_store(open_path: Path, run_as: RunAs) -> None:
    place = open_path / "store"
    place.mkdir()
    os.chown(place, 1001, 2000)
    place.chmod(0o2775)

    def build(text: bytes) -> str:
        os.umask(0o002)
        store = Store.open(place, writable=True)
        with store.lock_key(KEY, 5):
            store.set_ref("name", store.put_plan(text))
        return store.put_blob(text)

    digests = [run_as(1001, 2000, lambda: build(b"one")), run_as(1002, 2000, lambda: build(b"two"))]
    store = Store.open(place)
    assert [store.get_blob(str(digest)) for digest in digests] == [b"one", b"two"]
    assert store.get_ref("name") == digest_of(b"two")
    assert place.stat().st_mode & 0o7777 == 0o2775


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fill(tmp_path / "store")
    finally:
        os.umask(before)
    for path in (tmp_path / "store").rglob("*"):
        expected = (0o777 if path.is_dir() else 0o666) & ~umask
        assert path.stat().st_mode & 0o777 == expected, path


def distrust(path: Path) -> str | None:
    try:
        Store.open(path).check_trust()
    except UntrustedStore as error:
        assert error.exit_code == 4
        return error.reason
    return None


def test_a_users_own_store_is_trusted(open_path: Path) -> None:
    fill(open_path / "store")
    assert distrust(open_path / "store") is None


@pytest.mark.parametrize("place", [".", "objects", "refs", "plans"])
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_store_others_can_write_is_not_trusted(open_path: Path, place: str, mode: int) -> None:
    path = open_path / "store"
    fill(path)
    (path / place).chmod(mode)
    assert "can be written by others" in str(distrust(path))
    Store.open(path, is_trusted=True).check_trust()


@as_root
@pytest.mark.parametrize("mode", [0o775, 0o2775])
def test_a_store_its_group_can_write_is_trusted_only_when_the_user_is_alone_in_it(open_path: Path, mode: int) -> None:
    path = open_path / "store"
    fill(path)
    path.chmod(mode)
    assert distrust(path) is None
    os.chown(path, -1, 54321)
    path.chmod(mode)
    assert "can be written by others" in str(distrust(path))


def test_a_store_below_a_folder_others_can_write_is_not_trusted(open_path: Path) -> None:
    fill(open_path / "shared" / "store")
    (open_path / "shared").chmod(0o777)
    assert "shared can be written" in str(distrust(open_path / "shared" / "store"))
    (open_path / "shared").chmod(0o1777)
    assert distrust(open_path / "shared" / "store") is None, "in a sticky folder nobody can exchange it"


@as_root
def test_a_store_or_link_of_another_user_is_not_trusted(open_path: Path) -> None:
    path, link = open_path / "store", open_path / "link"
    fill(path)
    link.symlink_to("store")
    assert distrust(link) is None
    os.lchown(link, STRANGER, STRANGER)
    assert f"link belongs to user {STRANGER}" in str(distrust(link))
    assert distrust(path) is None
    os.chown(path / "objects", STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}" in str(distrust(path))
    os.chown(path / "objects", 0, 0)
    os.chown(path, STRANGER, STRANGER)
    assert f"store belongs to user {STRANGER}" in str(distrust(path))


def test_a_link_through_a_folder_others_can_write_is_not_trusted(open_path: Path) -> None:
    fill(open_path / "store")
    (open_path / "shared").mkdir()
    (open_path / "shared" / "step").symlink_to("../store")
    (open_path / "shared").chmod(0o777)
    (open_path / "link").symlink_to("shared/step")
    assert "shared can be written" in str(distrust(open_path / "link"))


def test_a_process_without_a_free_descriptor_says_so(interpreter, tmp_path: Path) -> None:
    Store.open(tmp_path / "store", writable=True)
    interpreter.run(
        """
        import os
        import resource
        import sys
        from planfreeze.cache.readable import open_readable
        taken = os.open(os.devnull, os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            open_readable(sys.argv[1])
        except OSError as error:
            raise AssertionError("no typed error") from error
        except Exception as error:
            assert type(error).__name__ == "StoreUnusable" and "Too many open files" in str(error), repr(error)
        else:
            raise AssertionError("opened")
        """,
        str(tmp_path / "store"),
    )
