"""Temporaries of dead builders are removed by the next one; those of living ones never, wherever they live."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planfreeze.cache import claims
from planfreeze.cache.store import Store
from planfreeze.errors import StoreUnusable

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")

# Publishes a blob, and pauses in the moment before the blob appears.
BUILDER = """
import os, sys
from planfreeze.cache.store import Store
store = Store.open(sys.argv[1], writable=True)
link = os.link
def pause(*arguments, **options):
    print("about to publish", flush=True)
    sys.stdin.readline()
    link(*arguments, **options)
os.link = pause
print(store.put_blob(b"data"), flush=True)
"""

StartBuilder = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_builder(store: Store) -> Iterator[StartBuilder]:
    """Start a builder that pauses in the midst of publishing; returns when it does."""
    started = []

    def start(*prefix: str) -> subprocess.Popen[str]:
        builder = subprocess.Popen(
            [*prefix, sys.executable, "-c", BUILDER, str(store.path)],
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(builder)
        assert builder.stdout is not None and builder.stdout.readline() == "about to publish\n"
        return builder

    yield start
    for builder in started:
        builder.kill()
        builder.communicate()


def temporaries(store: Store) -> list[Path]:
    return list(store.layout.temporaries.iterdir())


def test_the_next_builder_removes_what_a_killed_one_left(store: Store, start_builder: StartBuilder) -> None:
    killed = start_builder()
    killed.kill()
    killed.wait()
    Store.open(store.path)
    assert len(temporaries(store)) == 1, "a reader removes nothing"
    Store.open(store.path, writable=True)
    assert temporaries(store) == []


@pytest.mark.parametrize("prefix", [(), NEW_NAMESPACE], ids=["here", "in another pid namespace"])
def test_a_stopped_builder_keeps_its_temporary(
    store: Store, start_builder: StartBuilder, prefix: tuple[str, ...]
) -> None:
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel refuses a new pid namespace")
    builder = start_builder(*prefix)
    builder.send_signal(signal.SIGSTOP)
    for _ in range(3):
        Store.open(store.path, writable=True)
    assert len(temporaries(store)) == 1
    builder.send_signal(signal.SIGCONT)
    digest = builder.communicate("go on\n", timeout=60)[0].strip()
    assert store.get_blob(digest) == b"data"
    assert temporaries(store) == []


@pytest.mark.parametrize("mark", ["f" * 16, claims.UNCLAIMED, ""], ids=["other kernel", "no claim", "strange name"])
def test_a_temporary_of_another_host_stays_for_a_day_of_the_file_systems_time(store: Store, mark: str) -> None:
    path = store.layout.temporaries / f"{mark}-{'0' * 32}-0"
    path.write_bytes(b"unfinished")
    changed_at = store.layout.temporaries.stat().st_mtime
    os.utime(path, (changed_at, changed_at - DAY_S + 60))
    Store.open(store.path, writable=True)
    assert path.exists()
    os.utime(path, (changed_at, changed_at - DAY_S - 60))
    Store.open(store.path, writable=True)
    assert not path.exists()


def test_an_old_temporary_of_another_host_that_is_locked_stays(store: Store) -> None:
    path = store.layout.temporaries / f"{'f' * 16}-{'0' * 32}-0"
    with path.open("wb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        os.utime(path, (0, 0))
        Store.open(store.path, writable=True)
        assert path.exists()
    Store.open(store.path, writable=True)
    assert not path.exists()


def test_where_nothing_can_be_locked_nobody_is_taken_for_dead(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    real, made = claims.create_exclusively, []

    def count(*arguments: Any, **options: Any) -> tuple[Path, int]:
        made.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(claims, "create_exclusively", count)
    path, handle = claims.create_claimed(store.layout.temporaries)
    monkeypatch.undo()  # locks come back, the owner lives on
    assert len(made) == 2  # another try would change nothing
    try:
        Store.open(store.path, writable=True)
        assert temporaries(store) == [path]
    finally:
        os.close(handle)


def test_a_claim_that_a_cleaner_took_first_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real, taken = fcntl.flock, []

    def take_first(handle: int, operation: int) -> None:
        if not taken:
            taken.extend(temporaries(store))
            taken[0].unlink()
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", take_first)
    path, handle = claims.create_claimed(store.layout.temporaries)
    os.close(handle)
    assert taken
    assert path not in taken
    assert list(claims.find_abandoned(store.layout.temporaries)) == [path]


def test_a_claim_that_is_never_its_own_is_no_kernels_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "lock_claim", lambda path, handle: False)
    path, handle = claims.create_claimed(tmp_path)
    os.close(handle)
    assert path.name.startswith(claims.UNCLAIMED)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_a_cleaner_took_before_it_was_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = claims.open_claim, []

    def take_first(path: Path, *, is_folder: bool, flags: int = 0) -> int:
        if not taken:
            taken.append(path)
            path.rmdir()
        return real(path, is_folder=is_folder, flags=flags)

    monkeypatch.setattr(claims, "open_claim", take_first)
    path, handle = claims.create_claimed(tmp_path, is_folder=True)
    os.close(handle)
    assert taken
    assert path not in taken
    assert path.is_dir()


def test_a_claim_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for is_folder in (False, True):
        with pytest.raises(FileNotFoundError):
            claims.create_claimed(tmp_path / "gone", is_folder=is_folder)


@pytest.mark.parametrize("call", ["link", "replace"])
def test_a_builder_that_loses_its_temporary_all_the_same_writes_it_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, lost = getattr(os, call), []

    def lose(source: Path, *arguments: object, **options: object) -> None:
        if not lost:
            lost.append(source)
            os.unlink(source)  # noqa: PTH108
        real(source, *arguments, **options)

    monkeypatch.setattr(os, call, lose)
    root = store.put_plan(b"plan")
    store.set_ref("name", root)
    assert lost
    assert store.get_plan(store.get_ref("name") or "") == b"plan"
    assert temporaries(store) == []


def test_a_store_whose_temporaries_never_stay_is_refused_and_not_tried_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(source: Path, *arguments: object, **options: object) -> None:
        raise FileNotFoundError(source)

    monkeypatch.setattr(os, "link", lose)
    with pytest.raises(StoreUnusable, match="is removed while it is written"):
        store.put_blob(b"data")


@pytest.mark.parametrize("place", ["records/ab", "records", "refs"])
def test_what_lies_in_the_place_of_a_folder_is_put_aside(store: Store, place: str) -> None:
    path = store.layout.root / place
    if path.is_dir():
        path.rmdir()
    path.write_bytes(b"in the way")
    root = store.put_plan(b"plan")
    store.set_ref("name", root)
    assert store.put_record("ab" * 32, b"record").outcome == "published"
    assert store.get_record("ab" * 32) == b"record"
    assert store.get_ref("name") == root
    (aside,) = [item for item in store.layout.quarantine.iterdir() if not item.name.endswith(".reason")]
    assert aside.read_bytes() == b"in the way"


@pytest.mark.parametrize("thing", ["folder", "full folder", "link to a folder", "dangling link", "pipe"])
def test_a_reference_that_is_no_file_is_replaced(store: Store, tmp_path: Path, thing: str) -> None:
    root = store.put_plan(b"plan")
    path = store.layout.entry("ref", "name")
    match thing:
        case "folder":
            path.mkdir()
        case "full folder":
            (path / "deep").mkdir(parents=True)
        case "link to a folder":
            (tmp_path / "victim").mkdir()
            path.symlink_to(tmp_path / "victim")
        case "dangling link":
            path.symlink_to(tmp_path / "absent")
        case "pipe":
            os.mkfifo(path)
    store.set_ref("name", root)
    assert store.get_ref("name") == root
    assert bool(list(store.layout.quarantine.iterdir())) == ("folder" in thing and "link" not in thing)
    assert not (tmp_path / "absent").exists()
